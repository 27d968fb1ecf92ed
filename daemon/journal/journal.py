"""The journal: jobs, stages, attempts and outbox. Work counts as done only if the journal says so.

Intent is committed before a stage starts, the result after it ended; each method of its parts is one transaction.
The schema itself refuses illegal transitions. Called by the watcher (new jobs), the runner and the notifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from daemon.contract.jobs.messages import AttemptFacts, JobFacts, StageFacts
from daemon.journal.attempts import Attempts
from daemon.journal.controls import Controls
from daemon.journal.database import Database
from daemon.journal.jobs import Jobs
from daemon.journal.outbox import Outbox
from daemon.journal.rows import AttemptRow, JobRow, StageRow
from daemon.journal.sightings import Sightings
from daemon.journal.stages import Stages


class Journal:
    """The journal at `path`: one part a concern, all over one file. Raises as `Database` does."""

    def __init__(self, path: Path) -> None:
        self.database = Database(path)
        self.jobs = Jobs(self.database)
        self.stages = Stages(self.database)
        self.attempts = Attempts(self.database)
        self.sightings = Sightings(self.database)
        self.controls = Controls(self.database)
        self.outbox = Outbox(self.database)

    def close(self) -> None:
        """Close the file."""
        self.database.close()


def _attempt(row: AttemptRow) -> AttemptFacts:
    return AttemptFacts(
        number=row.number, strategy=row.strategy, outcome=row.outcome, started=row.started, ended=row.ended,
        log=str(row.folder / "log.txt"), fault=row.fault, estimate=row.estimate,
    )  # fmt: skip


def facts_of(journal: Journal, job: JobRow) -> JobFacts:
    """The job with all its stages and attempts."""
    return facts_from(job, journal.stages.of(job.id).values(), journal.attempts.of(job.id))


def facts_from(job: JobRow, rows: Iterable[StageRow], attempts: Sequence[AttemptRow] = ()) -> JobFacts:
    """The same of rows that were read already; what came of its stages is said without the attempts too."""
    stages = tuple(
        StageFacts(
            name=stage.name, state=stage.state, result=stage.result, fault=stage.fault,
            attempts=tuple(_attempt(row) for row in attempts if row.stage == stage.name),
        )
        for stage in rows
    )  # fmt: skip
    return JobFacts(
        export_id=job.id, created=job.created, started=job.started, checkpoint=job.checkpoint, base=str(job.base) if job.base else None,
        work=job.work, stages=stages, target=str(job.target), warnings=job.warnings,
    )  # fmt: skip
