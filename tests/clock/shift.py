"""A wall clock that a test can set while a process runs: time jumps for that process and its Python children alone.

`Shift.environment` puts `tests/clock/site` on PYTHONPATH, whose `sitecustomize` replaces the wall clock of Python's
`time` and `datetime` by one that adds the seconds in a small file. The monotonic clock stays as it is, as in a real
jump. Limits: C code that asks the clock itself (SQLite, the file system's own stamps) sees the true time, and
datetimes can't be pickled.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

SITE = Path(__file__).with_name("site")


class Shift:
    """The offset, in seconds, kept in `file`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._file.write_bytes(struct.pack("=d", 0.0))

    def set(self, seconds: float) -> None:
        """The wall clock runs this much ahead from now on (behind, if negative)."""
        with open(self._file, "r+b", buffering=0) as stream:
            stream.write(struct.pack("=d", seconds))

    def environment(self) -> dict[str, str]:
        """This process's environment and what the shifted one needs."""
        path = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "CLOCK_SHIFT": str(self._file)}
