"""How an artifact does on the long text, beside the live model and the merged one; `faults.py` says what that means.

Called by `checks.reference` and `checks.examination`. A fault that begins behind some position shows in the course of the errors, where
the few tokens of the prompts end long before it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from daemon.contract.jobs.figures import LongFigures
from daemon.contract.jobs.plan import is_over_base
from handlers.validate.arithmetic import growth
from handlers.validate.arithmetic.comparison import Comparison, NotFiniteError, Rows, Spread, in_deviations
from handlers.validate.engines.task_profile import ValidatedTask
from handlers.validate.length import course
from handlers.validate.length.text import LongText
from handlers.validate.workers.client import EngineWorker, WorkerRefused

FILE = "long.npy"
TIES = 0.02
"""Share of positions at which the last bit of a weight in 16 bits may decide what a sound merge says, as in `checks.rounded`. RandLoRA
moves the weights of a BERT so far that its merge in fp16, PEFT's too, is 0.81 standard deviations away at one position in 48 and at most
0.0064 at the others. At such positions two orders of the same sums in fp32 are 100 times as far apart as elsewhere."""
_Z = 1.96
FLOOR = 1e-5
"""Mean |Δ|, in standard deviations, below which errors are not told apart: rounding in fp32 makes as much."""


def read_by_live(live: EngineWorker, text: LongText | str, out: Path) -> LongText | str:
    """Give the text with the live model's rows, which `out` receives; or why there are none, as a clause. Raises WorkerFailed where the
    worker is lost."""
    if isinstance(text, str):
        return text
    try:
        live.ask(text.asked(out, text.pieces))
    except WorkerRefused as error:
        return f"the live model can't be run over a text of {len(text.ids):,} tokens: {error.cause}"
    if not np.isfinite(np.load(out)).all():
        return f"the live model's outputs over a text of {len(text.ids):,} tokens hold values that are not finite"
    return replace(text, logits=out)


def measure(
    worker: EngineWorker, text: LongText | str | None, subject: ValidatedTask, outputs: Path, merged: Path | None, file: str = FILE
) -> tuple[LongFigures, str | None]:
    """Give the figures, and why the artifact can't be used at length, as a clause. `text`: or why there is none. `outputs` receives its
    rows under the name `file`; `merged`: the folder of the merged model's. Raises WorkerFailed where the worker is lost."""
    if not isinstance(text, LongText):
        return LongFigures(tokens=None, why=text), None
    long = LongFigures(tokens=len(text.ids), why=text.limited, window=text.window, original=text.original)
    what = "a long text" if file == FILE else "a text of rare tokens"
    try:
        worker.ask(text.asked(outputs / file, text.own_pieces))
    except WorkerRefused as error:
        return long, f"on {what} of {len(text.ids):,} tokens it can't be run: {error.cause}"
    assert text.logits is not None
    logits = np.load(outputs / file)
    wanted = [np.load(path)[: len(text.keep)] for path in (text.logits, text.rounded) if path is not None]
    if len(wanted) > 1:  # the live model with rounded weights, where that is what the artifact has
        wanted.sort(key=lambda rows: float(np.abs(logits - rows).mean()) if logits.shape == rows.shape else 0.0)
    try:
        text = replace(text, halves=text.halves and not is_over_base(worker.name))
        return _compared(subject, text, long, wanted[0], logits, None if merged is None else merged / file)
    except ValueError as error:
        return long, f"on {what} of {len(text.ids):,} tokens {error}"


def _compared(
    subject: ValidatedTask, text: LongText, long: LongFigures, wanted: np.ndarray, logits: np.ndarray, merged: Path | None
) -> tuple[LongFigures, str | None]:
    spread = Spread()
    spread.add(wanted)
    unit = spread.unit(subject.head)
    ways = list[tuple[Comparison, Rows, np.ndarray]]()
    for rows in np.split(logits, max(1, len(logits) // len(wanted))):
        comparison = Comparison(subject.head, subject.thresholds)
        finite = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
        if not finite.all():
            place = text.keep[int(np.argmin(finite))]
            raise NotFiniteError(f"its outputs hold values that are not finite, from position {place:,} on")
        ways.append((comparison, comparison.add(wanted, rows), rows))
    comparison, compared, rows = max(ways, key=lambda way: float(way[1].means.max()))  # of several ways to decode, the farthest
    long = long.plus(**{**comparison.figures(unit).given, **_intervals(compared), **_without_ties(compared, unit, halves=text.halves)})
    errors = compared.means
    if merged is not None and merged.is_file() and len(exact := np.load(merged)) >= len(rows):
        difference = np.abs(exact[: len(rows)].astype(np.float64) - rows)
        long, errors = long.plus(merged_error_max_absolute=float(difference.max())), difference.reshape(len(rows), -1).mean(axis=1)
    if (late := growth.of([errors])) is not None:
        long = long.plus(growth=late[0])
    if (step := course.largest_step([in_deviations(float(error), unit) for error in errors], FLOOR)) is not None:
        long = long.plus(step_position=text.keep[step.place], step_ratio=step.ratio, step_behind=step.behind)
    return long, None


def _intervals(compared: Rows) -> dict[str, tuple[float, float]]:
    """Give 95 % intervals over the positions: of the share of agreement Wilson's, of the mean divergence the normal one."""
    intervals, share, nats = {}, compared.summary.agreement, compared.divergences
    if share is not None:
        intervals["agreement_interval"] = _of_share(share, len(compared.means))
    if len(nats) > 1:
        by = _Z * float(nats.std(ddof=1)) / math.sqrt(len(nats))
        intervals["kl_interval"] = (max(0.0, float(nats.mean()) - by), float(nats.mean()) + by)
    return intervals


def _of_share(share: float, count: int) -> tuple[float, float]:
    """Give Wilson's 95 % interval of a share of so many positions."""
    middle, square = (share + _Z**2 / (2 * count)) / (1 + _Z**2 / count), share * (1 - share) / count + (_Z / (2 * count)) ** 2
    by = _Z * math.sqrt(square) / (1 + _Z**2 / count)
    return middle - by, middle + by


def ties(count: int) -> int:
    """Of so many positions, the most whose share is not certainly above TIES: 0 of 8, 2 of 48."""
    return next(number for number in range(count + 1) if number == count or _of_share((number + 1) / count, count)[0] > TIES)


def _without_ties(compared: Rows, unit: float, *, halves: bool) -> dict[str, float | int | None]:
    """Give the error and the divergence without the positions that rounding may decide; `halves`: the merge rounds to 16 bits."""
    count = ties(len(compared.errors)) if halves else 0
    kept = np.argsort(compared.errors, kind="stable")[: len(compared.errors) - count]
    nats = compared.divergences
    return {
        "ties": count,
        "error_without_ties": in_deviations(float(compared.errors[kept].max()), unit),
        "kl_without_ties": float(nats[kept].mean()) if len(nats) else None,
    }
