"""What an attempt reads from outside, as it was when it began: so that its end tells what is wrong from what is only away.

A base on a server that starts again, a folder that is renamed for some seconds, a file whose rights are taken away: whatever error a
library makes of that says nothing about the export. Such an attempt ends with `source-away` and the path; the daemon waits until that is
there and tries again. What was not there when the attempt began is missing, and for the stage to tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from daemon.contract.disk import away
from daemon.contract.disk.data_files import DataPlace
from daemon.contract.faults.errors import CkptdError, Fault
from daemon.contract.jobs.messages import StageContext, Verdict
from handlers.child.progress import StageOutput

STAGING = ".staging"
"""Folder of an output below which attempts write."""
MOST_CAUSES = 20
"""Errors of a chain of causes that are looked at."""
_PHRASES = tuple(os.strerror(number) for number in away.AWAY)


class Outside:
    """The paths that an attempt reads and does not own."""

    def __init__(self, context: StageContext) -> None:
        self._operation = f"run the stage {context.stage}"
        self._staging = Path(context.staging)
        self._output = next((parent for parent in self._staging.parents if parent.name == STAGING), self._staging).parent
        self._links = dict(_toolchain_of(context))
        seen = [*(Path(folder) for folder in (context.pin, context.base) if folder), *self._links.values()]  # by the daemon, right before
        self._texts = [*_texts_of(context)]
        self._there = [root for root in (*seen, *self._texts) if away.problem_of_whole(root) is None]
        """What was there as a whole when the attempt began."""
        self._roots = {root: _real(root) for root in (*seen, *self._there)}
        """What counts as having been there → where its links led."""
        self._files = {file: _real(file) for root in self._roots for file in _files_of(root)}

    def fault(self, error: BaseException) -> Fault | None:
        """Return what was away when an error was raised, None where nothing was."""
        for cause in _chain(error):
            if away.is_away(cause) and (place := self._met(cause)) is not None:
                return away.fault_of(place, cause, self._operation)
        if isinstance(error, CkptdError) and (place := self._find_in_fault(error.fault)) is not None:
            return away.fault_of(place, FileNotFoundError(), self._operation)
        return self.gone()

    def gone(self) -> Fault | None:
        """Return what was there when the attempt began and is away now."""
        for path in (*self._there, *self._files):
            if (problem := away.problem_of_whole(path) if path in self._there else away.problem_of(path)) is not None:
                return away.fault_of(path, problem, self._operation)
        return None

    def doubts(self, output: StageOutput) -> Fault | None:
        """Return what is away where a stage ended in order and says that something is not as it should be: it may be only for that."""
        return self.gone() if any(check.verdict is not Verdict.PASSED for check in output.checks) else None

    def _met(self, error: BaseException) -> Path | None:
        """Of the paths that were there, the one that a system error is about."""
        name = error.filename if isinstance(error, OSError) else None
        if isinstance(name, str | bytes):
            path = Path(os.path.abspath(os.fsdecode(name)))
            if self._output == path or self._output in path.parents:
                # A file that a stage looks for in vain in its own folder is the stage's fault, unless it is there again by now.
                in_vain = isinstance(error, FileNotFoundError) and away.problem_of(path) is not None
                return None if in_vain and away.problem_of(self._staging) is None else self._output
            path = self._by_place(path)
            return path if self._was_there(path) or self._is_text_away(path, error) else None
        return self._named_in(str(error))

    def _is_text_away(self, path: Path, error: BaseException) -> bool:
        """Return whether texts that were not there when the attempt began are there by now, or are there and can't be read."""
        named = any(text in (path, *path.parents) for text in self._texts)
        return named and (not isinstance(error, FileNotFoundError) or away.problem_of(path) is None)

    def _by_place(self, path: Path) -> Path:
        """Return a path in a toolchain by where that lies, and not by the link that led to it."""
        return next((place / path.relative_to(link) for link, place in self._links.items() if link in (path, *path.parents)), path)

    def _was_there(self, path: Path) -> bool:
        """Return whether a path was there when the attempt began, or is there now, or lies in what is away as a whole."""
        real = _real(path)
        known = (*self._roots.items(), *self._files.items())
        if any(path in (place, where) or real in (place, where) for place, where in known):
            return True
        inside = [root for root, where in self._roots.items() if root in path.parents or where in real.parents]
        return bool(inside) and (away.problem_of(path) is None or any(away.problem_of_whole(root) for root in inside))

    def _named_in(self, text: str) -> Path | None:
        """The path in a text that was there; a folder only where it is away as a whole, since a file in it may never have been there."""
        file = next((path for path in self._files if str(path) in text), None)
        return file or next((root for root in self._roots if str(root) in text and away.problem_of_whole(root) is not None), None)

    def _find_in_fault(self, fault: Fault) -> Path | None:
        """The path that a fault in words is about, as it comes from a process of the stage's own: a line of its traceback names it."""
        for line in f"{fault.cause} ({fault.path or ''})\n{fault.details or ''}".splitlines():
            if any(phrase in line for phrase in _PHRASES) and (path := self._named_in(line)) is not None:
                return path
        return None


def _toolchain_of(context: StageContext) -> Iterator[tuple[Path, Path]]:
    """Yield the link to the toolchain that a stage uses, and where it leads."""
    link = Path(context.cache, "toolchains", context.toolchain)
    if context.toolchain:
        yield link, Path(os.readlink(link)) if link.is_symlink() else link


def _texts_of(context: StageContext) -> Iterator[Path]:
    """Yield the files or folders with texts that a stage may read."""
    for value in (context.work.validation.prompts, context.work.validation.data):
        if value:
            try:
                yield Path(DataPlace.of(value).shown)
            except ValueError:
                continue


def _files_of(root: Path) -> list[Path]:
    """Return the files of a folder; deeper ones are found by the errors that name them."""
    try:
        with os.scandir(root) as entries:
            return [Path(entry.path) for entry in entries if entry.is_file()]
    except OSError:
        return []


def _real(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # a name that no file system takes
        return path


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it came of, also where that is not to be shown."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left and len(seen) < MOST_CAUSES:
        cause = left.pop(0)
        if cause is not None and id(cause) not in seen:
            seen.add(id(cause))
            yield cause
            left += [cause.__cause__, cause.__context__]
