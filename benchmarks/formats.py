"""What each format takes to make and is worth, and the commands of other projects that make the same, in turns.

    python benchmarks/formats.py [--json FILE] [--state DIR] [--variants NAME…] [--rounds 3] [--llama-cpp DIR] [--peer NAME=PYTHON…]

First, as `artifacts.py` does, a model is trained, and `ckptd export` makes and checks all variants whose toolchains `--state` has. For
each: `seconds`, `cpu_seconds` and `peak_mb` of the stage that makes it, from what it is made of, `size_mb`, `size_ratio` over the base in
bf16, `speed_over_eager` in turns with PyTorch, `kl` and `agreement` with the live model.

Then the peers, on a model with random weights (`--hidden`, `--layers`): a process of theirs and one with the stages of ckptd that lead
from the same merged folder to the same format, in turns, medians: `seconds_ratio` and `peak_ratio` are ckptd's over theirs,
`later_seconds_ratio` that of a checkpoint whose template is kept. ckptd's stages compare their graphs with the model, or their tokenizer
with the runtime's; what the peer looks at is in `_peers.py`. With `--llama-cpp`, a checkout of llama.cpp, its converter is one of them,
and `equal` says whether both files hold the same tensors, byte for byte.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import _common, artifacts
from benchmarks._peers import LLAMA_CPP, PEERS, Peer
from daemon.config.settings import Settings
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.plan import spec_of
from daemon.operating.diagnosis.doctor import formats_here
from daemon.toolchains.registry import Toolchains

MAKE = """
import sys
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.gguf import kinds
kinds.KINDS["bench"] = ({kind!r}, {options!r})
kinds.make("bench", Path({folder!r}), dtype="bfloat16")
"""
COMPARE = """
import sys, gguf, numpy
one, other = ({{tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}} for path in {paths!r})
same = one.keys() == other.keys() and all(
    one[name].tensor_type == other[name].tensor_type and numpy.array_equal(one[name].data, other[name].data) for name in one
)
sys.exit(0 if same else 1)
"""


def made(folder: Path, state: Path, variants: list[str], seconds: float, steps: int) -> dict[str, Any]:
    """Variant → figures of an export of a trained model, and the model's own."""
    os.environ["CKPTD_STATE__DIRECTORY"] = str(state)
    report = artifacts.export(folder, artifacts.train(folder, seconds, steps), variants)
    stages = {stage["name"]: stage for stage in report["stages"]}
    figures: dict[str, Any] = {"parameters": report["base"]["parameters"]}
    for artifact in report["artifacts"]:
        stage, found = stages[artifact["variant"]], artifact["figures"]
        figures[artifact["variant"]] = {
            "verdict": artifact["verdict"], "seconds": stage["seconds"], "cpu_seconds": stage["cpu_seconds"],
            "peak_mb": (stage["peak_rss_bytes"] or 0) / 1e6, "size_mb": (artifact["size_bytes"] or 0) / 1e6,
            "size_ratio": artifact["size_ratio"], "speed_over_eager": found.get("speed_over_pytorch"), "kl": found.get("kl"),
            "agreement": found.get("agreement"),
        }  # fmt: skip
    return figures


def available(state: Path) -> list[str]:
    """The variants that are made and checked with what `state` and this machine have."""
    here, known = formats_here(state).variants, catalog().variants
    return [name for name, row in here.items() if row.available and not row.check_needs and known[name].deploys != "over its base"]


def chain_of(variant: str) -> list[str]:
    """The stages between the merge and a variant, in order."""
    needs = [need for need in spec_of(variant).needs if need not in ("merge", "calibration", "reference")]
    return [*dict.fromkeys(stage for need in needs for stage in chain_of(need)), variant]


def beside(folder: Path, state: Path, options: Any) -> dict[str, Any]:
    """Peer → figures."""
    chains, model = Toolchains(state), folder / "model"
    shape = {
        "sliding_window": None, "head_dim": 64, "hidden_size": options.hidden, "intermediate_size": 4 * options.hidden,
        "num_hidden_layers": options.layers, "num_attention_heads": options.hidden // 64,
        "num_key_value_heads": max(1, options.hidden // 128), "initializer_range": 0.02,
    }  # fmt: skip
    script = MAKE.format(root=str(_common.ROOT), kind="Mistral", options=shape, folder=str(model))
    subprocess.run([sys.executable, "-c", script], check=True)
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    figures: dict[str, Any] = {"weights_mb": size / 1e6}
    named = dict(one.split("=", 1) for one in options.peer)
    for peer in PEERS:
        python = named.get(peer.name) or _python_of(peer, chains)
        if python is None or peer.variant not in options.variants:
            print(f"{peer.name} is not compared: {'its Python is not named' if python is None else 'its variant is not made here'}")
            continue
        try:
            figures[peer.name] = _compared(folder / peer.name, state, model, peer, python, options.rounds, size)
        except RuntimeError as error:  # its own reasons: those of the others count nonetheless
            print(f"{peer.name} is not compared: {error}")
    if options.llama_cpp is not None and (gguf := chains.get("gguf")) is not None:
        for kind, variant in LLAMA_CPP:
            figures[f"llama.cpp {kind}"] = _llama(folder / kind, state, model, kind, variant, gguf.folder, options)
    return figures


def _python_of(peer: Peer, chains: Toolchains) -> str | None:
    if peer.toolchain == "-":
        return sys.executable
    found = chains.get(peer.toolchain) if peer.toolchain else None
    return None if found is None else str(found.python)


def _compared(
    folder: Path, state: Path, model: Path, peer: Peer, python: str, rounds: int, size: int, out: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Both in turns. `out`: what the peer writes, where that is no folder. Some leave caches in the folder that they are started in."""
    folder.mkdir()
    target = out or folder / "theirs"
    given = {"model": str(model), "out": str(target), "python": os.path.abspath(python)}
    settings = (f"{name}={value}" for name, value in (env or {}).items())
    theirs = ["env", f"--chdir={folder}", *settings, *(part.format(**given) for part in peer.command)]
    chain = chain_of(peer.variant)

    def ours(cache: str) -> list[str]:
        return _common.python(str(Path(__file__).with_name("_chain.py")), str(state), str(model), str(folder / "ours"), cache, *chain)

    ways = {"ckptd": ours("-"), "peer": theirs}
    if "onnx" in chain:  # the first round of it makes the template
        ways["later"] = ours(str(folder / "cache"))

    def clear(name: str) -> None:
        for path in (folder / "ours",) if name != "peer" else (target, Path(f"{target}.cache")):
            subprocess.run(["rm", "-rf", str(path)], check=True)

    sizes: dict[str, float] = {}

    def cleared(name: str) -> None:
        _note(sizes, folder, target, peer)
        clear(name)

    found = _common.interleaved(ways, rounds, before=cleared)
    _note(sizes, folder, target, peer)
    mine, other = found["ckptd"], found["peer"]
    return {
        "variant": peer.variant, "verifies": peer.verifies,
        **{f"{who}_{key}": value for who, one in found.items() for key, value in one.items()},
        "seconds_ratio": mine["seconds"] / other["seconds"], "peak_ratio": mine["peak_mb"] / other["peak_mb"],
        **({"later_seconds_ratio": found["later"]["seconds"] / other["seconds"]} if "later" in found else {}),
        "peak_over_weights": mine["peak_mb"] * 1e6 / size, **sizes,
    }  # fmt: skip


def _note(sizes: dict[str, float], folder: Path, target: Path, peer: Peer) -> None:
    """Sizes of what lies there now."""
    for who, root in (("ckptd_mb", folder / "ours"), ("peer_mb", target)):
        paths = [root] if root.is_file() else [path for path in root.glob(peer.files) if path.is_file()]
        if paths:
            sizes[who] = sum(path.stat().st_size for path in paths) / 1e6


def _llama(folder: Path, state: Path, model: Path, kind: str, variant: str, chain: Path, options: Any) -> dict[str, Any]:
    """llama.cpp's converter, which imports torch and transformers, and gguf, which this Python does not have."""
    packages = next(chain.glob("lib/python*/site-packages"))
    path = f"{options.llama_cpp / 'gguf-py'}{os.pathsep}{packages}"
    script = str(options.llama_cpp / "convert_hf_to_gguf.py")
    command = ("{python}", script, "{model}", "--outfile", "{out}", "--outtype", kind)
    peer = Peer(f"llama.cpp {kind}", variant, command, files="*.gguf")
    out = folder / "theirs.gguf"
    found = _compared(folder, state, model, peer, sys.executable, options.rounds, int((model / "model.safetensors").stat().st_size), out,
                      {"PYTHONPATH": path})  # fmt: skip
    mine = next((folder / "ours").glob("*.gguf"))
    compare = [str(chain / "bin" / "python"), "-I", "-c", COMPARE.format(paths=[str(mine), str(out)])]
    return {**found, "equal": subprocess.run(compare).returncode == 0}


def main() -> None:
    """Make and compare, print the table, write the JSON file."""
    parser = _common.parser("What each format takes to make and is worth, beside the commands of other projects.")
    parser.add_argument("--state", type=Path, help="a state directory with toolchains; default: that of the configuration")
    parser.add_argument("--variants", nargs="+", help="default: all that are made and checked with these toolchains")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of the base")
    parser.add_argument("--steps", type=int, default=60, help="training steps of the adapter")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hidden", type=int, default=512, help="width of the model for the peers, a multiple of 64")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--llama-cpp", type=lambda path: Path(path).absolute(), metavar="DIR", help="a checkout of llama.cpp")
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=PYTHON", help="the Python that has a peer which no toolchain has"
    )
    parser.add_argument("--only", choices=("made", "peers"), help="one of the two parts")
    options = parser.parse_args()
    state = (options.state or Settings().state_directory).absolute()
    options.variants = options.variants or available(state)
    figures = dict[str, Any]()
    with _common.scratch("formats") as folder:
        if options.only != "peers":
            (folder / "made").mkdir()
            figures["made"] = made(folder / "made", state, options.variants, options.seconds, options.steps)
        if options.only != "made":
            (folder / "peers").mkdir()
            figures["peers"] = beside(folder / "peers", state, options)
    for name, part in figures.items():
        _common.table(name, part.items())
    if options.json is not None:
        _common.write("formats", figures, options.json, libraries=("torch", "transformers", "safetensors"))


if __name__ == "__main__":
    main()
