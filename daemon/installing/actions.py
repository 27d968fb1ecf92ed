"""What an installation does to the box: command lines, each with what takes it back, and the record of those that were carried out.

The same list is carried out or printed: as a shell script, it does what the verb would do. The record lies beside the configuration, where
only its owner can write, since whoever undoes an installation runs what it says.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shlex
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Permanent, UsageError
from daemon.contract.faults.fault_codes import FaultCode

END = "END_OF_FILE"
Say = Callable[[str], None]


class Undo(BaseModel):
    """What takes one action back."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["command", "file", "link", "directory", "user"]
    argv: tuple[str, ...] = ()
    """Of a command."""
    path: str = ""
    """Of a file, a link or a directory."""
    was: tuple[str, ...] = ()
    """SHA-256 digests of what was written into a file, or the target of a link: one that is another now is left."""
    user: str = ""
    owns: tuple[str, ...] = ()
    """Where the user's own files lie: while they are there, it stays, since its number would be the next user's."""


@dataclass(frozen=True)
class Action:
    """A command line. `stdin`: what it reads. `may_fail`: what it means where it fails; "" where nothing goes on without it."""

    argv: tuple[str, ...]
    stdin: str | None = None
    undo: Undo | None = None
    may_fail: str = ""

    def as_shell(self) -> str:
        """The action as a person types it."""
        line = shlex.join(self.argv)
        return line if self.stdin is None else f"{line} <<'{END}'\n{self.stdin}{END}"


class Record(BaseModel):
    """What was done, in order."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    undo: list[Undo] = []

    def add(self, undo: Undo) -> None:
        """Note it before it is done. A file that is written again keeps its place, with both digests."""
        for place, other in enumerate(self.undo):
            if undo.kind == other.kind == "file" and undo.path == other.path:
                self.undo[place] = other.model_copy(update={"was": tuple(dict.fromkeys((*other.was, *undo.was)))})
                return
        if undo not in self.undo:
            self.undo.append(undo)

    def wrote(self, path: Path) -> bool:
        """Whether what lies at `path` now is what was written there."""
        return any(undo.kind == "file" and undo.path == str(path) and digest(path) in undo.was for undo in self.undo)


def digest(path: Path) -> str:
    """SHA-256 of a file; "" where there is none."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def read_record(path: Path) -> Record:
    """The record; an empty one where none is there. Raises UsageError for one that is damaged or that somebody else could have written."""
    try:
        status = path.stat()
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return Record()
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
        cause = "not only its owner may write to it, but its commands would be run"
    else:
        try:
            return Record.model_validate_json(text)
        except ValidationError as error:
            cause = f"it is damaged: {error.errors()[0]['msg']}"
    raise UsageError(
        FaultCode.SETUP_FAILED, "read what was installed", cause, "read it, and then remove it or correct its permissions", path=path
    )


def write_file(path: Path, content: str, mode: str = "0644") -> Action:
    """Write a file whose folder is there."""
    made = hashlib.sha256(content.encode()).hexdigest()
    return Action(("install", "-m", mode, "/dev/stdin", str(path)), content, Undo(kind="file", path=str(path), was=(made,)))


def make_folders(path: Path, *owner: str) -> list[Action]:
    """Make a folder and those above it that are missing, each with an undo; `owner`: options of `install` for the folder itself."""
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()][::-1]
    return [
        Action(
            ("install", "-d", *(owner if folder == path else ()), "-m", "0755", str(folder)), undo=Undo(kind="directory", path=str(folder))
        )
        for folder in missing
    ]


def carry_out(actions: Sequence[Action], path: Path, say: Say) -> None:
    """Do all of it, each noted in the record at `path` before. Raises Permanent for the first that fails and must not."""
    record = read_record(path)
    for action in actions:
        say(shlex.join(action.argv))
        if action.undo is not None:
            record.add(action.undo)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, record.model_dump_json(indent=1), mode=0o600)
        failed = _run(action.argv, action.stdin)
        if failed and not action.may_fail:
            raise Permanent(
                FaultCode.SETUP_FAILED, "install the service", f"`{shlex.join(action.argv)}` {failed}",
                "correct that and run the same command again, which continues where it stopped; or undo what was done with --undo",
            )  # fmt: skip
        if failed:
            say(f"# {action.may_fail} ({failed})")


def _run(argv: Sequence[str], stdin: str | None = None) -> str:
    """What is wrong, as a clause; "" where it was done."""
    try:
        done = subprocess.run(
            argv, input=stdin, capture_output=True, text=True, encoding="utf-8", errors="replace", check=False, timeout=600
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"could not be run: {error}"
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return "" if done.returncode == 0 else f"ended with exit code {done.returncode}: {said[-1] if said else 'it said nothing'}"


def taking_back(record: Record) -> Iterator[tuple[tuple[str, ...], str]]:
    """The commands that undo a record, the last action first; where something is left, ((), why). What is gone is passed over."""
    folders = {undo.path for undo in record.undo if undo.kind == "directory"}
    for undo in reversed(record.undo):
        path = Path(undo.path)
        if undo.kind == "command":
            yield undo.argv, ""
        elif undo.kind == "directory" and path.is_dir():
            yield ("rmdir", "--ignore-fail-on-non-empty", undo.path), ""
        elif undo.kind == "file" and path.is_file():
            yield (("rm", undo.path), "") if digest(path) in undo.was else ((), f"{path} has been changed since and is kept")
        elif undo.kind == "link" and path.is_symlink():
            yield (("rm", undo.path), "") if os.readlink(path) in undo.was else ((), f"{path} now points elsewhere and is kept")
        elif undo.kind == "user":
            kept = _owned(undo, folders)
            if kept is None:
                continue
            yield ((), f"the user {undo.user} is kept, because it has files in {kept}; to remove both, run"
                       f" `rm -r {shlex.quote(kept)} && {shlex.join(undo.argv)}`") if kept else (undo.argv, "")  # fmt: skip


def _owned(undo: Undo, removed: Collection[str]) -> str | None:
    """The first place that belongs to the user; "" where there is none, None where there is no such user. `removed`: folders that go before
    where they are empty."""
    try:
        number = pwd.getpwnam(undo.user).pw_uid if not undo.path else _number(Path(undo.path), undo.user)
    except KeyError:
        return None
    for place in undo.owns:
        try:
            if os.stat(place).st_uid == number and (place not in removed or os.listdir(place)):
                return place
        except OSError:
            continue
    return ""


def _number(passwd: Path, name: str) -> int:
    rows = [row.split(":") for row in passwd.read_text(encoding="utf-8").splitlines()]
    return next((int(row[2]) for row in rows if row[0] == name), -1)


def undo(path: Path, after: Sequence[Action], say: Say) -> bool:
    """Take back what the record at `path` says, then do `after`; gives whether all of it could be taken back. The record goes then."""
    record = read_record(path)
    well = True
    for argv, why in taking_back(record):
        if not argv:
            say(f"# {why}")
            continue
        say(shlex.join(argv))
        if failed := _run(argv):
            well = False
            say(f"# it {failed}")
    for action in after:
        say(shlex.join(action.argv))
        _run(action.argv)
    if well:
        path.unlink(missing_ok=True)
    return well
