"""Where the daemon keeps what: one place that knows the names below the state and the output directory."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from daemon.contract.disk.attempt_files import JOB_FILE as JOB_FILE
from daemon.contract.disk.attempt_files import LOG_FILE as LOG_FILE
from daemon.contract.disk.attempt_files import RESULT_FILE as RESULT_FILE
from daemon.contract.disk.files import write_atomic
from daemon.contract.disk.own_folders import opened
from daemon.contract.faults.errors import FULL_DISK, TRANSIENT, CkptdError, Permanent, UsageError, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.light import dataclass
from daemon.contract.values import digest_of

STAGING = ".staging"
KEPT = ".kept"
INSTANCE = "instance"
"""File of a state directory with the random name that tells it from all others."""
FOREGROUND = "foreground"
"""Folder of a state directory that holds those of exports in the foreground."""


@dataclass(frozen=True)
class StatePaths:
    """Folders and files of a state directory: what there is to read for one who does not write."""

    state: Path

    @property
    def journal(self) -> Path:
        """The SQLite file."""
        return self.state / "journal.sqlite3"

    @property
    def backups(self) -> Path:
        """Copies of the journal."""
        return self.state / "backups"

    @property
    def suspect(self) -> Path:
        """There while the journal is known to be damaged or is being rebuilt."""
        return self.state / "journal.suspect"

    @property
    def lock(self) -> Path:
        """Locked by the one daemon that may write the journal."""
        return self.state / "lock"

    @property
    def live(self) -> Path:
        """What only the running daemon knows (progress), for `ckptd status`; rewritten, never needed."""
        return self.state / "live.json"

    @property
    def away(self) -> Path:
        """What exports wait for because it is away, and since when."""
        return self.state / "away.json"

    @property
    def away_additions(self) -> Path:
        """The same of the adapters that checkpoints wait for before they are taken."""
        return self.state / "away-additions.json"

    @property
    def log(self) -> Path:
        """The JSON-lines log."""
        return self.state / "ckptd.log"

    @property
    def pins(self) -> Path:
        """One folder a job with the pinned checkpoint."""
        return self.state / "pins"

    @property
    def pins_lock(self) -> Path:
        """Held by whoever removes the pins of ended jobs, and by `ckptd queue retry` from pinning again until the job is open."""
        return self.state / "pins.lock"

    @property
    def outer(self) -> Path:
        """The daemon's state directory, also of an export in the foreground, whose own lies in it."""
        return _around(self.state)

    @property
    def published(self) -> Path:
        """What was published where: inode, size and time of every file, so that what is replaced or removed is known to be ours."""
        return self.outer / "published"

    @property
    def jobs(self) -> Path:
        """One folder a job with a folder an attempt: job file, result, log."""
        return self.state / "jobs"

    @property
    def deliveries(self) -> Path:
        """One folder a job with the logs of the latest attempts at its deliveries."""
        return self.state / "deliveries"

    @property
    def cache(self) -> Path:
        """What children may reuse; exports in the foreground share that of the state directory."""
        return _around(self.state) / "cache"

    def attempt(self, job: str, stage: str, number: int) -> Path:
        """Folder of an attempt's job file, result file, log and temporary files."""
        return self.jobs / job / f"{stage}.{number}"


@dataclass(frozen=True)
class Paths(StatePaths):
    """The same with the output. `instance` keeps the staging of several journals with one output apart."""

    output: Path
    instance: str
    closed: tuple[str, ...] = ()
    """What others could read and now can't, as sentences."""

    @property
    def owner(self) -> str:
        """What names the daemon's state among all that share an output; an export in the foreground publishes in its name."""
        try:
            return (self.outer / INSTANCE).read_text(encoding="utf-8").strip() or self.instance
        except OSError:
            return self.instance

    @property
    def staging(self) -> Path:
        """Unpublished output, on the output's file system."""
        return self.output / STAGING / self.instance

    @property
    def kept(self) -> Path:
        """Finished outputs by their resume key, on the output's file system."""
        return self.output / KEPT / self.instance


def existing(state: Path) -> Path:
    """The journal of a state directory that is in use. Raises UsageError where there is none: a wrong path makes no new one."""
    journal = StatePaths(state).journal
    if not journal.is_file():
        raise UsageError(
            FaultCode.NO_JOURNAL, "open the journal", "no daemon has run on this state directory",
            "name the right one with --config", path=state,
        )  # fmt: skip
    return journal


def _around(state: Path) -> Path:
    """The state directory that an export in the foreground has its own in; any other one itself."""
    return state.parent.parent if state.parent.name == FOREGROUND else state


def states_in(state: Path) -> list[Path]:
    """The daemon's state directory, and those of exports in the foreground that are left."""
    return [state, *sorted(path.parent for path in state.glob(f"{FOREGROUND}/*/{StatePaths(state).journal.name}"))]


def foreground_state(state: Path, checkpoint: Path) -> Path:
    """State directory of the `ckptd export` of one checkpoint: a journal of its own, found again by the same path."""
    return state / FOREGROUND / digest_of(str(checkpoint))[:16]


def file_on_the_way(folder: Path) -> Path | None:
    """What is at the place of a folder that is to be made, or of one above it, and is no directory; None where nothing is in the way."""
    there = next((place for place in (folder, *folder.parents) if os.path.lexists(place)), None)
    return there if there is not None and os.path.exists(there) and not os.path.isdir(there) else None


def refuse_file(folder: Path, operation: str, remedy: str) -> None:
    """Raise UsageError where a file is at the place of a folder that is to be made, or on the way to it."""
    if (file := file_on_the_way(folder)) is not None:
        cause = "it is a file, not a directory" if file == folder else f"{file} is a file, not a directory"
        raise UsageError(FaultCode.NOT_A_DIRECTORY, operation, cause, remedy, path=folder)


def not_writable(key: str, folder: Path, cause: str, number: int | None = None) -> UsageError:
    """The error for a folder of the configuration that can't be written to. `number`: the errno that the system gave, if it was asked."""
    if (file := file_on_the_way(folder)) is not None:
        cause, remedy = f"{file} is a file, not a directory", f"set {key} to a directory, or move that file away"
    elif number == errno.EROFS and os.environ.get("INVOCATION_ID"):
        remedy = (
            f"let the service write there: `systemctl edit ckptd`, the lines [Service] and ReadWritePaths={folder}, and a restart"
            f" (the folder must exist); or set {key} to a folder that it may write, for example below /var/lib/ckptd"
        )
    else:
        remedy = (
            f"give this user access (to what another user made by `sudo chown -R`), or set {key} to a folder that can be written"
        )  # fmt: skip
    return UsageError(FaultCode.NOT_WRITABLE, f"write to {key}", cause, remedy, path=folder)


def _make_own(top: Path, folder: Path) -> None:
    """Make a folder of ours, which nobody else may enter: what is published gets its mode then; until then it is as private as the pin."""
    handle = opened(top, folder, make=True)
    try:
        with contextlib.suppress(PermissionError):
            os.fchmod(handle, 0o700)
    finally:
        os.close(handle)


OURS = re.compile(
    r"""journal\..*|lock|(live|away|away-additions|disks|ended)\.json|ckptd\.log.*|pins|pins\.lock|jobs|deliveries|cache|instance|published|backups|foreground|toolchains.*|\..*"""
)
"""What lies in a state directory, and nowhere else beside it."""


def open_to_others(path: Path) -> int | None:
    """The mode of a file or folder that others than its owner have access to; None where they have none, or it isn't there."""
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except OSError:
        return None
    return mode if mode & 0o077 else None


def make_private(state: Path, outside: Sequence[Path] = ()) -> list[str]:
    """Make a state directory that nobody but its owner may read, or close one that others may; gives what was closed, as sentences.

    Where something else lies in it, or in it one of the folders `outside`, it stays as open as it is, and what is ours in it is closed.
    """
    if not state.exists():
        state.parent.mkdir(parents=True, exist_ok=True)
        state.mkdir(mode=0o700)
    entries = list(state.iterdir())
    strange = any(not OURS.fullmatch(entry.name) for entry in entries) or any(state in folder.parents for folder in outside)
    said = []
    for path in entries if strange else [state]:
        mode = open_to_others(path)
        if mode is None or path.is_symlink() or not OURS.fullmatch(path.name if strange else "lock"):
            continue
        with contextlib.suppress(OSError):  # another user's: `ckptd check` says it
            path.chmod(mode & 0o700)
            said.append(f"{path} could be read by others (mode {mode:04o}) and is now this user's alone ({mode & 0o700:04o})")
    return said


def _unmade(key: str, folder: Path, error: OSError) -> CkptdError:
    """The error for a folder that could not be made or written to: a matter of access, unless the system says that it passes."""
    if error.errno in FULL_DISK | TRANSIENT:
        return from_oserror(error, f"write to {key}", str(folder))
    return not_writable(key, folder, error.strerror or str(error), error.errno)


def prepare(state: Path, output: Path) -> Paths:
    """Make the folders.

    Raises UsageError naming the key whose folder can't be written, Retryable where that passes: a full disk, no more open files.
    """
    closed = []
    for key, folder in (("state.directory", state), ("output.directory", output)):
        try:
            if key == "state.directory":
                for whole in dict.fromkeys((_around(state), state)):
                    closed += make_private(whole, (output,))
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()  # without a name, so that nothing is left over
        except OSError as error:
            if error.errno not in FULL_DISK or not folder.is_dir():
                raise _unmade(key, folder, error) from None
    for whole in dict.fromkeys((_around(state), state)):
        marker = whole / INSTANCE
        if not marker.exists():
            try:
                write_atomic(marker, os.urandom(4).hex(), mode=0o600)
            except OSError as error:
                raise from_oserror(error, "write to state.directory", str(marker)) from None
    paths = Paths(state, output, (state / INSTANCE).read_text(encoding="utf-8").strip(), tuple(closed))
    for folder in (paths.pins, paths.jobs, paths.cache, paths.staging, paths.kept):
        below = output if folder in (paths.staging, paths.kept) else folder
        try:
            if below == folder:  # in the state, where nobody else writes: a link is this user's own
                folder.mkdir(parents=True, exist_ok=True)
            _make_own(below, folder)
        except OSError as error:  # as that of another user, as whom the daemon ran before
            key = "output.directory" if below == output else "state.directory"
            raise _unmade(key, Path(error.filename or folder), error) from None
        except Permanent as error:
            raise UsageError(**error.fault.model_dump()) from None
    return paths
