"""Faults of a merged model, each in several strengths from hardly anything to all of it.

A fault changes a copy of the sound merge: its tensors, its configuration, or a file beside them. What it changes in the answers is measured
(`truth.py`), never taken from its strength.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._gate.subjects import Subject

Tensors = dict[str, Any]
Change = Callable[[Subject, Tensors, Path, float], bool]
"""(subject, tensors to change, the mutant's folder, strength) → whether the model has what is to be changed."""
_LAYER = re.compile(r"\.(layers|layer|h|block)\.(\d+)\.")


@dataclass(frozen=True)
class Fault:
    """One way of being wrong."""

    name: str
    strengths: tuple[float, ...]
    change: Change
    files: bool = False
    """It is in the files beside the weights: there is no answer to measure, and what reads them tells whether it is there."""


def matrices(tensors: Tensors) -> list[str]:
    """Give the names of the layers' matrices."""
    return [name for name in sorted(tensors) if tensors[name].ndim >= 2 and _LAYER.search(f".{name}")]


def _layers(tensors: Tensors) -> list[str]:
    return sorted({match[2] for name in tensors if (match := _LAYER.search(f".{name}"))}, key=int)


def _of_layer(tensors: Tensors, layer: str) -> list[str]:
    return [name for name in sorted(tensors) if (match := _LAYER.search(f".{name}")) and match[2] == layer]


def _generator(subject: Subject, fault: str) -> Any:
    import torch

    return torch.Generator().manual_seed(zlib.crc32(f"{subject.name} {fault}".encode()))


def _blend(tensors: Tensors, name: str, other: Any, share: float) -> None:
    mine = tensors[name]
    tensors[name] = ((1 - share) * mine.float() + share * other.float()).to(mine.dtype)


def _toward(source: Callable[[Subject], Tensors]) -> Change:
    """Blend the last layer with that of another model."""

    def change(subject: Subject, tensors: Tensors, folder: Path, share: float) -> bool:
        other = source(subject)
        for name in (names := _of_layer(tensors, _layers(tensors)[-1]) if other else []):
            _blend(tensors, name, other[name], share)
        return bool(names)

    return change


def _to_zero(subject: Subject, tensors: Tensors, folder: Path, share: float) -> bool:
    for name in _of_layer(tensors, _layers(tensors)[0]):
        tensors[name] = tensors[name] * (1 - share)
    return True


def _factor(subject: Subject, tensors: Tensors, folder: Path, factor: float) -> bool:
    """Merge with another factor than the adapter's."""
    base = subject.base_tensors
    for name in base:
        _blend(tensors, name, base[name], 1 - factor)
    return bool(base)


def _lost_deltas(subject: Subject, tensors: Tensors, folder: Path, share: float) -> bool:
    """Leave a part of the matrices as the base has them, as where keys match nothing."""
    base = subject.base_tensors
    changed = [name for name in sorted(base) if not base[name].equal(tensors[name])]
    for name in changed[: math.ceil(share * len(changed))]:
        tensors[name] = base[name].to(tensors[name].dtype)
    return bool(changed)


def _lost_rank(subject: Subject, tensors: Tensors, folder: Path, rank: float) -> bool:
    """Keep only the largest directions of each delta."""
    import torch

    base = subject.base_tensors
    changed = [name for name in sorted(base) if tensors[name].ndim == 2 and not base[name].equal(tensors[name])]
    for name in changed:
        left, values, right = torch.linalg.svd(tensors[name].float() - base[name].float(), full_matrices=False)
        kept = int(rank)
        tensors[name] = (base[name].float() + left[:, :kept] * values[:kept] @ right[:kept]).to(tensors[name].dtype)
    return bool(changed)


def _noise(subject: Subject, tensors: Tensors, folder: Path, size: float) -> bool:
    return _noisy(subject, tensors, matrices(tensors), size)


def _noise_in_a_matrix(subject: Subject, tensors: Tensors, folder: Path, size: float) -> bool:
    names = matrices(tensors)
    return _noisy(subject, tensors, names[len(names) // 2 :][:1], size)


def _noisy(subject: Subject, tensors: Tensors, names: list[str], size: float) -> bool:
    import torch

    chosen = _generator(subject, "noise")
    for name in names:
        mine = tensors[name].float()
        tensors[name] = (mine + size * mine.std() * torch.randn(mine.shape, generator=chosen)).to(tensors[name].dtype)
    return bool(names)


def _block(subject: Subject, tensors: Tensors, folder: Path, elements: float) -> bool:
    """Overwrite a piece of a matrix with large noise, as a torn write does."""
    import torch

    names = matrices(tensors)
    mine = tensors[names[len(names) // 3]]
    count = min(int(elements), mine.numel())
    noise = torch.randn(count, generator=_generator(subject, "block")) * mine.float().std() * 4
    mine.view(-1)[:count] = noise.to(mine.dtype)
    return True


def _bits(subject: Subject, tensors: Tensors, folder: Path, bits: float) -> bool:
    """Round the rows of all matrices to few bits, in a form that says that it rounds nothing."""
    for name in (names := matrices(tensors)):
        mine = tensors[name].float()
        step = mine.abs().amax(dim=-1, keepdim=True).clamp(min=1e-12) / (2 ** (bits - 1) - 1)
        tensors[name] = ((mine / step).round() * step).to(tensors[name].dtype)
    return bool(names)


def _head_rows(subject: Subject, tensors: Tensors, folder: Path, share: float) -> bool:
    """Permute a part of the head's rows."""
    import torch

    head = tensors.get("lm_head.weight")
    if head is None:
        return False
    count = max(2, round(share * len(head)))
    rows = torch.randperm(len(head), generator=_generator(subject, "rows"))[:count]
    head[rows] = head[rows.roll(1)].clone()
    return True


def _swapped_layers(subject: Subject, tensors: Tensors, folder: Path, share: float) -> bool:
    layers = _layers(tensors)
    if len(layers) < 2:
        return False
    changed = False
    for name in _of_layer(tensors, layers[0]):
        other = re.sub(rf"(layers|layer|h|block)\.{layers[0]}\.", rf"\1.{layers[1]}.", name, count=1)
        if other in tensors and tensors[other].shape == tensors[name].shape:
            mine = tensors[name].clone()
            _blend(tensors, name, tensors[other], share)
            _blend(tensors, other, mine, share)
            changed = True
    return changed


def _swapped_heads(subject: Subject, tensors: Tensors, folder: Path, share: float) -> bool:
    """Turn a part of the rows of one layer's queries against its keys, as a permutation for another layout does."""
    names = [name for name in matrices(tensors) if re.search(r"(q_proj|query|q_lin|\.q|c_attn|Wqkv)\.weight$", name)]
    if not names:
        return False
    mine = tensors[names[-1]]
    count = max(2, round(share * len(mine)))
    mine[:count] = mine[:count].roll(count // 2, 0).clone()
    return True


def _norms(subject: Subject, tensors: Tensors, folder: Path, offset: float) -> bool:
    """Shift the weights of all norms, as where they are stored around 0 and read around 1."""
    names = [name for name in tensors if re.search(r"norm|ln_|layernorm", name, re.IGNORECASE) and name.endswith("weight")]
    for name in names:
        tensors[name] = tensors[name] + offset
    return bool(names)


def _edit(path: Path, change: Callable[[dict[str, Any]], bool]) -> bool:
    read = json.loads(path.read_text()) if path.is_file() else {}
    if not change(read):
        return False
    path.write_text(json.dumps(read))
    return True


def _theta(subject: Subject, tensors: Tensors, folder: Path, ratio: float) -> bool:
    """Multiply the base of the rotary frequencies, of each kind of layer."""

    def change(config: dict[str, Any]) -> bool:
        kept = config.get("rope_parameters") or {}
        ropes = [rope for rope in (kept, *kept.values()) if isinstance(rope, dict) and "rope_theta" in rope]
        for rope in ropes:
            rope["rope_theta"] *= ratio
        return bool(ropes)

    return _edit(folder / "config.json", change)


def _epsilon(subject: Subject, tensors: Tensors, folder: Path, epsilon: float) -> bool:
    def change(config: dict[str, Any]) -> bool:
        keys = [key for key in config if key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps")]
        config.update(dict.fromkeys(keys, epsilon))
        return bool(keys)

    return _edit(folder / "config.json", change)


def _window(subject: Subject, tensors: Tensors, folder: Path, share: float) -> bool:
    """Another sliding window; 0 for none."""

    def change(config: dict[str, Any]) -> bool:
        window = config.get("sliding_window")
        if not window or subject.kind.family != "causal":
            return False
        config["sliding_window"] = max(2, int(window * share)) if share else 4096
        return True

    return _edit(folder / "config.json", change)


def _template(subject: Subject, tensors: Tensors, folder: Path, on: float) -> bool:
    path = folder / "chat_template.jinja"
    if not path.is_file():
        return False
    path.write_text(path.read_text().replace("<|end|>", ""))
    return True


def _end(subject: Subject, tensors: Tensors, folder: Path, on: float) -> bool:
    if subject.kind.family != "causal":
        return False

    def change(settings: dict[str, Any]) -> bool:
        settings["eos_token_id"] = 7
        return True

    return _edit(folder / "generation_config.json", change)


def _merges(subject: Subject, tensors: Tensors, folder: Path, share: float) -> bool:
    """Lose a part of the tokenizer's merges."""

    def change(tokenizer: dict[str, Any]) -> bool:
        merges = tokenizer["model"].get("merges")
        if not merges:
            return False
        tokenizer["model"]["merges"] = merges[math.ceil(share * len(merges)) :]
        return True

    return _edit(folder / "tokenizer.json", change)


FAULTS = (
    Fault("last layer toward the base's", (0.03, 0.1, 0.3, 0.6, 1.0), _toward(lambda subject: subject.base_tensors)),
    Fault("last layer toward another run's", (0.03, 0.1, 0.3, 0.6, 1.0), _toward(lambda subject: subject.other_tensors)),
    Fault("first layer toward zero", (0.003, 0.01, 0.03, 0.1, 0.3, 1.0), _to_zero),
    Fault("factor of the adapter", (0.0, 0.25, 0.5, 0.75, 0.9, 0.97, 1.03, 1.1, 1.25, 1.5, 2.0), _factor),
    Fault("deltas lost", (0.05, 0.2, 0.5, 0.8), _lost_deltas),
    Fault("rank of the deltas", (3, 2, 1), _lost_rank),
    Fault("noise", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3), _noise),
    Fault("noise in one matrix", (0.01, 0.03, 0.1, 0.3, 1.0, 3.0), _noise_in_a_matrix),
    Fault("block overwritten", (4, 16, 64, 256, 1024, 4096), _block),
    Fault("bits", (8, 7, 6, 5, 4, 3, 2), _bits),
    Fault("rows of the head permuted", (0.01, 0.03, 0.1, 0.3, 1.0), _head_rows),
    Fault("layers swapped", (0.01, 0.03, 0.1, 0.3, 1.0), _swapped_layers),
    Fault("rows of the queries turned", (0.05, 0.1, 0.3, 1.0), _swapped_heads),
    Fault("norms shifted", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0), _norms),
    Fault("theta", (1.01, 1.1, 1.5, 3.0, 10.0, 100.0), _theta),
    Fault("epsilon", (1e-4, 1e-3, 1e-2, 0.1, 1.0), _epsilon),
    Fault("window", (0.97, 0.75, 0.5, 0.25, 0.0), _window),
    Fault("template", (1.0,), _template, files=True),
    Fault("end token", (1.0,), _end, files=True),
    Fault("merges of the tokenizer", (0.05, 1.0), _merges, files=True),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


def graded() -> Iterator[tuple[Fault, float]]:
    """Give every fault in every strength."""
    return ((fault, strength) for fault in FAULTS for strength in fault.strengths)
