"""Opens one of OpenVINO's models, and runs it by the names of its inputs and outputs, in the manner of onnxruntime's sessions.

Used by the engine that checks such a folder. It goes into the folder too, beside `example.py`, so it needs openvino and numpy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0", "PERFORMANCE_HINT": "LATENCY",
}  # fmt: skip
"""Settings under which OpenVINO computes in fp32 on every processor. Its defaults take bf16 and int8 where the processor has them."""
_TYPES = {"i64": "int64", "i32": "int32", "f32": "float", "f16": "float16", "boolean": "bool"}


@dataclass(frozen=True)
class Port:
    """One input or output; `shape` has None for dynamic axes."""

    name: str
    type: str
    shape: tuple[int | None, ...]


def _port(port: Any) -> Port:
    kind = port.element_type.get_type_name()
    sizes = tuple(None if size.is_dynamic else size.get_length() for size in port.partial_shape)
    return Port(port.get_any_name(), f"tensor({_TYPES.get(kind, kind)})", sizes)


class Session:
    """One model on the CPU. Takes and gives numpy arrays. `settings`: OpenVINO's own, by name."""

    def __init__(self, path: str | Path, settings: Mapping[str, str] = EXACT) -> None:
        self.compiled = openvino.Core().compile_model(str(path), "CPU", dict(settings))
        self._inputs = [_port(port) for port in self.compiled.inputs]
        self._outputs = [_port(port) for port in self.compiled.outputs]

    def get_inputs(self) -> list[Port]:
        """In the model's order."""
        return self._inputs

    def get_outputs(self) -> list[Port]:
        """In the model's order."""
        return self._outputs

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs asked for, all if `names` is None."""
        outputs = self.compiled(dict(feeds))
        return [np.asarray(outputs[name]) for name in ([port.name for port in self._outputs] if names is None else names)]


class Decoders:
    """An encoder-decoder's two decoders as the one that onnxruntime's folders have: `use_cache_branch` says whether there is a cache."""

    def __init__(self, first: Session, later: Session) -> None:
        self._first, self._later = first, later

    def get_inputs(self) -> list[Port]:
        """Those of both, and which of them is meant."""
        named = {port.name: port for port in (*self._first.get_inputs(), *self._later.get_inputs())}
        return [*named.values(), Port("use_cache_branch", "tensor(bool)", (1,))]

    def get_outputs(self) -> list[Port]:
        """Those of the first step."""
        return self._first.get_outputs()

    def run(self, names: Sequence[str], feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The outputs asked for. What the later decoder only reads, the encoder's part of the cache, it gives back as it is."""
        session = self._later if feeds["use_cache_branch"].any() else self._first
        own = {port.name for port in session.get_outputs()}
        outputs = dict(zip(own, session.run(list(own), {port.name: feeds[port.name] for port in session.get_inputs()}), strict=True))
        return [outputs[name] if name in own else feeds[name.replace("present", "past_key_values", 1)] for name in names]


def opened(folder: Path, name: str) -> Session | Decoders:
    """The model that stands for an ONNX graph, by the name that the graph has."""
    stem = Path(name).stem
    if stem == "decoder_model_merged":
        return Decoders(*(Session(folder / f"openvino_{stem}.xml") for stem in ("decoder_model", "decoder_with_past_model")))
    return Session(folder / f"openvino_{stem}.xml")
