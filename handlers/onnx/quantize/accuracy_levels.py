"""Which accuracy level MatMulNBits is run at, chosen by measurement: the fastest that is not worse than it must be.

Called by `weight_only` where `[onnx] accuracy_level` is -1. At level 4 onnxruntime rounds activations to int8 as well, which is
faster on most processors and has cost some models their accuracy; at level 1 it computes in fp32. On the CPU the levels
between are level 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime

from handlers.folder.playback import GraphRun, run
from handlers.graphs.sessions import MappedWeights, open_session
from handlers.graphs.weights import pages
from handlers.onnx.quantize.rewriters.weight_only_rewriter import round_rows

EXACT, FAST = 1, 4
WORSE = 1.25
"""The fast level's error may be so many times the exact one's."""
MUCH_FASTER, MUCH_WORSE = 2.0, 2.0
"""Where the exact level takes more than so many times as long, the fast one's error may be so many times its error. At level 1 products of
8 bits have taken longer than fp32's own."""
NEGLIGIBLE = 0.01
"""An error below this share of the outputs' standard deviation needs no comparison."""
ENOUGH = 2.0
"""Seconds of timing after which two rounds are enough."""
SLOWER = 1.2
"""The fast level is not worth it where it takes more than so many times as long."""


@dataclass(frozen=True)
class LevelMeasurement:
    """What was measured of one level."""

    error: float
    """Root of the mean squared difference from the fp32 graph, in units of its outputs' standard deviation; infinite if not finite."""
    agreement: float
    """Share of rows whose largest value stands at the same place."""
    milliseconds: float
    """Time of the calls that are timed, the fastest of some rounds."""

    @property
    def figures(self) -> dict[str, float]:
        """Rounded."""
        return {"error": round(self.error, 6), "agreement": round(self.agreement, 4), "milliseconds": round(self.milliseconds, 3)}


@dataclass(frozen=True)
class LevelChoice:
    """The level, why it was taken, and what was measured."""

    level: int
    reason: str
    trials: dict[int, LevelMeasurement]
    by_rows: float | None = None
    """Error with activations rounded as coarsely as any processor's kernel does at the fast level; None where it was not tried."""

    @property
    def figures(self) -> dict[str, object]:
        """As the stages' results state them."""
        figures: dict[str, object] = {
            "accuracy_level": self.level,
            "accuracy_level_reason": self.reason,
            "accuracy_level_trials": {str(level): measurement.figures for level, measurement in self.trials.items()},
        }
        return figures if self.by_rows is None else figures | {"accuracy_level_error_by_rows": round(self.by_rows, 6)}


def compare(calls: Iterable[GraphRun], answers: Iterable[dict[str, np.ndarray]]) -> tuple[float, float]:
    """(error, agreement) of each call's first output that is not a cache, as `LevelMeasurement` has them. Holds one call's at a time."""
    squares, agreeing, rows = 0.0, 0, 0
    count, total, squared = 0, 0.0, 0.0
    for call, answer in zip(calls, answers, strict=True):
        name = next((name for name in call.outputs if not name.startswith("present.")), None)
        if name is None:
            continue
        stored = call.outputs[name]
        for wanted, got in zip(_rows(stored), _rows(answer[name]), strict=True):
            if not np.isfinite(got).all():
                return float("inf"), 0.0
            squares += float(np.square(got - wanted, dtype=np.float64).sum())
            agreeing, rows = agreeing + int(wanted.argmax() == got.argmax()), rows + 1
            count, total = count + wanted.size, total + float(wanted.sum(dtype=np.float64))
            squared += float(np.square(wanted, dtype=np.float64).sum())
        if isinstance(stored, np.memmap):
            pages.release(stored)
    spread = np.sqrt(max(0.0, squared / count - (total / count) ** 2))
    return float(np.sqrt(squares / count) / max(float(spread), 1e-9)), agreeing / rows


def _rows(array: np.ndarray) -> Iterator[np.ndarray]:
    """The vectors along the last axis, in fp32."""
    return (row.astype(np.float32, copy=False) for row in array.reshape(-1, array.shape[-1]))


def rounded_session(graph: Path, threads: int) -> onnxruntime.InferenceSession:
    """A graph with what its products multiply rounded to int8 by rows, see `round_rows`; nothing of it stays on disk."""
    model = ir.load(graph)
    round_rows(model)
    path = graph.with_name(f"{graph.name}.rows")  # beside the file of its weights
    try:
        ir.save(model, path)
        return open_session(path, threads, MappedWeights(packed=True))
    finally:
        path.unlink(missing_ok=True)


Sessions = Mapping[str, onnxruntime.InferenceSession]
"""Role → session."""


def measure(
    levels: Mapping[int, Callable[[], Sessions]], calls: Sequence[GraphRun], timed: Sequence[GraphRun] | None = None, *, rounds: int = 5
) -> dict[int, LevelMeasurement]:
    """Run the graphs at each level on calls whose fp32 outputs are known, one level after the other, so that one of them is in memory.

    Of the times of the calls `timed`, else of all, the shortest counts; there are fewer rounds where they are long: what is looked for is a
    difference of a fifth.
    """
    measurements = {}
    for level, opened in levels.items():
        sessions = opened()
        error, agreement = compare(calls, (run(sessions[call.role], call.feeds) for call in calls))
        times, began = list[float](), time.perf_counter()
        for number in range(rounds):
            if number > 1 and time.perf_counter() - began > ENOUGH / len(levels):
                break
            started = time.perf_counter()
            for call in calls if timed is None else timed:
                run(sessions[call.role], call.feeds)
            times.append(time.perf_counter() - started)
        measurements[level] = LevelMeasurement(error, agreement, 1000 * min(times))
        del sessions
    return measurements


def choose(trials: dict[int, LevelMeasurement], by_rows: float | None = None) -> LevelChoice:
    """The level to run at, EXACT or FAST. `by_rows`: the fast one's error where a processor rounds most coarsely."""
    exact, fast = trials[EXACT], trials[FAST]
    worse = MUCH_WORSE if exact.milliseconds > MUCH_FASTER * fast.milliseconds else WORSE
    limit = max(worse * exact.error, NEGLIGIBLE)
    if not fast.error <= limit:
        reason = f"at level {FAST} the error is {fast.error:.3g} of the outputs' standard deviation, at level {EXACT} {exact.error:.3g}"
        return LevelChoice(EXACT, reason, trials, by_rows)
    if by_rows is not None and not by_rows <= limit:
        reason = (
            f"at level {FAST} the error is up to {by_rows:.3g} of the outputs' standard deviation on ARM64, at level {EXACT}"
            f" {exact.error:.3g}"
        )
        return LevelChoice(EXACT, reason, trials, by_rows)
    if fast.milliseconds > SLOWER * exact.milliseconds:
        return LevelChoice(EXACT, f"level {FAST} is not faster here", trials, by_rows)
    return LevelChoice(
        FAST, f"its error is {fast.error:.3g} of the outputs' standard deviation, level {EXACT}'s {exact.error:.3g}", trials, by_rows
    )
