"""Builds the engines of this folder with TensorRT's Python library, for the sizes in profiles.json.

    python build.py [--precision fp32|tf32|fp16|bf16] [--library tensorrt|tensorrt_rtx]

Needs `tensorrt` (on the GPU that will run the engines) or `tensorrt_rtx` (on any machine: --compute-capabilities says for which GPUs).
`build.sh` does the same with trtexec. Writes `engines/`; exit code 0, or 2 with one sentence that says why not.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FOLDER = Path(__file__).resolve().parent
# An import would leave compiled code in the folder, which is as its manifest says.
session: Any = SimpleNamespace(**runpy.run_path(str(FOLDER / "session.py")))
PROFILES, TIMINGS = "profiles.json", "timing.cache"


@dataclass(frozen=True)
class Wanted:
    """How an engine is built."""

    precision: str = "fp32"
    """"fp32", "tf32", "fp16", "bf16"; what the graph's own types allow."""
    graph_type: str = "float32"
    """Type of the graph's weights."""
    capabilities: tuple[str, ...] = ()
    """Compute capabilities of the GPUs, for TensorRT-RTX; none: its own choice."""
    timings: Path | None = None
    """File that keeps what was measured, for the next build."""


@dataclass(frozen=True)
class Made:
    """One engine, and what its builder says of it."""

    engine: Any
    """Its bytes, in the builder's own memory."""
    inputs: dict[str, tuple[int, ...]]
    """Name → shape, with -1 for a dynamic size."""
    outputs: dict[str, tuple[int, ...]]
    layers: int


def build(trt: Any, graph: Path, profiles: Sequence[Mapping[str, Any]], wanted: Wanted) -> Made:
    """Build the engine of one graph. Raises `session.Refused` where the library refuses the graph, a profile or the whole."""
    kept = session.logger(trt)
    builder = trt.Builder(kept)
    if builder is None:
        raise session.Refused(f"{_named(trt)} can't start: {kept.reason()}.")
    weak = _weak_flag(trt, wanted)
    typed = 0 if weak is not None else 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = builder.create_network(typed)
    parser = trt.OnnxParser(network, kept)
    if not parser.parse_from_file(str(graph)):
        said = " ".join(parser.get_error(0).desc().split())[:300] if parser.num_errors else kept.reason()
        raise session.Refused(f"{_named(trt)} does not take {graph.name}: {said}.")
    config = builder.create_builder_config()
    if weak is not None:
        config.set_flag(weak)
    if wanted.precision == "fp32":
        config.clear_flag(trt.BuilderFlag.TF32)
    _target(trt, config, wanted.capabilities)
    for profile in profiles:
        _add(trt, builder, config, profile, kept)
    cache = _timings(trt, config, wanted.timings)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise session.Refused(f"{_named(trt)} can't build {graph.name}: {kept.reason()}.")
    if cache is not None and wanted.timings is not None:
        _replace(wanted.timings, cache.serialize())
    inputs, outputs = (
        {tensor.name: tuple(tensor.shape) for tensor in (get(place) for place in range(count))}
        for get, count in ((network.get_input, network.num_inputs), (network.get_output, network.num_outputs))
    )
    return Made(engine, inputs, outputs, int(network.num_layers))


def _named(trt: Any) -> str:
    return f"{trt.__name__} {trt.__version__}"


def _weak_flag(trt: Any, wanted: Wanted) -> Any:
    """The flag that lets the library round a graph in fp32 by itself; None where the graph's own types are taken as they are."""
    if wanted.graph_type != "float32":
        if wanted.precision != "fp16":
            raise session.Refused(f"These graphs are in {wanted.graph_type} already: leave --precision out, or give fp16.")
        return None
    if wanted.precision in ("fp32", "tf32"):
        return None
    flag = getattr(trt.BuilderFlag, wanted.precision.upper(), None)
    if flag is None:
        raise session.Refused(
            f"{_named(trt)} takes a graph's types as they are, and these graphs are in fp32: for fp16 use the folder tensorrt-bundle-fp16"
            " instead; for bf16 convert the graphs with `python -m modelopt.onnx.autocast --low_precision_type bf16` first."
        )
    return flag


def _target(trt: Any, config: Any, capabilities: Sequence[str]) -> None:
    if not capabilities:
        return
    if not hasattr(config, "set_compute_capability"):
        raise session.Refused(f"{_named(trt)} builds for the GPU that it runs on: leave --compute-capabilities out.")
    config.num_compute_capabilities = len(capabilities)
    for place, capability in enumerate(capabilities):
        known = getattr(trt.ComputeCapability, f"SM{capability.replace('.', '')}", None)
        if known is None:
            raise session.Refused(f"{_named(trt)} knows no GPUs of compute capability {capability}.")
        config.set_compute_capability(known, place)


def _add(trt: Any, builder: Any, config: Any, profile: Mapping[str, Any], kept: Any) -> None:
    made = builder.create_optimization_profile()
    for name, sizes in profile["inputs"].items():
        made.set_shape(name, *(tuple(sizes[key]) for key in ("min", "opt", "max")))
    if config.add_optimization_profile(made) < 0:
        raise session.Refused(f"{_named(trt)} does not take the profile {profile['name']}: {kept.reason()}.")


def _timings(trt: Any, config: Any, path: Path | None) -> Any:
    """TensorRT-RTX measures nothing while it builds."""
    if path is None or trt.__name__ != "tensorrt":
        return None
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    config.set_timing_cache(cache, ignore_mismatch=False)
    return cache


def _replace(path: Path, content: Any) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)


def build_all(
    folder: Path, trt: Any, precision: str = "", capabilities: tuple[str, ...] = (), target: Path | None = None
) -> dict[str, Made]:
    """Build every engine of `folder` into `engines` there, or into `target`; gives them by the role of their graph."""
    known = json.loads((folder / PROFILES).read_text(encoding="utf-8"))
    engines = target or folder / session.ENGINES
    engines.mkdir(exist_ok=True)
    precision = precision or ("fp32" if known["dtype"] == "float32" else "fp16")
    wanted = Wanted(precision, known["dtype"], capabilities, None if target else engines / TIMINGS)
    (engines / session.BUILT).unlink(missing_ok=True)  # until all are there, nothing says that they belong together
    made = {}
    for graph in known["graphs"]:
        print(f"building {graph['engine']} …", file=sys.stderr, flush=True)
        made[graph["role"]] = build(trt, folder / graph["file"], graph["profiles"], wanted)
        _replace(engines / graph["engine"], made[graph["role"]].engine)
    said = {"library": trt.__name__, "version": trt.__version__, "precision": precision, "compute_capabilities": list(capabilities)}
    _replace(engines / session.BUILT, (json.dumps(said, indent=1) + "\n").encode())
    return made


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", choices=("fp32", "tf32", "fp16", "bf16"), default="", help="default: as exact as the graphs are")
    parser.add_argument("--library", choices=session.LIBRARIES, default="", help="default: the first that is installed")
    parser.add_argument("--compute-capabilities", nargs="+", default=(), metavar="8.9", help="GPUs to build for, with tensorrt_rtx")
    given = parser.parse_args()
    try:
        made = build_all(FOLDER, session.library(given.library), given.precision, tuple(given.compute_capabilities))
    except session.Refused as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 2
    print(f"{len(made)} engines are in {session.ENGINES}; `python verify.py` compares them with what the model says.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
