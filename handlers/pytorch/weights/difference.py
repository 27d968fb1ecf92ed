"""Whether a smaller PyTorch form has the weights of the merged model: every tensor of both folders, read in blocks of rows.

Called by the engines of these forms, in a worker, before the model is loaded. A form in few bits differs from the live model anyway, so
that its answers alone can't show one damaged matrix, or weights of another checkpoint. What is not quantized must be the merged tensor,
cast to the folder's 16 bits; how far quantized weights may lie from theirs, `forms` says. All weights are compared, not a sample of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.models.safetensors import TensorInfo
from daemon.contract.values import Json
from handlers.merge.weights.dequantize import FLOATS
from handlers.models.folder import ModelFolder
from handlers.pytorch.weights.forms import EightBitRows, EightBits, FourBitGroups, FourBits, MisfitError, Packed, Place
from handlers.tensors.sources import StoredSource, row_elements

BLOCK = 1 << 20
"""Elements that are compared at once: a few megabytes in fp32, which stay in a processor's cache."""
ROUNDED = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""What is cast to the 16 bits of the folder."""
NAMED = 3
"""What a reason names, at most."""
TRIED = 32
"""Tensors that are tried as the one whose place was taken."""


@dataclass(frozen=True)
class _Form:
    """The tensors in which a form keeps a quantized weight: what is added to the stem of its name, `.weight` left out."""

    marks: str
    """The one that says that a weight is quantized."""
    parts: tuple[str, ...]
    optional: tuple[str, ...]
    packed: Callable[[Place, tuple[int, ...]], Packed]


_NF4 = "weight.quant_state.bitsandbytes__nf4"
_FORMS = {
    "int8": _Form("SCB", ("weight", "SCB", "weight_format"), (), EightBits),
    "nf4": _Form(
        _NF4, ("weight", "weight.absmax", "weight.quant_map", _NF4), ("weight.nested_absmax", "weight.nested_quant_map"), FourBits
    ),
    "w8a8": _Form("weight_scale", ("weight", "weight_scale"), (), EightBitRows),
    "w4a16": _Form("weight_packed", ("weight_packed", "weight_scale", "weight_shape"), (), FourBitGroups),
}


def difference(folder: Path, merged: Path) -> str | None:
    """Why a folder in a smaller form does not have the weights of the merged model, as a clause; None where it has."""
    wanted = ModelFolder(merged)
    try:
        written = ModelFolder(folder)
        faults = _Comparison(wanted, written).faults()
    except Permanent as error:
        if error.fault.path is not None and Path(error.fault.path).is_relative_to(merged):
            raise
        return f"its weights are not those of the merge: {error.fault.cause}"
    if not faults:
        return None
    more = f", and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return f"its weights are not those of the merge: {'; '.join(faults[:NAMED])}{more}. So it is damaged, or of another checkpoint"


class _Comparison:
    def __init__(self, wanted: ModelFolder, written: ModelFolder) -> None:
        self._wanted, self._written = wanted, written
        self._form = _form_of(written.config)
        said = str(written.setting("dtype") or written.setting("torch_dtype"))
        self._dtype = FLOATS.get(said, torch.bfloat16)

    def faults(self) -> list[str]:
        """What is wrong, the tensors that are too many last."""
        faults, known, differing = list[str](), set[str](), dict[str, str]()
        for name, info in self._wanted.headers.items():
            parts = self._parts(name)
            known |= parts
            try:
                if fault := self._compared(name, name, info):
                    differing[name] = fault
            except (MisfitError, Permanent) as error:
                if isinstance(error, Permanent) and Path(str(error.fault.path)).is_relative_to(self._wanted.path):
                    raise
                faults.append(str(error) if isinstance(error, MisfitError) else error.fault.cause)
        for name, fault in differing.items():
            other = self._other(name, differing) if len(faults) < NAMED else None
            faults.append(f"{name} holds {other}" if other else fault)
        return faults + [f"{name} is there, which the merge does not give" for name in self._written.headers if name not in known]

    def _parts(self, name: str) -> set[str]:
        """The names of the tensors that hold a merged weight."""
        form, stem = self._form, name.removesuffix("weight")
        if form is None or not name.endswith("weight") or f"{stem}{form.marks}" not in self._written.headers:
            return {name}
        optional = (f"{stem}{part}" for part in form.optional)
        return {f"{stem}{part}" for part in form.parts} | {part for part in optional if part in self._written.headers}

    def _compared(self, name: str, source: str, info: TensorInfo) -> str | None:
        """How the tensor `name` differs from the merged one `source`, as a clause. Raises MisfitError."""
        if self._parts(name) == {name}:
            return self._plain(name, source, info)
        assert self._form is not None
        place = Place(self._written, name, self._dtype)
        if not self._written.uses_conv1d or len(info.shape) != 2:
            return self._packed(self._form.packed(place, info.shape), name, self._rows(source))
        turned = info.shape[::-1]  # a Conv1D; beside them a model may have linear layers, which a square matrix does not tell
        try:
            clause = self._packed(self._form.packed(place, turned), name, self._columns(source))
        except (MisfitError, Permanent):
            if turned == info.shape:
                raise
            return self._packed(self._form.packed(place, info.shape), name, self._rows(source))
        return clause if clause is None or turned != info.shape else self._packed(
            self._form.packed(place, info.shape), name, self._rows(source)
        )  # fmt: skip

    def _plain(self, name: str, source: str, info: TensorInfo) -> str | None:
        mine = self._written.headers.get(name)
        if mine is None:
            raise MisfitError(f"{name} is missing")
        if mine.shape != info.shape:
            raise MisfitError(f"{name} has the shape {list(mine.shape)} instead of {list(info.shape)}")
        theirs, ours = StoredSource(source, self._wanted.path_of(info), info), StoredSource(name, self._written.path_of(mine), mine)
        dtype = self._dtype if theirs.dtype in ROUNDED else theirs.dtype
        if ours.dtype != dtype:
            raise MisfitError(f"{name} is {ours.dtype} instead of {dtype}")
        rows, step = (info.shape[0] if info.shape else 1), max(1, BLOCK // max(1, row_elements(info.shape)))
        for first in range(0, rows if info.elements else 0, step):
            count = min(step, rows - first)
            exact, stored = (torch.empty(count, row_elements(info.shape), dtype=reader.dtype) for reader in (theirs, ours))
            theirs.rows(first, count, exact)
            ours.rows(first, count, stored)
            if not torch.equal(exact := exact.to(dtype), stored):
                other = ~((exact == stored) | (exact != exact) & (stored != stored))
                if bool(other.any()):
                    return _describe(name, first, other, rows)
        return None

    def _packed(self, packed: Packed, name: str, rows: Callable[[int, int], torch.Tensor]) -> str | None:
        count = packed.shape[0]
        step = max(1, BLOCK // packed.shape[1] // packed.step) * packed.step
        for first in range(0, count, step):
            beyond = packed.beyond(first, rows(first, min(step, count - first)))
            if bool(beyond.any()):
                return _describe(name, first, beyond, count)
        return None

    def _rows(self, source: str) -> Callable[[int, int], torch.Tensor]:
        info = self._wanted.headers[source]
        stored = StoredSource(source, self._wanted.path_of(info), info)

        def rows(first: int, count: int) -> torch.Tensor:
            out = torch.empty(count, *info.shape[1:])
            stored.rows(first, count, out)
            return out

        return rows

    def _columns(self, source: str) -> Callable[[int, int], torch.Tensor]:
        """The same of the transpose, which is held whole."""
        turned = self._rows(source)(0, self._wanted.headers[source].shape[0]).T.contiguous()
        return lambda first, count: turned[first : first + count]

    def _other(self, name: str, differing: dict[str, str]) -> str | None:
        """The merged tensor that lies in the place of another one."""
        shape = self._wanted.headers[name].shape
        alike = [candidate for candidate in differing if candidate != name and self._wanted.headers[candidate].shape == shape]
        return next(
            (candidate for candidate in alike[:TRIED] if self._compared(name, candidate, self._wanted.headers[candidate]) is None), None
        )


def _form_of(config: Json) -> _Form | None:
    """The form that a folder's config.json says; None where nothing is quantized."""
    said = config.get("quantization_config")
    if not isinstance(said, dict):
        return None
    if said.get("quant_method") == "bitsandbytes":
        return _FORMS["nf4" if said.get("load_in_4bit") else "int8"]
    return _FORMS["w4a16" if said.get("format") == "pack-quantized" else "w8a8"]


def _describe(name: str, first: int, other: torch.Tensor, rows: int) -> str:
    """A clause about weights that are not those of the merge."""
    row = int(other.any(dim=1).nonzero()[0]) + first
    return f"{name} is not that of the merge from row {row} of {rows} on ({int(other.sum())} of the next {other.numel():,} weights)"
