"""What an export left: the files that its manifest names, its report, and the logs of its attempts.

No path of a request is ever opened: a job and a name choose among what the journal and the manifest name. Links are not followed, files are
bounded, and what a log holds beside text is taken out.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from daemon.config.places.paths import StatePaths
from daemon.contract.disk.answers import ask
from daemon.contract.disk.export_layout import MANIFEST, MANIFEST_LIMIT
from daemon.contract.disk.files import open_plain
from daemon.contract.faults.text import printable_lines
from daemon.contract.light import dataclass
from daemon.contract.values import text_at, whole_at
from daemon.journal.file.opening import reading
from daemon.journal.overview import id_of_target, run_within
from daemon.operating.monitoring.status import AttemptStatus, JobDetails

FAILED = ".failed"
REPORT_PAGE = "report.html"
REPORT_JSON = "report.json"
MOST_OF_REPORT = 64 << 20
"""Bytes of a report, which has the texts of all samples."""
SOME_OF_LOG, MOST_OF_LOG = 32 << 10, 2 << 20
"""Bytes of a log's end that are shown at first, and at most."""
SECONDS = 3.0
"""For a disk to answer."""
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\x9b[0-?]*[ -/]*[@-~]")
"""What moves a terminal's cursor or changes its colours (ECMA-48, CSI and OSC)."""
_OVERWRITTEN = re.compile(r"[^\n]*\r(?=[^\n])")
"""What a progress bar has written over."""


@dataclass(frozen=True)
class PublishedFile:
    """A file that the manifest names."""

    path: str
    size: int | None
    digest: str | None


@dataclass(frozen=True)
class LogTail:
    """The end of an attempt's log."""

    text: str
    shown: int
    size: int
    """Bytes."""

    @property
    def more(self) -> int | None:
        """How many bytes to ask for next; None where that is all, or as much as is ever shown."""
        return min(8 * self.shown, MOST_OF_LOG) if self.shown < min(self.size, MOST_OF_LOG) else None


@dataclass(frozen=True)
class JobHere:
    """An export."""

    id: str


@dataclass(frozen=True)
class RunHere:
    """The folder of a run's exports."""

    root: str
    run: str


def files_of(job: JobDetails) -> tuple[PublishedFile, ...] | None:
    """The files of a published export; None where there is no manifest that can be read."""
    if job.state not in ("succeeded", "partial", "failed"):
        return None
    with contextlib.suppress(OSError, TimeoutError, ValueError, RecursionError):
        return tuple(_entries(json.loads(_bounded(Path(job.target), MANIFEST, MANIFEST_LIMIT)), job.id))
    return None


def _entries(manifest: Any, id: str) -> Iterator[PublishedFile]:
    """The files that a manifest of this export names, and no path that leads out of its folder."""
    if text_at(manifest, "export_id") != id:
        return  # another export lies there now
    rows = manifest.get("files")
    for row in rows if isinstance(rows, list) else ():
        path = text_at(row, "path")
        if path and not PurePosixPath(path).is_absolute() and ".." not in PurePosixPath(path).parts:
            yield PublishedFile(path, whole_at(row, "size"), text_at(row, "sha256"))


def report_of(job: JobDetails, name: str) -> bytes | None:
    """Its report as a page or as JSON, which the manifest must name; None where there is none."""
    named = files_of(job)
    if named is None or name not in {file.path for file in named}:
        return None
    with contextlib.suppress(OSError, TimeoutError, ValueError):
        return _bounded(Path(job.target), name, MOST_OF_REPORT)
    return None


def _bounded(folder: Path, name: str, most: int) -> bytes:
    """A plain file of a folder. Raises OSError, TimeoutError, and ValueError for what is none, or is too long."""

    def read() -> bytes:
        with open_plain(folder / name, links=False) as stream:
            data = stream.read(most + 1)
        if len(data) > most:
            raise ValueError(f"{name} has more than {most} bytes")
        return data

    return ask(str(folder / name), read, SECONDS)


def log_of(attempt: AttemptStatus, wanted: int) -> LogTail | None:
    """The last `wanted` bytes of an attempt's log, from the begin of a line; None where there is no log any more."""

    def read() -> LogTail:
        with open_plain(Path(attempt.log), links=False) as stream:
            size = os.fstat(stream.fileno()).st_size
            count = min(size, wanted)
            data = os.pread(stream.fileno(), count, size - count)
            if count < size:
                data = data.partition(b"\n")[2]
            return LogTail(plain_text(data.decode("utf-8", "replace")), count, size)

    with contextlib.suppress(OSError, TimeoutError, ValueError):
        return ask(attempt.log, read, SECONDS)
    return None


def plain_text(text: str) -> str:
    """What a terminal would have shown in the end, without its colours; what is left of controls is shown as codes."""
    return printable_lines(_OVERWRITTEN.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n"))).replace("\r", "\n"))


def at_path(state: Path, path: str) -> JobHere | RunHere | None:
    """What stands at a path of a disk, as the pages of reports link to each other; None where that is nothing of ours.

    The path is compared with what the journal says. Only a name beside an export, as a run's `latest` and `best`, is looked at as a link.
    """
    if "\0" in path:
        return None
    folder = os.path.normpath(f"/{path}")
    above = os.path.dirname(folder)
    with contextlib.suppress(FileNotFoundError), reading(StatePaths(state).journal) as connection:
        id = id_of_target(connection, folder) or id_of_target(connection, folder.removesuffix(FAILED))
        if id is None and run_within(connection, above) is not None:
            with contextlib.suppress(OSError, TimeoutError):
                target = ask(folder, lambda: os.readlink(folder), SECONDS)
                id = id_of_target(connection, os.path.normpath(os.path.join(above, target)))
        if id is not None:
            return JobHere(id)
        run = run_within(connection, folder)
        return RunHere(*run) if run is not None else None
    return None
