"""What the journal knows about a job, put together for its report and for `ckptd show`."""

from __future__ import annotations

from daemon.contract import AttemptFacts, JobFacts, StageFacts
from daemon.journal import Journal
from daemon.store.rows import AttemptRow, JobRow


def _attempt(row: AttemptRow) -> AttemptFacts:
    return AttemptFacts(
        number=row.number, strategy=row.strategy, outcome=row.outcome, started=row.started, ended=row.ended,
        log=str(row.folder / "log.txt"), fault=row.fault, estimate=row.estimate,
    )  # fmt: skip


def facts_of(journal: Journal, job: JobRow) -> JobFacts:
    """The job with all its stages and attempts."""
    attempts = journal.attempts(job.id)
    stages = tuple(
        StageFacts(
            name=stage.name, state=stage.state, result=stage.result, fault=stage.fault,
            attempts=tuple(_attempt(row) for row in attempts if row.stage == stage.name),
        )
        for stage in journal.stages(job.id).values()
    )  # fmt: skip
    return JobFacts(
        export_id=job.id, created=job.created, started=job.started, checkpoint=job.checkpoint, base=str(job.base) if job.base else None,
        work=job.work, stages=stages, target=str(job.target), warnings=job.warnings,
    )  # fmt: skip
