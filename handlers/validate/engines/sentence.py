"""From vectors of tokens to one vector a text, as sentence-transformers computes it. numpy alone.

Used inside workers, for the live model and for artifacts alike; `handlers.models.sentence` says which modules are known. A test compares
it with the library itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.safetensors import TensorInfo, read_header
from handlers.models import sentence

_STORED: dict[str, str] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_FEWEST = 1e-9
"""Smallest sum of weights that is divided by, as in the library."""

Step = Callable[[np.ndarray], np.ndarray]
"""Vectors (B, D) → vectors (B, E)."""


class SentencePooling:
    """The modules after the model of one folder."""

    def __init__(self, folder: Path) -> None:
        """Read the modules. A folder without modules.json is pooled by the mean, since the library takes it so.

        Permanent where a module is not known here, or where its weights can't be read.
        """
        chain = sentence.read(folder)
        if chain is not None and chain.odd:
            remedy = "test the folder with SentenceTransformer before you use it"
            raise Permanent(FaultCode.CONFIG_MISMATCH, "make a vector of a text", chain.odd, remedy, path=folder)
        self._modes: tuple[str, ...] = ("mean",)
        self._steps: list[Step] = []
        for module in chain.modules if chain else ():
            config = sentence.setting(folder, module)
            if module.kind == "Pooling":
                self._modes = sentence.pooling_modes(config)
            elif module.kind == "Normalize":
                self._steps.append(_unit)
            elif module.kind == "Dense":
                self._steps.append(_dense(_weights(folder / module.folder / "model.safetensors"), sentence.activation(config)))
            elif module.kind == "LayerNorm":
                self._steps.append(_layer_norm(_weights(folder / module.folder / "model.safetensors")))

    def __call__(self, vectors: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Pool vectors (B, S, H) of tokens and their mask (B, S) → vectors (B, D) of texts, float32."""
        pooled = np.concatenate([_pooled(mode, vectors.astype(np.float32), mask.astype(np.float32)) for mode in self._modes], axis=-1)
        for step in self._steps:
            pooled = step(pooled)
        return pooled.astype(np.float32, copy=False)


def _pooled(mode: str, vectors: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Give (B, H) of (B, S, H), by one way of pooling; tokens with a mask of 0 don't count."""
    rows, first = np.arange(len(mask)), mask.argmax(axis=1)
    if mode == "cls":
        pooled: np.ndarray = vectors[rows, first]
    elif mode == "lasttoken":
        pooled = vectors[rows, mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)]
    elif mode == "max":
        pooled = np.where(mask[:, :, None] == 0, -np.inf, vectors).max(axis=1)
    else:
        weights = mask
        if mode == "weightedmean":
            weights = mask * (np.arange(1, mask.shape[1] + 1, dtype=np.float32)[None] - first[:, None])
        total = np.maximum(weights.sum(axis=1, keepdims=True), _FEWEST)
        pooled = (vectors * weights[:, :, None]).sum(axis=1) / (np.sqrt(total) if mode == "mean_sqrt_len_tokens" else total)
    return pooled


def _unit(vectors: np.ndarray) -> np.ndarray:
    made: np.ndarray = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
    return made


def _dense(weights: dict[str, np.ndarray], activation: str) -> Step:
    weight, bias = weights["linear.weight"], weights.get("linear.bias", np.float32(0))
    act = _ACTIVATIONS[activation]
    return lambda vectors: act(vectors @ weight.T + bias)


def _layer_norm(weights: dict[str, np.ndarray]) -> Step:
    def step(vectors: np.ndarray) -> np.ndarray:
        centred = vectors - vectors.mean(axis=-1, keepdims=True)
        normal = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)
        made: np.ndarray = normal * weights["norm.weight"] + weights["norm.bias"]
        return made

    return step


_ERF = np.vectorize(math.erf, otypes=[np.float32])
_ACTIVATIONS: dict[str, Step] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "GELU": lambda x: x * (1 + _ERF(x / math.sqrt(2))) / 2,
    "SiLU": lambda x: x / (1 + np.exp(-x)),
}
"""One for each of `handlers.models.sentence.ACTIVATIONS`."""


def _weights(path: Path) -> dict[str, np.ndarray]:
    """Give the tensors of a small safetensors file in float32. Permanent for a file that is not whole, or holds other than floats."""
    return {name: _tensor(path, name, info) for name, info in read_header(path).items()}


def _tensor(path: Path, name: str, info: TensorInfo) -> np.ndarray:
    if info.dtype not in _STORED:
        cause = f"{name} is stored as {info.dtype}"
        raise Permanent(FaultCode.CONFIG_MISMATCH, "read a module's weights", cause, "save the module in fp32, bf16 or fp16", path=path)
    with open(path, "rb") as stream:
        stream.seek(info.start)
        stored = np.frombuffer(stream.read(info.end - info.start), _STORED[info.dtype])
    values = (stored.astype(np.uint32) << 16).view(np.float32) if info.dtype == "BF16" else stored.astype(np.float32)
    return values.reshape(info.shape)


def settings_of(folder: Path, base: Path | None) -> Path:
    """Give the folder whose modules count: the model's own, else its base's."""
    return base if base is not None and not (folder / sentence.MODULES).is_file() else folder
