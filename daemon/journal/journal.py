"""The journal: jobs, stages, attempts, outbox and shipments. Work counts as done only if the journal says so.

Intent is committed before a stage starts, the result after it ended; each method of its parts is one transaction.
The schema itself refuses illegal transitions. Called by the watcher (new jobs), the runner, the notifier
and the deliveries.
"""

from __future__ import annotations

from pathlib import Path

from daemon.journal.attempts import Attempts
from daemon.journal.controls import Controls
from daemon.journal.file.database import Database
from daemon.journal.jobs import Jobs
from daemon.journal.letters import Letters
from daemon.journal.outbox import Outbox
from daemon.journal.shipments import Shipments
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
        self.letters = Letters(self.database)
        self.shipments = Shipments(self.database)

    def close(self) -> None:
        """Close the file."""
        self.database.close()
