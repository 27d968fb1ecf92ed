"""The engines of TensorRT's formats, for their checks.

A bundle's graphs are run by onnxruntime, as those of an ONNX folder, once its own `verify.py` has run in a process of its own: so a bundle
whose examples are stale, or whose weights are damaged, is not taken for sound. Engines are run on the GPU, where this machine has one;
where it has none, loading them ends as `device-missing`, which leaves the artifact unverified.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.tensorrt.box import session
from handlers.tensorrt.box.build import PROFILES
from handlers.validate.engines.graphs.onnx_causal import OnnxEngine
from handlers.validate.engines.graphs.onnx_folder import LoadedGraph, OnnxFolder
from handlers.validate.engines.graphs.onnx_tasks import OnnxEncoder, OnnxSeq2Seq
from handlers.validate.engines.graphs.other_runtimes import OtherGraph, Value
from handlers.validate.engines.registry import EngineSpec

SECONDS = 900
_VERIFY = "verify.py"
_AGAIN = "make the bundle again"


class _Verified:
    """Runs the folder's own verify.py before the model is loaded."""

    def __init__(self, spec: EngineSpec) -> None:
        verify(Path(spec.folder), spec.threads)
        super().__init__(spec)  # type: ignore[call-arg]


def verify(folder: Path, threads: int) -> None:
    """Run a bundle's verify.py with onnxruntime. Raises Permanent unless it says that all is well."""
    command = [sys.executable, "-I", "-B", str(folder / _VERIFY), "--backend", "onnxruntime", "--threads", str(threads)]
    try:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise Permanent(
            FaultCode.ENGINE, "run the bundle", f"its {_VERIFY} took longer than {SECONDS} seconds", _AGAIN, path=folder
        ) from None
    if done.returncode == 0:
        return
    try:
        said = json.loads(done.stdout)
        cause = f"its {_VERIFY} says {said['verdict']}: {said['reason']}"
    except (ValueError, KeyError, TypeError):
        lines = done.stderr.strip().splitlines()
        cause = f"its {_VERIFY} does not run: {lines[-1][:300] if lines else f'exit code {done.returncode}'}"
    raise Permanent(FaultCode.ENGINE, "run the bundle", cause.rstrip("."), _AGAIN, path=folder)


class BundleCausal(_Verified, OnnxEngine):
    """A language model's bundle."""


class BundleSeq2Seq(_Verified, OnnxSeq2Seq):
    """An encoder-decoder's bundle."""


class BundleEncoder(_Verified, OnnxEncoder):
    """An encoder's bundle, with or without a head."""


class DeviceGraph(OtherGraph):
    """One engine on the GPU."""

    def _session(self, path: Path, threads: int) -> session.Session:
        try:
            return session.Session(path)
        except session.NoDeviceError as error:
            remedy = (
                "run verify.py of the folder on a machine with such a GPU; if this one has it, set limits.device to cuda;"
                " validate.publish_unverified publishes it meanwhile"
            )
            raise Permanent(FaultCode.DEVICE_MISSING, "run the engine", clause(error), remedy, path=path) from None
        except session.Refused as error:
            raise Permanent(FaultCode.ENGINE, "run the engine", clause(error), "build the engines again", path=path) from error

    def run(self, outputs: list[str], feeds: dict[str, Any]) -> dict[str, Any]:
        """As its graph; more rows than the engine was built for go through it in turns."""
        most, rows = self._most_rows(), len(next(iter(feeds.values())).array)
        try:
            parts = [
                super(DeviceGraph, self).run(outputs, {name: Value(value.array[start : start + most]) for name, value in feeds.items()})
                for start in range(0, rows, most)
            ]
        except session.Refused as error:
            raise Permanent(FaultCode.ENGINE, "run the engine", clause(error), "raise tensorrt.max_tokens", path=self.path) from error
        return {name: Value(np.concatenate([part[name].array for part in parts])) for name in outputs}

    def _most_rows(self) -> int:
        known = json.loads((self.path.parents[1] / PROFILES).read_text(encoding="utf-8"))
        shapes = [bounds["max"] for graph in known["graphs"] for profile in graph["profiles"] for bounds in profile["inputs"].values()]
        return min((shape[0] for shape in shapes), default=1)


def clause(error: Exception) -> str:
    """A sentence as it follows a colon."""
    text = str(error).rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


class _Engines(OnnxFolder):
    """Engines in the place of graphs, which take so many tokens as they were built for."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self.context_length = longest(Path(spec.folder))

    def _opened(self, path: Path, threads: int) -> LoadedGraph:
        return DeviceGraph(path, threads)


def longest(folder: Path) -> int | None:
    """Tokens of the longest text that a folder's profiles take; None where all sizes are fixed."""
    known = json.loads((folder / PROFILES).read_text(encoding="utf-8"))
    sizes = [
        bounds["max"][-1] for graph in known["graphs"] for profile in graph["profiles"] for name, bounds in profile["inputs"].items()
        if name.endswith(("input_ids", "attention_mask"))
    ]  # fmt: skip
    return max(sizes, default=None)


class DeviceCausal(_Engines, OnnxEngine):
    """A language model's engines."""


class DeviceSeq2Seq(_Engines, OnnxSeq2Seq):
    """An encoder-decoder's engines."""


class DeviceEncoder(_Engines, OnnxEncoder):
    """An encoder's engine."""
