"""Tries the export strategies one after the other; the diagnosis of each failure decides which are tried next.

Called by the stages that export. `diagnosis` says what an error means; an unknown error does not change the order.
"""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from daemon.contract.faults.advice import shortened
from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.child import foreign
from handlers.families.base import OPERATION, NotApplicableError
from handlers.onnx.export.failures.diagnosis import Diagnosis, diagnose

if TYPE_CHECKING:
    from handlers.onnx.tracing.strategies import Strategy

Result = TypeVar("Result")

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_WIDTH = 200


@dataclass(frozen=True)
class StrategyFailure:
    """A strategy that did not work, and its error in one line."""

    strategy: str
    reason: str
    diagnosis: Diagnosis
    seconds: float = 0.0
    words: str = ""
    """The same as a clause for a sentence."""


class StrategyResult(NamedTuple, Generic[Result]):
    """The strategy that worked, its result, and the failures before it."""

    strategy: Strategy
    result: Result
    failures: list[StrategyFailure]


class AllStrategiesFailedError(Permanent):
    """All strategies failed; `failures` lists them."""

    def __init__(self, failures: Sequence[StrategyFailure], path: str) -> None:
        self.failures = tuple(failures)
        by_words: dict[str, list[str]] = {}
        for failure in failures:
            by_words.setdefault(failure.words or failure.reason, []).append(failure.strategy)
        tried = (
            "; ".join(f"{', '.join(names)}: {words}" for words, names in by_words.items()) or "there is no export strategy for this model"
        )
        remedy = next((failure.diagnosis.manual for failure in failures if failure.diagnosis.manual), "read the attempt's log")
        cause = f"no strategy gave a graph that agrees with torch: {tried}"
        super().__init__(FaultCode.EXPORT_FAILED, OPERATION, cause, f"{remedy}; or leave the onnx variants out", path=path)


def first_line(error: BaseException) -> str:
    """Type and first line of the original cause of an error, at a limited length; exporters wrap the cause in long messages."""
    error = _root(error)
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"[:_WIDTH].rstrip(".")


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _clause(error: BaseException) -> str:
    """What the original cause says, without colours; errors of ours are clauses already."""
    root = _root(error)
    ours = type(root).__module__.startswith("handlers.")
    return shortened(" ".join(str(root).split()), _WIDTH).rstrip(".") if ours else _COLOUR.sub("", foreign.in_words(root))


def _not_the_strategys_fault(error: Exception) -> bool:
    """Whether the next strategy would fail in the same way: the disk is full, or the error is one of ours."""
    return isinstance(error, CkptdError) or (isinstance(error, OSError) and error.errno is not None)


def try_strategies(
    strategies: Sequence[Strategy], attempt: Callable[[Strategy], Result], *, path: str, on_failure: Callable[[StrategyFailure], None]
) -> StrategyResult[Result]:
    """Try the strategies in order, or as each failure's diagnosis says; return the first that works.

    Raises AllStrategiesFailedError when all fail, Retryable when the reason was too little memory. `on_failure` is called with each
    failure.
    """
    failures: list[StrategyFailure] = []
    untried = queue = list(strategies)
    while queue:
        strategy = queue[0]
        untried = [other for other in untried if other is not strategy]
        started = time.monotonic()
        try:
            return StrategyResult(strategy, attempt(strategy), failures)
        except NotApplicableError:
            queue = queue[1:]
            continue
        except Exception as error:
            if _not_the_strategys_fault(error):
                raise
            traceback.print_exc()
            failure = StrategyFailure(
                strategy.name, first_line(error), diagnose(error), round(time.monotonic() - started, 3), _clause(error)
            )
            _forget(error)
        failures.append(failure)
        on_failure(failure)
        queue = _next(untried, failures)
    raise _out_of_memory(failures, path) or AllStrategiesFailedError(failures, path)


def _forget(error: BaseException | None) -> None:
    """Release what the failed attempt's stack frames hold, above all the model, before the next attempt loads another."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _next(left: Sequence[Strategy], failures: Sequence[StrategyFailure]) -> list[Strategy]:
    """The strategies that remain: those that the last diagnosis names, then those that earlier ones named; all of them if one error was
    unknown."""
    telling = [failure.diagnosis.then for failure in reversed(failures) if failure.diagnosis.code != "not-installed"]
    wanted: list[Strategy] = []
    for names in telling or [None]:
        chosen = (
            left
            if names is None
            else sorted((strategy for strategy in left if strategy.name in names), key=lambda strategy: names.index(strategy.name))
        )
        wanted += [strategy for strategy in chosen if strategy not in wanted]
    return wanted


def _out_of_memory(failures: Sequence[StrategyFailure], path: str) -> Retryable | None:
    """Retryable if the last real attempt failed because of memory: more of it may be free at another time."""
    short = [failure for failure in failures if failure.diagnosis.code == "out-of-memory"]
    if not short:
        return None
    diagnosis = short[-1].diagnosis
    return Retryable(FaultCode.OUT_OF_MEMORY, OPERATION, f"{diagnosis.meaning} ({short[-1].reason})", diagnosis.manual, path=path)


def attempts(climbed: StrategyResult[Any] | None, failures: Sequence[StrategyFailure], seconds: float = 0.0) -> list[dict[str, object]]:
    """All attempts as JSON values for figures and report."""
    rows: list[dict[str, object]] = [
        {
            "strategy": failure.strategy, "outcome": "failed", "seconds": failure.seconds, "code": failure.diagnosis.code,
            "diagnosis": failure.diagnosis.meaning, "error": failure.reason,
        }
        for failure in failures
    ]  # fmt: skip
    if climbed is not None:
        rows.append({"strategy": climbed.strategy.name, "outcome": "succeeded", "seconds": seconds})
    return rows
