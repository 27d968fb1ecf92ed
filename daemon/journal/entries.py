"""What is known when a job is entered, kept as a file beside its attempts, so that it does not depend on the journal.

Written by the intake before the job is committed; read when a damaged journal is rebuilt.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_serializer

from daemon.config.places.paths import Paths
from daemon.contract.disk.files import fsync_directory, write_atomic
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.jobs.options import Work

ENTRY = "entry.json"


class _Tolerant(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class JobEntry(_Tolerant):
    """What is known when a job is entered; kept beside its attempts, so that it does not depend on the journal."""

    job: str
    checkpoint: CheckpointRef
    work: Work
    pin: str
    target: str
    fingerprint: str
    created: str
    warnings: tuple[str, ...] = ()
    newest_first: bool = False

    @field_serializer("work")
    def _written_once(self, work: Work) -> Any:
        """All checkpoints of one configuration share it."""
        return work.plain


def write_entry(paths: Paths, entry: JobEntry) -> None:
    """Keep an entry, durably; to be called before the job is committed."""
    folder = paths.jobs / entry.job
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / ENTRY, entry.model_dump_json(indent=1))
    fsync_directory(paths.jobs)
