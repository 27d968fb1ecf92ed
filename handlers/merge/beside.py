"""A whole model that the trainer saved beside its adapter: is it what base + adapter gave?

torchtune writes both, Unsloth's users save both into one folder. Some trainers write an adapter that PEFT reads as another one (torchtune
permutes the rows of Qwen2's queries, which only Llama's need), so that base + adapter is not the model that was trained. Where the
trainer's own merged weights are there, they tell. Called by the merge stage, after the merge; samples of each weight are read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import BESIDE, BESIDE_STATES
from daemon.contract.models.safetensors import TensorInfo, parse_header, read_header
from handlers.models.folder import ModelFolder

ROUNDINGS = 8.0
"""A difference of so many roundings of the coarsest dtype that took part is none: another order of sums, or of rounding and adding."""
SHARE = 0.02
"""Nor is one of this part of what the adapter changes: a trainer's GPU may multiply in TF32."""


@dataclass(frozen=True)
class _Difference:
    """How one weight differs."""

    name: str
    change: float
    """Norm of the difference in the samples, as a part of the norm of what the adapter changes there."""
    place: tuple[int, int]
    theirs: float
    ours: float


def compare(pin: Path, checkpoint: Path, base: Path, merged: Path, report: Callable[[str], object]) -> list[str]:
    """Compare the merged model in the folder `merged` with the weights beside the adapter, by samples of every weight that it changes.

    `pin` keeps these weights or tells how they were, `checkpoint` is where they lay; `report` is called with each weight's name. Gives a
    warning where there are such weights and none could be compared. Permanent when they are another model. A model that is the base itself,
    unchanged, says nothing and is passed over.
    """
    files = _files(pin, checkpoint)
    if not files:
        return []
    theirs, why = _headers(files)
    before, after = ModelFolder(base, "base"), ModelFolder(merged, "merged model")
    if before.pickled or before.setting("quantization_config"):
        why = "the base is quantized or pickled, so the adapter's changes can't be distinguished from rounding"
    if not why:
        compared, equal_to_base, different = _compare(theirs, before, after, _adapter_dtypes(pin), report)
        if different and len(equal_to_base) < compared:
            raise _refusal(checkpoint, different, compared)
        if compared:
            return []
        why = "it has none of the weights that the adapter changes, with the same name and shape"
    return [f"{checkpoint} also holds a whole model ({_some(list(files))}). Base + adapter was not compared with it: {why}"]


def _files(pin: Path, checkpoint: Path) -> dict[str, Path | None]:
    """Name → where it can be read as it was when the adapter was taken, None where it can't any more."""
    try:
        states = json.loads((pin / BESIDE / BESIDE_STATES).read_bytes())
    except FileNotFoundError:
        return {}
    return {name: _place(pin / BESIDE / name, checkpoint / name, state) for name, *state in states}


def _place(kept: Path, original: Path, state: list[int]) -> Path | None:
    for place in (kept, original):
        try:
            status = os.lstat(place)
        except OSError:
            continue
        own = place is kept and status.st_ino != state[0]  # a reflink: nobody else writes to it
        if own or [status.st_ino, status.st_size, status.st_mtime_ns] == state:
            return place
    return None


def _headers(files: dict[str, Path | None]) -> tuple[dict[str, tuple[Path, TensorInfo]], str]:
    """Weight → its file and header; and why they can't be read, "" where they can."""
    if pickled := [name for name in files if not name.endswith(".safetensors")]:
        return {}, f"{pickled[0]} is a pickle"
    headers = {}
    for name, path in files.items():
        if path is None:
            return {}, f"{name} has been removed or rewritten since"
        try:
            headers.update({key: (path, info) for key, info in parse_header(path).items()})
        except (OSError, ValueError) as error:
            return {}, f"{name} can't be read: {error}"
    return headers, ""


def _adapter_dtypes(pin: Path) -> set[str]:
    """Return the dtypes of an adapter in safetensors; of a pickled one none are known."""
    file = pin / "adapter_model.safetensors"
    return {info.dtype for info in read_header(file).values()} if file.is_file() else set()


def _compare(
    theirs: dict[str, tuple[Path, TensorInfo]], before: ModelFolder, after: ModelFolder, rounded: set[str], report: Callable[[str], object]
) -> tuple[int, list[str], list[_Difference]]:
    """Return how many changed weights were compared, which of them are the base's unchanged, and which differ."""
    import torch

    from handlers.merge.engine.readback import rows_of, samples_of, unit_of
    from handlers.tensors.sources import StoredSource, torch_dtype

    compared, unchanged, different = 0, [], []
    floats = {name: torch_dtype(name, after.path) for name in ("F32", "F16", "BF16", "F64")}
    for name, info in after.headers.items():
        if name not in theirs or name not in before.headers or 0 in info.shape:
            continue
        path, other = theirs[name]
        infos = (before.headers[name], info, other)
        if any(header.shape != info.shape or header.dtype not in floats for header in infos):
            continue
        report(name)
        places = (before.path_of(infos[0]), after.path_of(info), path)
        sources = [StoredSource(name, place, header) for place, header in zip(places, infos, strict=True)]
        pieces = samples_of(name, info.shape)
        base, ours, their = (torch.cat([rows_of(source, *piece, torch.float32) for piece in pieces]).double() for source in sources)
        unit = max(unit_of(floats[dtype]) for dtype in {*(header.dtype for header in infos), *(rounded & floats.keys())})
        delta, plain = ours - base, ROUNDINGS * unit * base.abs()
        if not bool((delta.abs() > plain).any()):
            continue
        compared += 1
        typical = float(delta.square().mean().sqrt())
        allowed = ROUNDINGS * unit * (torch.maximum(base.abs(), ours.abs()) + typical) + SHARE * (delta.abs() + typical)
        off = (their - ours).abs()
        if bool((off <= allowed).all()):
            continue
        if bool(((their - base).abs() <= plain).all()):
            unchanged.append(name)
        worst = int((off / allowed).nan_to_num(torch.inf).argmax())
        rows = torch.cat([torch.arange(first, first + count) for first, count in pieces])
        row, column = divmod(worst, off.shape[1])
        different.append(_Difference(
            name, float((their - ours).norm() / delta.norm()), (int(rows[row]), column), float(their[row, column]),
            float(ours[row, column]),
        ))  # fmt: skip
    return compared, unchanged, different


def _refusal(checkpoint: Path, different: list[_Difference], compared: int) -> Permanent:
    worst = max(different, key=lambda difference: difference.change)
    return Permanent(
        FaultCode.MERGED_WEIGHTS_DIFFER,
        "merge the adapter",
        f"base + adapter is not equal to the whole model in the adapter's directory: {len(different)} of {compared} weights differ,"
        f" most of all {worst.name}, by {worst.change:.2g} times the change that the adapter makes ([{worst.place[0]}, {worst.place[1]}]"
        f" is {worst.theirs:.5g} in that model and {worst.ours:.5g} in base + adapter); either the adapter's file is not what was trained,"
        " or the model is from another step",
        "put that model (its weights, config.json and tokenizer) into a separate directory, which is exported as a full fine-tune;"
        " or, if the adapter is the right one, remove the model's weights from this directory",
        path=checkpoint,
    )  # fmt: skip


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if names[1:] else "")
