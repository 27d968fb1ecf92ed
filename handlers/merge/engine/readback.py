"""After the merge: do the written files hold base + adapter, computed again in another way?

Called by `handlers.merge.engine.check_plan` before a merge counts as done. The output's bytes are read back. Changed tensors are
multiplied with a random vector, W'x against Wx + s·B(Ax), and some of their rows compared element by element with a float64
computation; the others are compared with the base's bytes. It looks at samples, or at everything when asked; a fault outside of the
sample is not seen.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.merge.weights.sources import Source, StoredSource, row_elements
from handlers.models.files import TensorInfo, read_json, setting, tensors

BLOCK = 1 << 20
"""Elements read at once."""
SAMPLE = 1 << 13
"""Elements of one sample; there are three of each tensor: its first rows, its last ones, and some in between."""
FAR = 4.0
"""Roundings add up like a random walk: a sum beyond so many times the root of the summed squares of their limits, more than
seven standard deviations, is no rounding."""

Beat = Callable[[int], None]
"""Is told the bytes of each step; what it raises ends the work."""
_TIED_PAIRS = (("lm_head.weight", "model.embed_tokens.weight"), ("lm_head.weight", "transformer.wte.weight"))


@dataclass(frozen=True)
class Probe:
    """A tensor that an adapter changed by `scale · left @ right`, trailing dimensions of the tensor taken as one."""

    module: str
    tensor: str
    source: Source
    """What the base holds."""
    factors: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    """Gives left (rows × rank) and right (rank × columns); for fused experts each with the expert as first dimension."""
    scale: float = 1.0
    magnitude: Callable[[], torch.Tensor] | None = None
    """DoRA: the norms that rows (or columns) of the sum are brought to."""
    by_column: bool = False
    """DoRA's norms belong to columns, as in embeddings and Conv1D."""


def check_merge(
    base: Mapping[str, Source],
    output: Path,
    probes: Sequence[Probe],
    *,
    replaced: Mapping[str, Callable[[], torch.Tensor]] | None = None,
    dropped: Collection[str] = (),
    full: bool = False,
    beat: Beat | None = None,
    flagged: bool = True,
) -> list[str]:
    """What is wrong with the merged model in `output`, one clause each; empty when nothing was found.

    `base`: what it was made of, each source with the dtype that is to be written. `replaced`: tensors that came from the adapter (new
    ones as well), by what gives their values; `dropped`: tensors of the base that are not written on purpose; `flagged`: config.json is
    held against the weights. Permanent when the output can't be read at all.
    """
    replaced, tell = replaced or {}, beat or (lambda count: None)
    headers = tensors(output)
    written = {name: StoredSource(name, output / info.file, info) for name, info in headers.items()}
    changed = {probe.tensor: probe for probe in probes}
    expected = (base.keys() - set(dropped)) | replaced.keys() | changed.keys()
    problems = [f"{name} is missing" for name in sorted(expected - written.keys())]
    problems += [f"{name} belongs to neither base nor adapter" for name in sorted(written.keys() - expected)]
    with torch.inference_mode():
        for name, found in written.items():
            if name not in expected:
                continue
            if name in changed:
                problem = _changed(changed[name], found, full, tell)
            elif name in replaced:
                problem = _replaced(replaced[name](), found)
            else:
                problem = _unchanged(base[name], found, full, tell)
            problems += [f"{name} {problem}"] if problem else []
    return problems + (flags(output, headers) if flagged else [])


def wrong(problems: Sequence[str], output: Path) -> Permanent:
    """The error for a merge that did not pass its check."""
    more = f" (and {len(problems) - 1} more)" if problems[1:] else ""
    return Permanent(
        FaultCode.MERGE_NOT_EXACT,
        "check the merged weights",
        f"{problems[0]}{more}",
        "look at the disk and the memory of this machine, then merge again; if it comes again, report it with the adapter's configuration",
        path=output,
    )


def _differs(base: Source, found: Source) -> str | None:
    if base.shape != found.shape:
        return f"has the shape {list(found.shape)}, where {list(base.shape)} was expected"
    if base.dtype != found.dtype:
        return f"is {_name(found.dtype)}, where {_name(base.dtype)} was expected"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _samples(name: str, shape: tuple[int, ...], elements: int = SAMPLE) -> list[tuple[int, int]]:
    """(first row, rows) of up to three samples; the one in between depends on the name alone, so that a check can be repeated."""
    total = shape[0] if shape else 1
    rows = min(total, max(1, elements // max(1, row_elements(shape))))
    between = zlib.crc32(name.encode()) % max(1, total - rows + 1)
    return [(first, rows) for first in sorted({0, between, total - rows})]


def _blocks(name: str, shape: tuple[int, ...], full: bool) -> Iterator[tuple[int, int]]:
    """(first row, rows) of what is to be read of a tensor."""
    if 0 in shape:
        return
    if not full:
        yield from _samples(name, shape)
        return
    rows = max(1, BLOCK // max(1, row_elements(shape)))
    for first in range(0, shape[0] if shape else 1, rows):
        yield first, min(rows, (shape[0] if shape else 1) - first)


def _rows(source: Source, first: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(count, row_elements(source.shape), dtype=dtype)
    source.rows(first, count, out)
    return out


def _unchanged(base: Source, found: Source, full: bool, tell: Beat) -> str | None:
    """Why a tensor that should be the base's is not; None when it is, in what was looked at."""
    if problem := _differs(base, found):
        return problem
    for first, count in _blocks(found.name, found.shape, full):
        one, other = (_rows(source, first, count, found.dtype).view(torch.uint8) for source in (base, found))
        tell(one.numel())
        if not torch.equal(one, other):
            row = first + int((one != other).any(dim=1).nonzero()[0, 0])
            return f"should be the base's, but differs from it in row {row}"
    return None


def _replaced(wanted: torch.Tensor, found: Source) -> str | None:
    if tuple(wanted.shape) != found.shape:
        return f"has the shape {list(found.shape)}, where the adapter's is {list(wanted.shape)}"
    values = _rows(found, 0, found.shape[0] if found.shape else 1, found.dtype).view(wanted.shape)
    same = torch.equal(values.view(-1).view(torch.uint8), wanted.to(found.dtype).contiguous().view(-1).view(torch.uint8))
    return None if same else "should be the adapter's, but is not"


def _changed(probe: Probe, found: Source, full: bool, tell: Beat) -> str | None:
    """Why a tensor is not base + delta; None when it is, in what was looked at."""
    if problem := _differs(probe.source, found):
        return problem
    left, right = probe.factors()
    projection = None if probe.magnitude is not None or left.ndim == 3 else _Projection(probe, found, left, right)
    # The samples in one go: of so few rows a call costs more than its arithmetic.
    chosen, before, after = _pair(probe, found, _samples(found.name, found.shape), tell)
    problem = _elements(probe, found, chosen, before.double(), after.double(), left, right)
    if problem := problem or (projection.problem(chosen, before, after) if projection else None):
        return problem
    if not full or projection is None:
        return None
    for block in _blocks(found.name, found.shape, full):
        if problem := projection.problem(*_pair(probe, found, [block], tell)):
            return problem
    return None


def _pair(probe: Probe, found: Source, pieces: Sequence[tuple[int, int]], tell: Beat) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Numbers of the rows in `pieces`, and these rows before and after the merge, in fp32."""
    chosen = torch.cat([torch.arange(first, first + count) for first, count in pieces])
    before, after = (torch.empty(len(chosen), row_elements(found.shape)) for _ in range(2))
    done = 0
    for first, count in pieces:
        for source, out in ((probe.source, before), (found, after)):
            source.rows(first, count, out[done : done + count])
        done += count
    tell(2 * after.numel() * found.dtype.itemsize)
    return chosen, before, after


class _Projection:
    """W'x against Wx + s·B(Ax) for one random x of ±1, with the sum of all roundings as a bound."""

    def __init__(self, probe: Probe, found: Source, left: torch.Tensor, right: torch.Tensor) -> None:
        seed = torch.Generator().manual_seed(zlib.crc32(probe.tensor.encode()))
        self._x = torch.randint(0, 2, (right.shape[1],), generator=seed).float().mul_(2).sub_(1)
        self._probe, self._dtype, self._left = probe, found.dtype, left
        self._inner = probe.scale * (right.double() @ self._x.double())
        self._reach = abs(probe.scale) * right.norm(dim=1).double()
        self._fp32 = _unit(torch.float32) * math.sqrt(len(self._x) + len(right))

    def problem(self, chosen: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> str | None:
        """What is wrong with the rows of these numbers; None when nothing is."""
        factor = self._left[chosen].double()
        wanted = before @ self._x + (factor @ self._inner).float()
        # The sum is rounded once, delta perhaps before it, and everything in fp32 on the way, where it may cancel out.
        rounded = after.norm(dim=1) + (after - before).norm(dim=1)
        summed = rounded + before.norm(dim=1) + (factor.abs() @ self._reach).float()
        bound = FAR * (_unit(self._dtype) * rounded + self._fp32 * summed + _tiny(self._dtype) * math.sqrt(len(self._x)))
        off = (after @ self._x - wanted).abs()
        if bool((off <= bound).all()):
            return None
        row = int((off / bound).nan_to_num(math.inf).argmax())
        return (
            f"is not base + delta ({self._probe.module}): a random probe of row {int(chosen[row])} is off by {float(off[row]):.3g}, "
            f"{float(off[row] / bound[row]):.1f} times what rounding explains"
        )


def _unit(dtype: torch.dtype) -> float:
    """The largest relative error of one rounding to the dtype."""
    return torch.finfo(dtype).eps / 2


def _tiny(dtype: torch.dtype) -> float:
    """The largest absolute error of one rounding among the smallest numbers of the dtype."""
    return float(torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps)


def _elements(
    probe: Probe, found: Source, chosen: torch.Tensor, before: torch.Tensor, after: torch.Tensor, left: torch.Tensor, right: torch.Tensor
) -> str | None:
    """Compare the rows of these numbers element by element with base + delta in float64, within what the engine's roundings can do."""
    across, factor = (right[chosen] if left.ndim == 3 else right).double(), left[chosen].double()
    delta, spread = (factor @ across).flatten(1), (factor.abs() @ across.abs()).flatten(1)
    total = before + probe.scale * delta
    # Delta in fp32 (a sum over the rank), rounded perhaps to the output's dtype before the addition; then the sum, once.
    slack = _unit(torch.float32) * (right.shape[-2] + 8) * (abs(probe.scale) * spread + before.abs())
    slack += _unit(found.dtype) * (abs(probe.scale) * delta.abs() + slack)
    if probe.magnitude is not None:
        total, slack = _rescaled(probe, chosen, total, slack, after)
    bound = 1.01 * _unit(found.dtype) * (total.abs() + slack) + slack + _tiny(found.dtype)
    off = (after - total).abs()
    if bool((off <= bound).all()):
        return None
    place = int((off / bound).nan_to_num(math.inf).argmax())
    row, column = int(chosen[place // off.shape[1]]), place % off.shape[1]
    value, wanted = float(after.reshape(-1)[place]), float(total.reshape(-1)[place])
    return f"is not base + delta ({probe.module}): element [{row}, {column}] is {value:.6g} and should be {wanted:.6g}"


def _rescaled(
    probe: Probe, chosen: torch.Tensor, total: torch.Tensor, slack: torch.Tensor, after: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """DoRA: the sum brought to its norms, and the slack with it.

    The norm of a column can't be told from a few rows; then the factor is the one that fits them best.
    """
    assert probe.magnitude is not None
    if probe.by_column:
        factor = ((after * total).sum(dim=0) / total.square().sum(dim=0).clamp_min(1e-300))[None, :]
        rounding = 2 * _unit(torch.float32) + 2 * _unit(probe.source.dtype)
    else:
        magnitude = probe.magnitude().double().reshape(-1)[chosen]
        factor = (magnitude / total.norm(dim=1))[:, None]
        rounding = _unit(torch.float32) * math.sqrt(total.shape[1]) * 4
    total = total * factor
    return total, slack * factor.abs() + rounding * total.abs()


def flags(output: Path, found: Mapping[str, TensorInfo]) -> list[str]:
    """What config.json says about the weights and the files do not bear out."""
    config = read_json(output / "config.json", "read the merged model's configuration") if (output / "config.json").is_file() else {}
    problems: list[str] = []
    tied, size = setting(config, "tie_word_embeddings"), setting(config, "vocab_size")
    for head, embedding in _TIED_PAIRS:
        if embedding not in found:
            continue
        rows = found[embedding].shape[0]
        if isinstance(size, int) and rows < size:
            problems.append(f"{embedding} has {rows:,} rows, and config.json's vocab_size is {size:,}")
        if tied is True and head in found and not _same(output, found[head], found[embedding]):
            problems.append(f"{head} differs from {embedding}, yet config.json ties them, so that one of the two would be lost")
        if tied is False and head not in found and "CausalLM" in " ".join(config.get("architectures") or ()):
            problems.append(f"config.json does not tie the head to the embeddings, yet there is no {head}")
    if setting(config, "quantization_config") and not any(
        info.dtype in ("U8", "I8", "I32", "F8_E4M3", "F8_E5M2") for info in found.values()
    ):
        problems.append("config.json names a quantization, yet no weight is quantized")
    return problems


def _same(folder: Path, one: TensorInfo, other: TensorInfo) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    head, embedding = (StoredSource("", folder / info.file, info) for info in (one, other))
    return _unchanged(head, embedding, True, lambda count: None) is None
