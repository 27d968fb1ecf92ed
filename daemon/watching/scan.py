"""Walks a root for checkpoint directories: events are only hints, and a scan is the reliable source.

What a directory is, `daemon.checkpoints.names` says from its name and listing. A walk goes level by level, so that a bound that is met
leaves out what lies deepest, and it never lists a directory of many entries again while that has not changed.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from daemon.checkpoints.names import (
    EXPORT,
    PIPELINE,
    STATE,
    Candidate,
    candidate,
    is_checkpoint_name,
    is_loose_name,
    is_others_part,
    may_make_checkpoint,
    step_folder,
)
from daemon.checkpoints.parts import belongs_to, has_begun, kept_back
from daemon.contract.light import dataclass
from daemon.watching.entries import TEMPORARY, holds_checkpoints, is_ignored, is_temporary, list_entries, names_in
from daemon.watching.origins import is_of_run, why_untrained

if TYPE_CHECKING:
    from daemon.config.known import AnyWatch

WIDE = 500
"""A directory of this many entries is not listed again as long as its own time stands still."""
_REST_SECONDS = 3.0
"""A directory's time is relied on once it has stood still for this long between two listings: on some file systems two changes within
seconds have one time, and the clock of a server may be another."""
MOST_ENTRIES = 2_000_000
"""Entries that one walk lists; directories that lie deeper are left out, and that is said."""
MOST_SECONDS = 60.0
MOST_LINKS = 10_000
"""Links of one root that are remembered."""


@dataclass(frozen=True)
class ScanRules:
    """What a walk looks at and what it takes."""

    depth: int = 0
    """Levels below the root; 0: all of them."""
    models: Literal["trained", "all"] = "trained"
    """Whole models that are taken: those that a training wrote, or all."""
    ours: frozenset[str] = frozenset()
    """Folders of our own in which pins and journals lie."""
    elsewhere: frozenset[str] = frozenset()
    """Roots that are walked by themselves, since they lie on another mount."""
    roots: tuple[Path, ...] = ()
    """The roots that are walked by these rules: what lies below another one is found there."""
    linked: frozenset[Path] = frozenset()
    """Those of them that are links below another root, and so a run themselves, perhaps."""


def rules_of(settings: AnyWatch, state: Path) -> ScanRules:
    """The rules that `[watch]` asks for. `state`: the state directory, in which pins lie; elsewhere these have a name of their own."""
    return ScanRules(settings.depth, settings.models, frozenset({str(state)}), roots=settings.roots)


class Found(NamedTuple):
    """A directory that holds a checkpoint. `passed_over`: why it is not taken, "" where it is."""

    path: Path
    passed_over: str = ""


@dataclass(frozen=True)
class _Wide:
    """What a directory of many entries held: its subdirectories, and what it is."""

    state: tuple[int, int, int]
    since: float
    """When a listing first saw this state; seconds of the monotonic clock."""
    rested: bool
    """A later listing, long enough after it, saw it too: while the state stays, so does what is in it."""
    folders: tuple[str, ...]
    links: tuple[str, ...]
    what: Candidate


@dataclasses.dataclass
class Scanner:
    """Walks roots by the same rules again and again."""

    rules: ScanRules = field(default_factory=ScanRules)
    most_entries: int = MOST_ENTRIES
    most_seconds: float = MOST_SECONDS
    left_out: str = ""
    """Why the last walk did not see everything; "" where it did."""
    links: dict[Path, tuple[str, ...]] = field(default_factory=dict)
    """Root → the links to anything that its last walk saw, by their paths, at most MOST_LINKS. Replaced as a whole."""
    _wide: dict[str, _Wide] = field(default_factory=dict)

    def find(self, root: Path, on_error: Callable[[OSError], None]) -> Iterator[Found]:
        """Directories below `root` that hold a checkpoint, by name or by what is in them. Links are not followed, but noted
        (`links`); one that is called `checkpoint-N` and leads out of what is watched is passed over.

        Below a `checkpoint-N` and in an export of ours nothing is looked for. A root itself is never one, unless it is `linked`.
        """
        self.left_out = ""
        in_run = functools.cache(is_of_run)  # many models may lie side by side
        levels = deque([(str(root), root.name if root in self.rules.linked else "", 1)])
        seen_links: list[str] = []
        entries_seen, end = 0, time.monotonic() + self.most_seconds
        while levels:
            folder, name, level = levels.popleft()
            if entries_seen > self.most_entries or time.monotonic() > end:
                self.left_out = (
                    f"a scan of {root} ended after {entries_seen:,} entries: folders below {folder} and deeper are not scanned;"
                    " list the runs' directories in watch.roots, or set watch.depth"
                )
                return
            try:
                folders, links, what, count = self._list(folder, name)
            except OSError as error:
                on_error(error)
                continue
            entries_seen += count
            if what is Candidate.OURS:
                continue
            if what is not Candidate.NONE:
                yield Found(Path(folder), self._passed_over(folder, what, in_run))
            for link in links:
                if self.rules.depth and level > self.rules.depth:
                    continue
                if not is_checkpoint_name(link):
                    seen_links += [f"{folder}/{link}"] if len(seen_links) < MOST_LINKS else []
                elif self._leads_elsewhere(root, f"{folder}/{link}"):
                    yield Found(Path(folder, link), is_a_link(Path(folder, link)))
            for entry in folders:
                path = f"{folder}/{entry}" if folder != "/" else f"/{entry}"
                if is_checkpoint_name(entry):
                    if not self.rules.depth or level <= self.rules.depth:
                        yield Found(Path(path))
                elif why := kept_back(path, entry):
                    yield Found(Path(path), why)
                elif self._goes_into(path, entry, level):
                    levels.append((path, entry, level + 1))
                elif is_temporary(entry) and holds_checkpoints(path):
                    yield Found(Path(path), TEMPORARY)
        self.links = {**self.links, root: tuple(seen_links)}

    def note_link(self, root: Path, link: Path) -> None:
        """A link has come below a root; one that a walk would note is noted."""
        known, name = self.links.get(root, ()), link.name
        if not is_checkpoint_name(name) and not is_ignored(name) and str(link) not in known and len(known) < MOST_LINKS:
            self.links = {**self.links, root: (*known, str(link))}

    def _goes_into(self, path: str, name: str, level: int) -> bool:
        depth = self.rules.depth
        return (
            not is_ignored(name)
            and (not depth or level < depth or (level == depth and is_loose_name(name)))
            and path not in self.rules.ours
            and path not in self.rules.elsewhere
        )

    def _passed_over(self, folder: str, what: Candidate, in_run: Callable[[str], bool] = is_of_run) -> str:
        """Why a candidate is not taken, "" where it is. `in_run`: whether a directory is a run's, remembered where many are asked for."""
        if what is not Candidate.UNTRAINED or self.rules.models == "all" or step_folder(path := Path(folder)) != path:
            return ""
        return why_untrained(folder, in_run)

    def _leads_elsewhere(self, root: Path, link: str) -> bool:
        """Whether a link leads to a directory that lies below no root."""
        target = os.path.realpath(link)
        watched = {*(os.path.realpath(top) for top in {root, *self.rules.roots}), *self.rules.elsewhere}
        return os.path.isdir(target) and not any(target.startswith(os.path.join(top, "")) for top in watched)

    def _list(self, folder: str, name: str) -> tuple[tuple[str, ...], tuple[str, ...], Candidate, int]:
        """The subdirectories of a directory, its links, what it is, and how many entries were listed to know."""
        known, state, now = self._wide.pop(folder, None), None, time.monotonic()
        if known is not None:
            state = _state(folder)  # before the listing: what comes during it changes the time once more
            if state != known.state:
                known = None
            elif known.rested:
                self._wide[folder] = known
                return known.folders, known.links, known.what, 1
        entries, links = list_entries(folder)
        what = _what(folder, name, entries) if name else Candidate.NONE
        parts = PIPELINE in entries  # of a pipeline: none is a model of its own
        folders = tuple(
            entry
            for entry, is_folder in entries.items()
            if is_folder and not (parts and not is_checkpoint_name(entry) and not is_loose_name(entry))
        )
        if len(entries) >= WIDE:
            since = known.since if known else now
            self._wide[folder] = _Wide(state or _state(folder), since, now - since >= _REST_SECONDS, folders, tuple(links), what)
        return folders, tuple(links), what, len(entries)

    def why_not(self, root: Path, path: Path) -> str | None:
        """Why a walk of `root` does not come to the directory `path` as a checkpoint, as a clause; None where it does.

        Asks the file system, so that what it says is true now. `path` lies below `root`.
        """
        parts = path.relative_to(root).parts
        if not parts and root not in self.rules.linked:
            return "it is the root itself; put the directory above it into watch.roots"
        for index, part in enumerate(parts):
            inside = root.joinpath(*parts[: index + 1])
            if inside.is_symlink():
                return is_a_link(inside)
            if str(inside) in self.rules.ours:
                return f"{inside} is one of ckptd's own folders"
            if index + 1 < len(parts) and is_checkpoint_name(part):
                return f"it is inside the checkpoint {inside}"
            if is_ignored(part):
                return f"{part!r} is a hidden or temporary name, which scans skip; rename it"
            if _is_ours(inside):
                return f"{inside} is an export or the state of ckptd"
            if why := kept_back(str(inside), part):
                return why
        if self.rules.depth and not self._reaches(parts):
            return f"it is more than watch.depth = {self.rules.depth} levels below {root}; set watch.depth = 0"
        return self._why_none(path)

    def _reaches(self, parts: tuple[str, ...]) -> bool:
        if not parts:
            return True
        own = not is_checkpoint_name(parts[-1]) and not is_loose_name(parts[-1])
        return len(parts) + own <= self.rules.depth

    def _why_none(self, path: Path) -> str | None:
        if is_checkpoint_name(path.name):
            return None
        entries = names_in(path)
        what = _what(str(path), path.name, entries)
        if what is Candidate.NONE:
            why = belongs_to(str(path), path.name, entries)
            return why or "it contains no adapter and no model in a known form (files that are links are not read)"
        return self._passed_over(str(path), what) or None

    def checkpoint_of(self, root: Path, changed: str) -> Path | None:
        """The checkpoint directory below `root` in which `changed` lies and to which a walk would come, if any.

        Looks at a directory's listing only where the changed name may have made a checkpoint of it.
        """
        parts, checkpoint = _by_names(root, changed)
        if parts is None or checkpoint is not None:
            return checkpoint
        if (not parts and root not in self.rules.linked) or (parts and is_ignored(parts[-1]) and changed.endswith("/")):
            return None
        for length in (len(parts), len(parts) - 1):
            if (length > 0 or (length == 0 and root in self.rules.linked)) and self._may_be((root.name, *parts), length + 1):
                folder = root.joinpath(*parts[:length])
                what = _what(str(folder), folder.name, names_in(folder))
                if what not in (Candidate.NONE, Candidate.OURS) and not self._passed_over(str(folder), what):
                    return folder
        return None

    def _may_be(self, parts: tuple[str, ...], length: int) -> bool:
        """Whether a changed name is worth a look into the listing of `parts[:length]`: its own, or that of the directory around it."""
        if length == len(parts):
            return not may_make_checkpoint(parts[-1])
        return is_loose_name(parts[length - 1]) or may_make_checkpoint(parts[-1])

    def would_find(self, root: Path, path: Path) -> bool:
        """Whether a walk comes to the checkpoint `path`, by its place alone: not below the depth, in a folder of ours or through links."""
        parts = path.relative_to(root).parts
        if self.rules.depth and not self._reaches(parts):
            return False
        above = [root.joinpath(*parts[: index + 1]) for index in range(len(parts))]
        if any(str(folder) in self.rules.ours or _is_ours(folder) or kept_back(str(folder), folder.name) for folder in above):
            return False
        return os.path.realpath(path) == os.path.join(os.path.realpath(root), *parts)


@functools.lru_cache(4096)
def _by_names(root: Path, changed: str) -> tuple[tuple[str, ...] | None, Path | None]:
    """The parts of a path below `root`, None where no walk comes to it, and the checkpoint directory in which it lies by names alone."""
    try:
        parts = Path(changed).relative_to(root).parts
    except ValueError:
        return None, None
    for index, part in enumerate(parts):
        if is_checkpoint_name(part):
            return parts, root.joinpath(*parts[: index + 1])
        if is_ignored(part) and index + 1 < len(parts):
            return None, None
    return parts, None


def _what(folder: str, name: str, entries: dict[str, bool]) -> Candidate:
    """What a directory is, where it is no part of another checkpoint."""
    what = candidate(name, entries)
    if what is Candidate.NONE and not is_others_part(name) and has_begun(folder, name, entries) and not kept_back(folder, name):
        return Candidate.CHECKPOINT
    return Candidate.NONE if what in (Candidate.CHECKPOINT, Candidate.UNTRAINED) and belongs_to(folder, name, entries) else what


def _is_ours(folder: Path) -> bool:
    """Whether a directory is an export or the state of ckptd. A `checkpoint-N` is taken by its name, whatever it holds."""
    marked = not is_checkpoint_name(folder.name) and any((folder / mark).exists() for mark in (EXPORT, STATE))
    return marked and candidate(folder.name, names_in(folder)) is Candidate.OURS


def _state(folder: str) -> tuple[int, int, int]:
    """Device, inode and time of a directory's own entries; ns."""
    status = os.stat(folder, follow_symlinks=False)
    return status.st_dev, status.st_ino, status.st_mtime_ns


def is_a_link(path: Path) -> str:
    """Why what lies below a link that is not followed is not taken, and what to do."""
    return f"{path} is a link, which scans don't follow; put its target into watch.roots"
