"""Files that were written in place with the size and the time that they had: `rsync --inplace --times`, or a script that sets times.

No fingerprint shows that, but the kernel's own time of the inode does. It also moves with permissions and with each new or removed name of
a file (pins are hard links where they can't be copies, and so are backups), so that it is only a reason to compare contents: the directory
is taken once more, and what has the content that it had stays what it was.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from daemon.checkpoints.files import Touch
from daemon.journal.sightings import Sightings


class Rewrites:
    """The directories that may have been written in place. Used by the tracker's thread."""

    def __init__(self, sightings: Sightings) -> None:
        self._sightings = sightings
        self._accepted: dict[Path, Touch] = {}
        """How those looked whose content is what was decided upon."""
        self._doubted: dict[Path, Touch] = {}

    def __contains__(self, path: Path) -> bool:
        return path in self._doubted

    def is_doubtful(self, path: Path, touch: Touch, at: str) -> bool:
        """Whether a directory that has its known fingerprint may have other content. `at`: when it was decided upon."""
        before = self._accepted.get(path)
        if before == touch:
            return False
        if touch.newest <= datetime.fromisoformat(at).timestamp() * 1e9:
            self._accepted[path] = touch
            return False
        if before is not None and before.links != touch.links:  # a name came or went, and that explains it
            self._accepted[path] = touch
            self._sightings.confirm(str(path))
            return False
        self._doubted[path] = touch
        return True

    def decided(self, path: Path) -> None:
        """Its content has been compared, or is another one's now."""
        if (touch := self._doubted.pop(path, None)) is not None:
            self._accepted[path] = touch

    def keep(self, root: Path, seen: set[Path]) -> None:
        """Forget the directories below a root that are gone."""
        self._accepted = {path: touch for path, touch in self._accepted.items() if path in seen or not path.is_relative_to(root)}
