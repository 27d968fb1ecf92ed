"""The ways to export a model, and the ladder that tries one after the other.

Called by the onnx stage. A strategy is a row of a table; a new way out of an exporter's failure is a new row.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from daemon.contract import Fallback
from daemon.errors import CkptdError, Permanent
from handlers.onnx import exporters
from handlers.onnx.families.base import Tracing

Result = TypeVar("Result")

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WIDTH = 200


@dataclass(frozen=True)
class Strategy:
    """One way to export."""

    name: str
    export: exporters.Exporter
    attention: str
    """transformers' attention implementation that is traced."""
    experts: str | None = None
    """transformers' implementation of mixtures of experts that is traced; a dense model does not take such a strategy."""
    newest_opset: int | None = None
    """The newest operator set that this way can write; a newer one asked for becomes this one, as a recorded fallback."""

    @property
    def tracing(self) -> Tracing:
        """How the model is made ready."""
        return Tracing(self.attention, self.experts)

    def opset(self, wanted: int) -> int:
        """The operator set that this strategy writes when `wanted` is asked for."""
        return wanted if self.newest_opset is None else min(wanted, self.newest_opset)


# Eager attention first: below opset 23 it traces to fewer nodes than sdpa, and with 23 to as many.
# The last row is for mixtures of experts: it looks each token's experts up, so a long prefill needs much memory.
STRATEGIES: tuple[Strategy, ...] = (
    Strategy("dynamo-eager", exporters.dynamo, "eager"),
    Strategy("dynamo-sdpa", exporters.dynamo, "sdpa"),
    Strategy("legacy-eager", exporters.legacy, "eager", newest_opset=exporters.LEGACY_NEWEST_OPSET),
    Strategy("dynamo-experts", exporters.dynamo, "eager", experts="batched_mm"),
)


class NotApplicableError(Exception):
    """A strategy is for another kind of model: passing it over is no failure."""


@dataclass(frozen=True)
class Failure:
    """A strategy that did not work, and its error in one line."""

    strategy: str
    reason: str


def first_line(error: BaseException) -> str:
    """Type and first line of what an error goes back to, bounded; exporters wrap the cause in pages of advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:_WIDTH].rstrip(".")


def _not_the_strategys_fault(error: Exception) -> bool:
    """A full disk, exhausted memory or an error already understood would meet the next strategy too."""
    if isinstance(error, OSError):
        return error.errno is not None
    return isinstance(error, CkptdError | MemoryError) or "can't allocate memory" in str(error)


def starting_at(strategies: Sequence[Strategy], name: str) -> tuple[Strategy, ...]:
    """The rows from `name` on; all of them for "default". Permanent for a name that the table does not hold."""
    names = [strategy.name for strategy in strategies]
    if name == "default":
        return tuple(strategies)
    if name not in names:
        raise Permanent(
            "unknown-strategy", "choose how to export to ONNX", f"there is no strategy {name}", f"use one of {', '.join(names)}"
        )
    return tuple(strategies[names.index(name) :])


def climb(
    strategies: Sequence[Strategy], attempt: Callable[[Strategy], Result], *, path: str, on_failure: Callable[[Failure], None]
) -> tuple[Strategy, Result, list[Fallback]]:
    """Try the strategies in order; give the first that works, its result, and a fallback when it was not the first.

    Raises Permanent `export-failed` naming every strategy with its error when none works. `on_failure` is told of each one.
    """
    failures: list[Failure] = []
    for strategy in strategies:
        try:
            result = attempt(strategy)
        except NotApplicableError:
            continue
        except Exception as error:
            if _not_the_strategys_fault(error):
                raise
            traceback.print_exc()
            failures.append(Failure(strategy.name, first_line(error)))
            on_failure(failures[-1])
            continue
        reasons = "; ".join(f"{failure.strategy}: {failure.reason}" for failure in failures)
        return strategy, result, [Fallback(wanted=strategies[0].name, taken=strategy.name, reason=reasons)] if failures else []
    raise Permanent(
        "export-failed",
        "export the model to ONNX",
        "no strategy gave a graph that agrees with torch: " + "; ".join(f"{failure.strategy}: {failure.reason}" for failure in failures),
        "set export.opset to 18 if it is another, or leave the onnx variants out; the attempt's log has each error in full",
        path=path,
    )
