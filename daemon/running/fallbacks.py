"""Adds the stages of a less quantized form to a job in which a variant's check failed. The rule is `daemon.contract.jobs.fallbacks`'s.

A part of the runner, used by its thread before stages are started: nothing that comes after all checks (speed, report) can have begun.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from daemon.contract.events import Event
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.plan import CHECK, stage_names
from daemon.contract.jobs.verdicts import way_down_of
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow, StageRow

log = structlog.get_logger("runner")


def take_steps_down(journal: Journal, job: JobRow, stages: Mapping[str, StageRow]) -> bool:
    """Record the stages of the forms that now take the place of others; True where there were any.

    Once the report has begun nothing is added: what it says is what was decided.
    """
    report = stages.get("report")
    if report is not None and report.state != "waiting":
        return False
    down, checked = way_down_of(job.work, stages), _checked(stages)
    new = [step for step in down.steps if step.taken in down.added and step.taken not in checked]
    if not new:
        return False
    names = stage_names(job.work, job.checkpoint.layout, down.added)
    if not journal.jobs.reconfigure(job.id, job.work, list(dict.fromkeys([*names, *stages]))):
        return False
    for step in new:
        log.warning(
            "fallback taken", event_id=Event.STAGE_FALLBACK, stage=f"{CHECK}{step.wanted}", wanted=step.wanted, taken=step.taken,
            reason=step.reason,
        )  # fmt: skip
    return True


def added_to(work: Work, stages: Mapping[str, StageRow]) -> tuple[str, ...]:
    """The forms that take the place of others in a job with these stages that is to be done by `work`, by the checks that it has."""
    checked = _checked(stages)
    return tuple(name for name in way_down_of(work, stages).added if name in checked)


def _checked(stages: Mapping[str, StageRow]) -> set[str]:
    return {name.removeprefix(CHECK) for name in stages if name.startswith(CHECK)}
