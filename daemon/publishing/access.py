"""Who may read a published export: nobody who could not read what it was made of, unless the configuration says so.

Called by `daemon.running.endings`, and by the runner for the report's line. The read bits of group and others are those that the
checkpoint's files, their folders up to the root, what is merged with them, the base's files and the texts have in common: a report shows
some of them. Decided by modes and groups alone: an access control list may have allowed more. The mode 0600 that safetensors gives every
file is nobody's choice and takes nothing away (`pins.modes_of`).
"""

from __future__ import annotations

import contextlib
import grp
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.checkpoints.files import export_files
from daemon.checkpoints.pinning.pins import SourceMode, mode_of, modes_of, read_modes
from daemon.config.settings import OutputSettings
from daemon.contract.disk.answers import ask
from daemon.contract.disk.data_files import DataFile, DataPlace
from daemon.contract.jobs.messages import ADDITIONS
from daemon.journal.rows import JobRow
from daemon.system.filesystems.private import inherited_umask

READ_OF_MODELS = (".safetensors", ".bin", ".json", ".model", ".txt", ".jinja", ".py", ".tiktoken")
"""Endings of a base's files that an export reads."""
_GROUP, _OTHERS = 0o070, 0o007


@dataclass(frozen=True)
class Access:
    """Modes of what is published. `group`: its id, None for the one that files get by themselves; `why`: said where sources narrow it."""

    file: int
    group: int | None = None
    why: str | None = None
    around: int = 0o777
    """Mode of the folders around an export, which hold others too."""


def folder_mode(file: int) -> int:
    """The mode of a folder whose files have the mode `file`: who may read files may enter."""
    return file | (file & 0o444) >> 2


def ceiling(output: OutputSettings) -> int:
    """The most that a file gets: `output.mode`, else what the umask leaves."""
    return int(output.mode, 8) if output.mode else 0o666 & ~inherited_umask()


def narrowed(most: int, sources: Iterable[SourceMode], group: int, *, chosen: bool) -> tuple[int, SourceMode | None]:
    """The file mode `most` without what a source does not allow, and the first source that took something away.

    `group`: the id that the files will have; `chosen`: by the configuration, so that whoever set it answers for its members. Otherwise the
    group may read what it may read of each source: as that source's group, or as others.
    """
    mode, because = most, None
    for source in sources:
        allowed = 0o600 | (_OTHERS if source.mode & 0o004 else 0)
        if source.mode & 0o040 and (chosen or source.group == group or source.mode & 0o004):
            allowed |= _GROUP
        if mode & ~(allowed | 0o700):
            because = because or source
            mode &= allowed | 0o700
    return mode, because


def access_of(job: JobRow, output: OutputSettings) -> Access:
    """What the export of a job gets. Where `output.group` was removed from the box since, the group that files get by themselves."""
    most, group = ceiling(output), None
    if output.group:
        with contextlib.suppress(KeyError):
            group = grp.getgrnam(output.group).gr_gid
    around = folder_mode(most)
    if output.wider_than_sources:
        return Access(most, group, None, around)
    mode, because = narrowed(most, sources_of(job), os.getegid() if group is None else group, chosen=group is not None)
    return Access(mode, group, sentence(mode, because) if because else None, around)


def sentence(mode: int, because: SourceMode) -> str:
    """Says who may read an export, and why nobody else."""
    readers = "its owner and its group" if mode & 0o040 else "its owner"
    return (
        f"The export is readable by {readers} only, because {because.path} is not open to others (mode {because.mode:04o})."
        " output.wider_than_sources = true always publishes with output.mode."
    )


def sources_of(job: JobRow) -> list[SourceMode]:
    """What a job's export is made of: the checkpoint's files and those of what is merged with them, as the pin remembers them, the base's,
    and the texts that it is checked and calibrated on."""
    pins = [job.pin, *(job.pin / ADDITIONS / str(number) for number in range(len(job.checkpoint.additions)))]
    modes = [mode for pin in pins for mode in read_modes(pin)]
    if not modes:  # not pinned, since it can't be used
        checkpoint = Path(job.checkpoint.path)
        modes = _modes(checkpoint, export_files(checkpoint) if checkpoint.is_dir() else (), checkpoint.parent)
    if job.base is not None:
        modes += _modes_of_base(job.base)
    return modes + [mode for value in (job.work.validation.prompts, job.work.validation.data) for mode in _modes_of_texts(value)]


def _modes_of_base(base: Path) -> list[SourceMode]:
    """Of a base's files; where its file system does not answer, as of one that its owner alone may read."""
    try:
        return ask(f"modes {base}", lambda: _modes(base, _read_of(base), base), 2.0)
    except TimeoutError:
        return [SourceMode(str(base), 0o600, os.getegid())]


def _modes_of_texts(value: str) -> list[SourceMode]:
    """Of the files that a setting of texts names; none where they can't be looked at, since then none was read."""
    if not value:
        return []
    try:
        files = DataPlace.of(value).files()
    except (OSError, ValueError):
        return []
    return [mode for file in files if (mode := mode_of(Path(file.name), _top_of(file))) is not None]


def _top_of(file: DataFile) -> Path:
    """The folder from which a file with texts is reached: the root for a run's own, else the one that was named, or that is around it."""
    return file.place.top if file.place.inner is not None else Path(file.name).parents[max(0, len(file.parts) - 1)]


def _read_of(base: Path) -> Sequence[str]:
    try:
        return sorted(entry.name for entry in os.scandir(base) if entry.name.endswith(READ_OF_MODELS) and entry.is_file())
    except OSError:
        return ()


def _modes(folder: Path, names: Iterable[str], top: Path) -> list[SourceMode]:
    return modes_of((folder / name for name in names), top)
