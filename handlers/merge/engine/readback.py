"""Reading the written files back: whether they hold base + adapter, computed again in another way.

Called by `handlers.merge.engine.check_plan` before a merge counts as done. Changed tensors are multiplied with a random vector, W'x
against Wx + B(Ax), and some of their rows are compared element by element with a float64 computation; unchanged tensors are compared with
the base's bytes. Samples of each tensor are compared, or all of it where that is asked for; an error outside of the samples is not found.
`handlers.merge.engine.screen` accepts most sound samples, many tensors at once; what it does not accept is decided here.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge.weights.changed import equal
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import Source, StoredSource, row_elements

BLOCK = 1 << 20
"""Elements read at once."""
SAMPLE = 1 << 13
"""Elements of one sample. There are three of each tensor: the first rows, the last rows, and some in between."""
FAR = 4.0
"""Rounding errors add up like a random walk: a sum beyond so many times the root of the summed squares of their limits, which is more
than seven standard deviations, is not explained by rounding."""

OnBytes = Callable[[int], None]
"""Called with the number of bytes of each step; an exception that it raises ends the work."""
_TIED_PAIRS = (("lm_head.weight", "model.embed_tokens.weight"), ("lm_head.weight", "transformer.wte.weight"))


class Factors(NamedTuple):
    """A delta as the product left @ right; for fused experts each factor has the expert as its first dimension."""

    left: torch.Tensor
    """Rows × rank."""
    right: torch.Tensor
    """Rank × columns."""

    def scaled(self, scale: float) -> Factors:
        """Return the delta multiplied by `scale`."""
        return Factors(self.left * scale, self.right)


@dataclass(frozen=True)
class ChangedTensor:
    """A tensor to which an adapter added a delta; the dimensions of the tensor after the first are taken as one."""

    module: str
    tensor: str
    source: Source
    """The values before the change."""
    factors: Callable[[], Factors]
    """Reads the factors of the delta."""
    magnitude: Callable[[], torch.Tensor] | None = None
    """DoRA: reads the norms to which the rows (or columns) of the sum are scaled."""
    by_column: bool = False
    """DoRA's norms belong to columns, as in embeddings and Conv1D."""


class _Rows(NamedTuple):
    """Some rows of a tensor, in the same order before and after the merge."""

    numbers: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor


@dataclass(frozen=True)
class WrittenTensor:
    """A tensor of a written file, and what it should be."""

    base: Source
    """What it was made of, with the dtype in which it is to be written."""
    written: StoredSource
    """What is in the file."""
    changed: ChangedTensor | None = None
    """None for a tensor that should hold the base's values."""

    def problem(self, full: bool, on_bytes: OnBytes) -> str | None:
        """Return what is wrong with it, as a clause; None when nothing was found. `full` compares every value instead of samples."""
        if self.changed is None:
            problem = _unchanged(self.base, self.written, full, on_bytes)
        else:
            problem = _changed(self.changed, self.written, full, on_bytes)
        return problem and f"{self.written.name} {problem}"


def wrong(problems: Sequence[str], output: Path) -> Permanent:
    """Return the error for a merge that failed its check."""
    more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
    return Permanent(
        FaultCode.MERGE_NOT_EXACT,
        "check the merged weights",
        f"{problems[0]}{more}",
        "check the disk and the memory of this machine, then merge again; if it happens again, report it with the adapter's configuration",
        path=output,
    )


def _differs(base: Source, written: Source) -> str | None:
    if base.shape != written.shape:
        return f"has the shape {list(written.shape)}, where {list(base.shape)} was expected"
    if base.dtype != written.dtype:
        return f"is {_name(written.dtype)}, where {_name(base.dtype)} was expected"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def samples_of(name: str, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """(first row, rows) of three samples that share no row, or of the whole tensor where these would be all of it.

    The middle one depends only on the name, so that a check can be repeated.
    """
    total = shape[0] if shape else 1
    rows = max(1, SAMPLE // max(1, row_elements(shape)))
    if total <= 3 * rows:
        return [(0, total)]
    between = rows + zlib.crc32(name.encode()) % (total - 3 * rows + 1)
    return [(first, rows) for first in (0, between, total - rows)]


def _blocks(name: str, shape: tuple[int, ...], full: bool) -> Iterator[tuple[int, int]]:
    """(first row, rows) of the blocks of a tensor that are compared."""
    if 0 in shape:
        return
    if not full:
        yield from samples_of(name, shape)
        return
    rows = max(1, BLOCK // max(1, row_elements(shape)))
    for first in range(0, shape[0] if shape else 1, rows):
        yield first, min(rows, (shape[0] if shape else 1) - first)


def rows_of(source: Source, first: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the rows from `first` on, (count, elements of a row)."""
    out = torch.empty(count, row_elements(source.shape), dtype=dtype)
    source.rows(first, count, out)
    return out


def _unchanged(base: Source, written: Source, full: bool, on_bytes: OnBytes) -> str | None:
    """Return how a tensor that should be the base's differs from it; None when no difference was found."""
    if problem := _differs(base, written):
        return problem
    for first, count in _blocks(written.name, written.shape, full):
        before, after = (rows_of(source, first, count, written.dtype).view(torch.uint8) for source in (base, written))
        on_bytes(before.numel())
        if not torch.equal(before, after):
            row = first + int((before != after).any(dim=1).nonzero()[0, 0])
            return f"should be the base's, but differs from it in row {row}"
    return None


def _changed(changed: ChangedTensor, written: Source, full: bool, on_bytes: OnBytes) -> str | None:
    """Return how a tensor differs from base + delta; None when no difference was found."""
    if problem := _differs(changed.source, written):
        return problem
    factors = changed.factors()
    projection = None if changed.magnitude is not None or factors.left.ndim == 3 else _Projection(changed, written, factors)
    # All samples at once: for so few rows a call costs more than its arithmetic.
    samples = _read(changed, written, samples_of(written.name, written.shape), on_bytes)
    problem = _elements(changed, written, factors, _Rows(samples.numbers, samples.before.double(), samples.after.double()))
    if problem := problem or (projection.problem(samples) if projection else None):
        return problem
    if not full or projection is None:
        return None
    for block in _blocks(written.name, written.shape, full):
        if problem := projection.problem(_read(changed, written, [block], on_bytes)):
            return problem
    return None


def _read(changed: ChangedTensor, written: Source, pieces: Sequence[tuple[int, int]], on_bytes: OnBytes) -> _Rows:
    """Return the rows of the pieces (first row, rows), before and after the merge, in fp32."""
    numbers = torch.cat([torch.arange(first, first + count) for first, count in pieces])
    before, after = (torch.empty(len(numbers), row_elements(written.shape)) for _ in range(2))
    done = 0
    for first, count in pieces:
        for source, out in ((changed.source, before), (written, after)):
            source.rows(first, count, out[done : done + count])
        done += count
    on_bytes(2 * after.numel() * written.dtype.itemsize)
    return _Rows(numbers, before, after)


class _Projection:
    """Compares W'x with Wx + B(Ax) for one random x of ±1, with the sum of all rounding errors as a bound."""

    def __init__(self, changed: ChangedTensor, written: Source, factors: Factors) -> None:
        seed = torch.Generator().manual_seed(zlib.crc32(changed.tensor.encode()))
        self._x = torch.randint(0, 2, (factors.right.shape[1],), generator=seed).float().mul_(2).sub_(1)
        self._module, self._dtype, self._left = changed.module, written.dtype, factors.left
        self._inner = factors.right.double() @ self._x.double()
        self._reach = factors.right.norm(dim=1).double()
        self._fp32 = unit_of(torch.float32) * math.sqrt(len(self._x) + len(factors.right))

    def problem(self, rows: _Rows) -> str | None:
        """Return what is wrong with these rows; None when nothing is."""
        numbers, before, after = rows
        factor = self._left[numbers].double()
        wanted = before @ self._x + (factor @ self._inner).float()
        # The sum is rounded once, the delta perhaps before it; and everything is rounded to fp32 on the way, where it may cancel out.
        rounded = after.norm(dim=1) + (after - before).norm(dim=1)
        summed = rounded + before.norm(dim=1) + (factor.abs() @ self._reach).float()
        bound = FAR * (unit_of(self._dtype) * rounded + self._fp32 * summed + tiny_of(self._dtype) * math.sqrt(len(self._x)))
        off = (after @ self._x - wanted).abs()
        if bool((off <= bound).all()):
            return None
        row = int((off / bound).nan_to_num(math.inf).argmax())
        return (
            f"is not base + delta ({self._module}): the product of row {int(numbers[row])} with a random vector is off by "
            f"{float(off[row]):.3g}, {float(off[row] / bound[row]):.1f} times what rounding explains"
        )


def unit_of(dtype: torch.dtype) -> float:
    """Return the largest relative error of one rounding to the dtype."""
    return torch.finfo(dtype).eps / 2


def tiny_of(dtype: torch.dtype) -> float:
    """Return the largest absolute error of one rounding among the smallest numbers of the dtype."""
    return float(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)


def _elements(changed: ChangedTensor, written: Source, factors: Factors, rows: _Rows) -> str | None:
    """Compare rows, given in float64, with base + delta in float64, within what the engine's rounding explains."""
    left, right = factors
    across, factor = (right[rows.numbers] if left.ndim == 3 else right).double(), left[rows.numbers].double()
    delta, spread = (factor @ across).flatten(1), (factor.abs() @ across.abs()).flatten(1)
    total = rows.before + delta
    # The delta in fp32 (a sum over the rank), rounded perhaps to the output's dtype before the addition; then the sum, once.
    slack = unit_of(torch.float32) * (right.shape[-2] + 8) * (spread + rows.before.abs())
    slack += unit_of(written.dtype) * (delta.abs() + slack)
    if changed.magnitude is not None:
        total, slack = _rescaled(changed, rows, total, slack)
    bound = 1.01 * unit_of(written.dtype) * (total.abs() + slack) + slack + tiny_of(written.dtype)
    off = (rows.after - total).abs()
    if bool((off <= bound).all()):
        return None
    place = int((off / bound).nan_to_num(math.inf).argmax())
    row, column = int(rows.numbers[place // off.shape[1]]), place % off.shape[1]
    value, wanted = float(rows.after.reshape(-1)[place]), float(total.reshape(-1)[place])
    return f"is not base + delta ({changed.module}): element [{row}, {column}] is {value:.6g} and should be {wanted:.6g}"


def _rescaled(changed: ChangedTensor, rows: _Rows, total: torch.Tensor, slack: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """DoRA: the sum scaled to its norms, and the slack with it.

    The norm of a column can't be computed from a few rows; there the factor that fits these rows best is used.
    """
    assert changed.magnitude is not None
    if changed.by_column:
        factor = ((rows.after * total).sum(dim=0) / total.square().sum(dim=0).clamp_min(1e-300))[None, :]
        rounding = 2 * unit_of(torch.float32) + 2 * unit_of(changed.source.dtype)
    else:
        magnitude = changed.magnitude().double().reshape(-1)[rows.numbers]
        factor = (magnitude / total.norm(dim=1))[:, None]
        rounding = unit_of(torch.float32) * math.sqrt(total.shape[1]) * 4
    total = total * factor
    return total, slack * factor.abs() + rounding * total.abs()


def contradictions(model: ModelFolder) -> list[str]:
    """Statements of config.json about the weights that the files contradict, one clause each."""
    headers, problems = model.headers, []
    tied, size = model.setting("tie_word_embeddings"), model.setting("vocab_size")
    for head, embedding in _TIED_PAIRS:
        if embedding not in headers:
            continue
        rows = headers[embedding].shape[0]
        if isinstance(size, int) and rows < size:
            problems.append(f"{embedding} has {rows:,} rows, and config.json's vocab_size is {size:,}")
        if tied is True and head in headers and not equal(model, headers[head], model, headers[embedding]):
            problems.append(f"{head} differs from {embedding}, but config.json ties them, so one of the two would be lost")
        if tied is False and head not in headers and "CausalLM" in " ".join(model.config.get("architectures") or ()):
            problems.append(f"config.json does not tie the head to the embeddings, but there is no {head}")
    if model.setting("quantization_config") and not any(
        info.dtype in ("U8", "I8", "I32", "F8_E4M3", "F8_E5M2") for info in headers.values()
    ):
        problems.append("config.json names a quantization, but no weight is quantized")
    return problems
