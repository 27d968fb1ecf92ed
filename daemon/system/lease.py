"""The lease on a state directory: one daemon works with a journal at a time, also where machines share the directory and not its locks.

A lock (`daemon.system.lock`) decides on one machine, and among machines wherever the file system passes locks on. NFS mounted with
`nolock` or `local_lock`, and Lustre with `localflock`, give each machine locks of its own. So whoever has the lock also holds a file,
`lease.json`, that names it. It appears by link(2), which succeeds once, and is touched by a thread: the file server's clock gives the time.
No clock is compared with that of another machine.

A start that meets another machine's file waits for a touch. Where one comes it refuses; where none comes for SILENT_SECONDS it moves the
file away and takes its place. It waits on a disk of its own too: that may be what it serves to the others by NFS, and a lock that one of
them has by NFS does not keep a process on the server from its flock(2).

A daemon that was suspended meanwhile must not go on: before each commit and each publication it looks whether its last touch is less than
FRESH_SECONDS ago, by a clock that goes on in suspension, and where not whether the file is still its own. If not, it ends at once, as
killed. What other verbs see of it on another machine: `daemon.system.elsewhere`.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.disk.files import boot_id, fsync_directory, host_name, machine_id, rename_new, write_atomic
from daemon.contract.faults.errors import FULL_DISK, Retryable, UsageError
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.system.logger import Logger

log = Logger("daemon")

LEASE = "lease.json"
TOUCH_SECONDS = 5.0
FRESH_SECONDS = 15.0
"""So long after a touch its holder goes on without a look."""
SILENT_SECONDS = 60.0
"""So long without a touch another machine waits before it takes over: more than FRESH_SECONDS, and a commit that waits for readers."""
LOST_CODE = 70


@dataclass(frozen=True)
class Holder:
    """What a lease says of the daemon that holds it."""

    token: str
    host: str
    boot: str
    pid: int
    since: str
    machine: str = ""
    """The machine's id; "" where it has none."""

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}, since {self.since}"

    def works(self) -> str:
        """What it does, as a clause."""
        return (
            f"a ckptd on {self.host} (pid {self.pid}, since {self.since}) works with this state, and the file system does not show its lock"
            " to this machine"
        )


@dataclass
class Lease:
    """A lease that this process holds."""

    file: Path
    mine: Holder
    lost: Callable[[], object]
    """Called where another one has taken it over; it does not return."""
    _touched: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def see(self) -> None:
        """Go on only as its holder. Raises Retryable while the file system does not say who that is."""
        if now() - self._touched > FRESH_SECONDS:
            try:
                self.touch()
            except OSError as error:
                raise Retryable(
                    FaultCode.JOURNAL_UNAVAILABLE, "see who has the state directory", str(error.strerror or error),
                    "nothing, it is tried again", path=self.file,
                ) from error  # fmt: skip

    def touch(self) -> None:
        """Say that the holder lives, or end where it is the holder no more. A file that was deleted is made again."""
        with self._lock:
            begun, holder = now(), read(self.file)
            if holder is None and _appears(self.file, self.mine):
                holder = self.mine
            if holder != self.mine:
                self.lost()
            os.utime(self.file)
            self._touched = begun


_held: list[Lease] = []
"""The leases of this process: a daemon has one, an export in the foreground has one of its own."""


def see() -> None:
    """See to it that this process still holds its lease; to be called before what another daemon must not do too."""
    for lease in _held:
        lease.see()


@contextmanager
def leased(state: Path) -> Iterator[None]:
    """Hold the lease of a state directory, whose lock this process has. Raises UsageError where a daemon of another machine holds it.

    On a disk that is full or can only be read the lock alone decides.
    """
    file = state / LEASE
    mine = this_process()
    try:
        _claim(file, mine)
    except OSError as error:
        if error.errno not in (*FULL_DISK, errno.EROFS):
            raise
        yield
        return
    lease = Lease(file, mine, lambda: _end(file), now())
    ended = threading.Event()

    def keep() -> None:
        while not ended.wait(TOUCH_SECONDS):
            with suppress(OSError):  # while that lasts, nothing that matters is done: `see` raises
                lease.touch()

    keeper = threading.Thread(target=keep, name="lease", daemon=True)
    keeper.start()
    _held.append(lease)
    try:
        yield
    finally:
        ended.set()
        keeper.join(TOUCH_SECONDS)
        _held.remove(lease)
        with suppress(OSError):
            if read(file) == mine:
                file.unlink()


def this_process() -> Holder:
    """Who this process would be as a holder."""
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return Holder(os.urandom(8).hex(), host_name(), boot_id(), os.getpid(), since, machine_id())


def read(file: Path) -> Holder | None:
    """Who holds a lease; None for nobody. What can't be understood counts as somebody of no machine. Raises OSError."""
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        known = json.loads(text)
        named = (str(known["token"]), str(known["host"]), str(known["boot"]), int(known["pid"]), str(known["since"]))
        return Holder(*named, str(known.get("machine", "")))
    except (ValueError, KeyError, TypeError):
        return Holder("", "unknown", "", 0, "unknown")


def _claim(file: Path, mine: Holder) -> None:
    while not _appears(file, mine):
        holder = read(file)
        if holder is None:
            continue
        foreign = holder.boot != mine.boot and not was_before_this_boot(file, holder, mine)
        if foreign:  # else it is of this machine, where the lock has decided
            _wait_for_silence(file)
        _move_away(file, holder, file.with_name(f"{file.name}.{mine.token}"), foreign=foreign)


def was_before_this_boot(file: Path, holder: Holder, mine: Holder) -> bool:
    """Whether it is of this machine before its present boot, as after a power cut: nobody can hold it any more.

    Machines made of one image may have one id and even one name. So the last touch must also be older than this boot is long, by the time
    that the file system gives a file of ours now: who touched it later is somebody else.
    """
    if not mine.machine or (holder.machine, holder.host) != (mine.machine, mine.host):
        return False
    beside = file.with_name(f".{file.name}.{mine.token}.now")
    try:
        beside.touch(0o600)
        return beside.stat().st_mtime - file.stat().st_mtime >= now()
    except FileNotFoundError:
        return False
    finally:
        beside.unlink(missing_ok=True)


def _appears(file: Path, mine: Holder) -> bool:
    """Make the file, whole; False where there is one."""
    prepared = file.with_name(f".{file.name}.{mine.token}")
    write_atomic(prepared, json.dumps(vars(mine)), mode=0o600)
    try:
        os.link(prepared, file)
    except FileExistsError:
        return read(file) == mine  # the answer to our own request may have been lost
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        try:
            rename_new(prepared, file)  # no hard links here
        except FileExistsError:
            return False
    finally:
        prepared.unlink(missing_ok=True)
    fsync_directory(file.parent)
    return True


def _wait_for_silence(file: Path) -> None:
    """Come back when nobody has touched the lease for SILENT_SECONDS, or it is gone; raise UsageError as soon as somebody does."""
    first, begun = state_of(file), now()
    while now() - begun < SILENT_SECONDS:
        time.sleep(0.2)
        if (state := state_of(file)) is None:
            return
        if state != first:
            raise UsageError(
                FaultCode.ALREADY_RUNNING, "start on this journal", f"a ckptd on another machine uses it ({read(file) or 'unknown'})",
                "stop that one; a second daemon needs a configuration with a state.directory of its own", path=file.parent,
            )  # fmt: skip


def state_of(file: Path) -> tuple[int, int] | None:
    """What is different after a touch; None where there is no lease. Raises OSError."""
    try:
        with open(file, "rb") as stream:  # opened, since NFS asks its server then
            status = os.fstat(stream.fileno())
            return status.st_ino, status.st_mtime_ns
    except FileNotFoundError:
        return None


def _move_away(file: Path, holder: Holder, former: Path, *, foreign: bool) -> None:
    """Remove the lease of this holder, and of no other one who has taken it over meanwhile."""
    try:
        os.rename(file, former)
    except FileNotFoundError:
        return
    moved = read(former)
    if moved != holder:
        with suppress(FileExistsError):
            os.link(former, file)
    elif foreign:
        log.warning(
            f"The ckptd that had this state directory on another machine gives no sign of life ({holder}); this one takes over.",
            event_id=Event.LEASE_TAKEN, former=holder.host,
        )  # fmt: skip
    former.unlink(missing_ok=True)


def _end(file: Path) -> None:
    log.critical(
        f"Another ckptd has taken this state directory over ({read(file)}), since this one gave no sign of life; this one ends at once and"
        " has changed nothing since.", event_id=Event.LEASE_LOST, path=str(file),
    )  # fmt: skip
    os._exit(LOST_CODE)


def now() -> float:
    """Seconds since the boot, those of suspension too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
