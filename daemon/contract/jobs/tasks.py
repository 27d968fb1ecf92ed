"""`[[validate.tasks]]`: a user's own evaluation, what it is run on, and what its outcome does to a verdict. Light but for the options.

The stages `evaluate-live` and `evaluate-VARIANT` run the tasks (`handlers.validate.tasks`). The second ones give a check of their own,
which is put together with that of `check-VARIANT` here, so that runner, report and publication see one verdict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Protocol

from daemon.contract.jobs.messages import ArtifactCheck, StageResult, Verdict

if TYPE_CHECKING:
    from daemon.contract.faults.errors import Fault

EVALUATE = "evaluate-"
"""What the name of a stage begins with that runs the tasks on an artifact; that of its variant follows."""
LIVE = f"{EVALUATE}live"
"""The stage that runs them on the live model."""
HARNESS = "lm-eval"
"""The toolchain that lm-evaluation-harness is in."""


class TaskTerms(Protocol):
    """What of a task decides verdicts, and where it runs."""

    @property
    def name(self) -> str: ...
    @property
    def variants(self) -> tuple[str, ...]: ...
    @property
    def drop(self) -> float | None: ...


class StageEnd(Protocol):
    """What of a stage decides the way down: the journal's row and the facts of a report both have it."""

    @property
    def state(self) -> str: ...
    @property
    def result(self) -> StageResult | None: ...
    @property
    def fault(self) -> Fault | None: ...


def tasks_of(tasks: Iterable[TaskTerms], variant: str) -> list[str]:
    """Names of the tasks that are run on a variant."""
    return [task.name for task in tasks if not task.variants or variant in task.variants]


def evaluated(tasks: Collection[TaskTerms], variants: Iterable[str]) -> tuple[str, ...]:
    """The variants that any task is run on."""
    return tuple(name for name in variants if tasks_of(tasks, name))


def with_evaluation(check: ArtifactCheck, stage: StageEnd | None, tasks: Iterable[TaskTerms]) -> ArtifactCheck:
    """An artifact's check with what `stage`, that of its evaluation, says of it. What failed or was not verified before stays so.

    An evaluation that could not be run leaves a check as it is, unless one of its tasks has a limit: nobody knows then whether it is kept.
    """
    if stage is None:
        return check
    own = next(iter(stage.result.checks), None) if stage.result else None
    if own is None:
        limited = tasks_of([task for task in tasks if task.drop is not None], check.variant)
        if not limited or stage.state not in ("failed", "skipped") or check.verdict is not Verdict.PASSED:
            return check
        fault = stage.fault or (stage.result.fault if stage.result else None)
        why = f": {fault.cause}" if fault else ""
        reason = f"the evaluation {', '.join(limited)}, which has a limit, could not be run{why}"
        return check.model_copy(update={"verdict": Verdict.UNVERIFIED, "reasons": (reason,), "remedy": fault.remedy if fault else None})
    figures = {**check.figures, **own.figures}
    if check.verdict is not Verdict.PASSED or own.verdict is Verdict.PASSED:
        return check.model_copy(update={"figures": figures})
    return own.model_copy(update={"figures": figures})
