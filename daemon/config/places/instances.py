"""Which daemons run, on which configuration, and where their state lies: said by each in a small file, read by the verbs.

A service gets its state directory from systemd and a shell knows nothing of that: so a verb asks the daemon that runs on the same
configuration. The file lies where other users can't write: in /run/ckptd for the service, in the user's own runtime directory else. What is
left of a daemon that was killed is told by its pid, that process's start and the boot, and counts as nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from daemon.contract.disk.files import boot_id, write_atomic
from daemon.contract.faults.events import Event
from daemon.contract.light import dataclass

_NAME = "ckptd"
_MOST_BYTES = 1 << 16
_START_FIELD = 19
"""Of /proc/PID/stat, counted after the name: when the process was started, in clock ticks after boot."""


@dataclass(frozen=True)
class Instance:
    """A daemon that runs."""

    config: Path | None
    """Its configuration file, links resolved; None where it has none."""
    state: Path
    pid: int
    user: int
    """Id of the user that it runs as."""
    trusted: bool
    """Whether what it says may decide where a verb of this user reads and writes: the system's service, and this user's own."""

    @property
    def user_name(self) -> str:
        """The user's name; the id where it has none."""
        try:
            return pwd.getpwuid(self.user).pw_name
        except KeyError:
            return str(self.user)


@contextlib.contextmanager
def announced(config: Path | None, state: Path) -> Iterator[None]:
    """Say for the length of the context that this process is the daemon of a configuration. Where that can't be written it goes on."""
    file = None
    try:
        folder = _own_place()
        _sweep(folder)
        file = folder / f"{os.getpid()}.json"
        known = {"config": _key(config), "state": str(state), "pid": os.getpid(), "started": _started(os.getpid()), "boot": boot_id()}
        write_atomic(file, json.dumps(known), durable=False)
        file.chmod(0o644)
    except OSError as error:
        import structlog  # by the daemon alone: `ckptd status` looks here too, and has no time for it

        log = structlog.get_logger("daemon")
        log.warning("`ckptd status` will find this daemon by its configuration alone", event_id=Event.DAEMON_UNANNOUNCED, error=str(error))
    try:
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                file.unlink()


def running() -> list[Instance]:
    """The daemons that run on this box, as far as this user can see them, in the order of their configurations."""
    instances = {instance.pid: instance for folder, trusted in _places() for instance in _in(folder, trusted)}
    return sorted(instances.values(), key=lambda instance: (str(instance.config or ""), instance.pid))


def state_of(config: Path | None, otherwise: Path) -> Path:
    """Where the state of the daemon that runs on a configuration lies; `otherwise` where none runs, or several do that disagree."""
    return known_state_of(config) or otherwise


def known_state_of(config: Path | None) -> Path | None:
    """Where the state of the daemon that runs on a configuration lies; None where none runs, or several do that disagree."""
    wanted = _resolved(config)
    states = {instance.state for instance in running() if instance.trusted and instance.config == wanted}
    return states.pop() if len(states) == 1 else None


def _resolved(config: Path | None) -> Path | None:
    return None if config is None else Path(os.path.realpath(config))


def _key(config: Path | None) -> str | None:
    return None if config is None else str(_resolved(config))


def _run() -> Path:
    """/run; tests name a folder of their own, so that they do not meet the daemons of this machine."""
    return Path(os.environ.get("_CKPTD_RUN", "/run"))


def _own_place() -> Path:
    """The folder for this process's file, made if need be. Raises OSError."""
    given = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
    if given:
        return Path(given)
    folder = _personal()[0]
    folder.mkdir(mode=0o755, exist_ok=True)
    if not _is_closed(folder, {os.geteuid()}):
        raise PermissionError(0, "it is not this user's, or others can write there", str(folder))
    return folder


def _personal() -> list[Path]:
    """Folders of this user's own, the one to write into first."""
    user = os.geteuid()
    session = [Path(os.environ["XDG_RUNTIME_DIR"])] if os.environ.get("XDG_RUNTIME_DIR") else []
    session += [folder for folder in (_run() / "user" / str(user),) if os.path.isdir(folder)]
    folders = [folder / _NAME for folder in session] + ([_run() / _NAME] if user == 0 else [])
    return [*folders, Path(tempfile.gettempdir()) / f"{_NAME}-{user}"]


def _places() -> Iterator[tuple[Path, bool]]:
    """Folders in which daemons may have said something, and whether that is to be believed by this user."""
    user = os.geteuid()
    for folder in _below(f"{_NAME}*"):
        if _is_closed(folder, None):
            yield folder, True
    for folder in _personal():
        if _is_closed(folder, {user, 0}):
            yield folder, True
    if user == 0:
        for folder in _below(f"user/*/{_NAME}"):
            if _is_closed(folder, None):
                yield folder, False


def _below(pattern: str) -> list[Path]:
    """What matches below /run; nothing where this user may not look."""
    try:
        return sorted(_run().glob(pattern))
    except OSError:
        return []


def _is_closed(folder: Path, owners: set[int] | None) -> bool:
    """Whether a folder is one, no link, its owner one of these (None: any), and nobody else can write into it."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022 and (owners is None or status.st_uid in owners)


def _in(folder: Path, trusted: bool) -> Iterator[Instance]:
    try:
        files = sorted(folder.glob("*.json"))
    except OSError:
        return
    for file in files:
        instance = _read(file, trusted)
        if instance is not None:
            yield instance


def _read(file: Path, trusted: bool) -> Instance | None:
    """The daemon that a file tells of; None where that runs no more, or the file says nothing that can be used."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            known = json.loads(stream.read(_MOST_BYTES))
        pid, config, state = int(known["pid"]), known["config"], Path(known["state"])
        if known["boot"] != boot_id() or known["started"] != _started(pid) or not state.is_absolute():
            return None
        return Instance(None if config is None else Path(config), state, pid, status.st_uid, trusted)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _sweep(folder: Path) -> None:
    """Remove what daemons left there that were killed."""
    for file in folder.glob("*.json"):
        if _read(file, True) is None:
            with contextlib.suppress(OSError):
                file.unlink()


def _started(pid: int) -> int:
    """When a process was started, in clock ticks after boot. Raises OSError where there is none."""
    text = Path(f"/proc/{pid}/stat").read_text(errors="replace", encoding="utf-8")
    return int(text.rpartition(")")[2].split()[_START_FIELD])
