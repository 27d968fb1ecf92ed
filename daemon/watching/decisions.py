"""Directories that are decided upon: whether each is still what it was.

Files may be written in place with the size and the time that they had: by `rsync --inplace --times`, or a script that sets times. No
fingerprint shows that, but the kernel's own time of the inode does. It also moves with permissions and with each new or removed name of a
file (pins are hard links where they can't be copies, and so are backups), so that it is only a reason to compare contents: the directory is
taken once more, and what has the content that it had stays what it was.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from daemon.checkpoints.files import TRAINER_STATE, Fingerprint, Touch, digest_of_fingerprint, fingerprint_and_touch
from daemon.checkpoints.inspection import Inspection
from daemon.checkpoints.layouts import TABLE
from daemon.checkpoints.names import is_checkpoint_name
from daemon.journal.journal import Journal

_WITH_STATE = {row.name for row in TABLE if row.last_file == TRAINER_STATE}


class Decisions:
    """What the journal knows of directories, held against what they are. Used by the tracker's thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._accepted: dict[Path, Touch] = {}
        """How those looked whose content is what was decided upon."""
        self._doubted: dict[Path, Touch] = {}

    def still_stands(self, path: Path, decision: tuple[str, str] | None) -> bool:
        """Whether a directory is in the state in which it was decided upon; what can't be read is for the look to say.

        `decision`: its fingerprint then, and when that was.
        """
        if decision is None:
            return False
        try:
            seen, touch = fingerprint_and_touch(path)
        except OSError:
            return False
        return self.covers(path, seen, decision[0]) and not self._is_doubtful(path, touch, decision[1])

    def covers(self, path: Path, seen: Fingerprint, known: str) -> bool:
        """Whether this state was decided upon, or was before its run got a configuration, which an export that is made needs no more."""
        if path in self._doubted:
            return False
        if digest_of_fingerprint(seen) == known:
            return True
        own = tuple(row for row in seen if not row[0].startswith("../"))
        if len(own) == len(seen) or digest_of_fingerprint(own) != known:
            return False
        jobs = [self._journal.jobs.get(job) for job in self._journal.sightings.jobs_at(str(path))]
        return any(job is not None and job.state != "failed" for job in jobs)

    def lost_state(self, inspection: Inspection, seen: Fingerprint) -> str:
        """Why what seems to be a loop's own checkpoint is what is left of a trainer's that was taken here: the trainer's state is gone, and
        no file has been written since. "" where that is not so."""
        if any(name == TRAINER_STATE for name, *_ in seen) or not is_checkpoint_name(inspection.path.name):
            return ""
        newest = max((mtime for *_, mtime in seen), default=0)
        jobs = [self._journal.jobs.get(job) for job in self._journal.sightings.jobs_at(str(inspection.path))]
        taken = [datetime.fromisoformat(job.created) for job in jobs if job is not None and job.checkpoint.layout in _WITH_STATE]
        if all(newest > moment.timestamp() * 1e9 for moment in taken):
            return ""
        return "trainer_state.json is gone, and nothing was written since it was there: the checkpoint is being deleted"

    def decided(self, path: Path) -> None:
        """Its content has been compared, or is another one's now."""
        if (touch := self._doubted.pop(path, None)) is not None:
            self._accepted[path] = touch

    def keep(self, root: Path, seen: set[Path]) -> None:
        """Forget the directories below a root that are gone."""
        self._accepted = {path: touch for path, touch in self._accepted.items() if path in seen or not path.is_relative_to(root)}

    def _is_doubtful(self, path: Path, touch: Touch, at: str) -> bool:
        """Whether a directory that has its known fingerprint may have other content."""
        before = self._accepted.get(path)
        if before == touch:
            return False
        if touch.newest <= datetime.fromisoformat(at).timestamp() * 1e9:
            self._accepted[path] = touch
            return False
        if before is not None and before.links != touch.links:  # a name came or went, and that explains it
            self._accepted[path] = touch
            self._journal.sightings.confirm(str(path))
            return False
        self._doubted[path] = touch
        return True
