"""The live file: what only the running daemon knows, for `ckptd status`. Rewritten when it changes and every half minute; nothing needs it.

The daemon writes it, `status`, `explain` and `reload` read it. What another version of ckptd wrote is read as far as it has these names.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.config.known import KnownSettings
from daemon.config.sources import are_given_elsewhere
from daemon.contract.delivering.orders import Progress
from daemon.contract.faults.errors import Fault, from_oserror
from daemon.contract.faults.secrets import censored_values
from daemon.contract.light import dataclass
from daemon.contract.records import read_json
from daemon.contract.version import __version__
from daemon.journal.overview import JournalCare
from daemon.journal.rows import now
from daemon.operating.last_end import LastEnd
from daemon.operating.monitoring.outlook import starving
from daemon.running.attempts.executor import CpuShare, Whereabouts
from daemon.running.rules.ready import describe
from daemon.system.filesystems.disks import Place, Shortage, write_padded
from daemon.system.processes.rivals import Rival
from daemon.system.processes.threads import Death

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.running.runner import Runner
    from daemon.watching.groups import Watchers

READ_TRIES = 3

MOST_UNREADABLE = 200
"""Directories that can't be read, of those that are told: they have a cause or two."""

REWRITE_SECONDS = 30.0
STILL_SECONDS = 120.0
"""Age of the live file from which its daemon counts as standing still: on a starved box the main loop may miss a few turns."""
LIST_SHARE = 20
_LISTS = ("incomplete", "passed_over", "delayed")


@dataclass(frozen=True)
class ConfigLoad:
    """When the configuration was last read, and what was wrong in it; in that case the previous one stays in use."""

    at: str
    problem: str | None = None
    file: str | None = None
    """Path of the configuration file in use; None if there is none, or it is not known (see `digest`)."""
    digest: str | None = None
    """Digest of the values in the files when the configuration in use was read; None if it is not known."""
    changed: bool | None = None
    """Whether the last reload changed a value; None if there was none, or it was refused."""
    changes: tuple[str, ...] = ()
    """The keys that it changed, each with the value before and after; of a secret only that it changed."""
    retention: str | None = None
    """Which exports of a run stay, by the configuration in use."""

    def is_as_read(self, file: str, digest: str) -> bool:
        """Whether this is what was read from a file, with the values that it has now, and used."""
        return self.problem is None and self.digest == digest and not self.is_of_another_file(file)

    def is_of_another_file(self, file: str | None) -> bool:
        """Whether it is known to come from another file than this one; None stands for none that was given or found."""
        if self.digest is None or file is None:
            return False
        return self.file is None or (self.file != file and os.path.realpath(self.file) != os.path.realpath(file))


@dataclass(frozen=True)
class RootState:
    """A watched directory."""

    path: str
    backend: str
    """How it is watched."""
    exists: bool
    """Whether it existed at the daemon's last check."""
    silent_seconds: float | None = None
    """Seconds for which its file system has not answered; None if it answers."""


@dataclass(frozen=True)
class IncompleteState:
    """A directory that is not a complete checkpoint yet."""

    path: str
    missing: tuple[str, ...]
    """The reasons, as sentences."""
    seconds: int
    """Seconds since it was found."""


@dataclass(frozen=True)
class DelayedState:
    """A complete checkpoint that can't be taken now; it is tried again until it can."""

    path: str
    code: str
    """Fault code of what it waits for: `disk-full` if it waits for room on a disk."""
    why: str
    """The reason, and what to do."""

    @classmethod
    def of(cls, path: Path, fault: Fault) -> DelayedState:
        """What a fault at its last try says."""
        from daemon.watching.listing import why_of  # by the daemon alone: to read what it wrote needs nothing of the watching

        where = f"{fault.path}: " if fault.path and fault.path != str(path) else ""
        return cls(str(path), fault.code, f"{where}{why_of(fault)}")


@dataclass(frozen=True)
class StageProgress:
    """What an attempt that runs now reported last."""

    attempt: int
    """Its number within the stage."""
    fraction: float
    message: str
    seconds: float
    """Since it was started."""
    id: str
    """As the executor knows it."""
    memory: int
    """Bytes that it held at the last look."""
    cores: float | None = None
    """CPU time that it got of late, in cores; None where that is not known."""
    wanted: float | None = None
    """CPU time that it could have used, in cores."""
    priority: str = ""
    """Its priority, as `limits.priority` has it; "" where that is not known."""
    place: Whereabouts | None = None
    """Where it is, where a scheduler runs it on another machine."""

    @property
    def share(self) -> CpuShare | None:
        """The CPU time that it got; None where that is not known."""
        return None if self.cores is None or self.wanted is None else CpuShare(self.cores, self.wanted)


@dataclass(frozen=True)
class PageState:
    """The page and the API of `[page]`."""

    address: str
    """Where it answers; while it does not, where it is to listen."""
    problem: str | None = None
    """Why it does not answer, and what to do; None if it does."""


@dataclass(frozen=True)
class LiveFile:
    """Its content. Times are ISO 8601 in UTC; everything is empty where no daemon runs."""

    pid: int | None = None
    version: str | None = None
    """Of the program that wrote it; None where that is older than this field."""
    started: str | None = None
    time: str | None = None
    """When this was written."""
    healthy: bool | None = None
    configuration: ConfigLoad | None = None
    journal: JournalCare | None = None
    roots: tuple[RootState, ...] = ()
    incomplete: tuple[IncompleteState, ...] = ()
    passed_over: Mapping[str, str] = field(default_factory=dict)
    """Directory that holds a checkpoint and is not taken → why, and what to set."""
    delayed: tuple[DelayedState, ...] = ()
    """Complete checkpoints that can't be pinned now, for want of room for example."""
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Directory that the daemon can't read → why: mostly who lacks which right on which path, and what to do; the first MOST_UNREADABLE."""
    progress: Mapping[str, Mapping[str, StageProgress]] = field(default_factory=dict)
    """Job → stage → its progress, of all that run."""
    carried: tuple[Progress, ...] = ()
    """How far the deliveries are that run."""
    waiting: Mapping[str, str] = field(default_factory=dict)
    """Job → why none of its stages can start now."""
    waiting_codes: Mapping[str, str] = field(default_factory=dict)
    """Job → the fault code of that."""
    verdict: str | None = None
    """`healthy`, `full` or `unwell`."""
    unwell: tuple[str, ...] = ()
    """Why it is unwell, as sentences."""
    starved: tuple[str, ...] = ()
    """Sentences on the stages that have got next to no CPU time for minutes."""
    deaths: tuple[Death, ...] = ()
    """Threads that died of an error since the start, and were begun again: the latest of each."""
    last_end: LastEnd | None = None
    """Why the daemon before this one ended by itself."""
    places: tuple[Place, ...] = ()
    """Folders that it writes to, and how much must be free there."""
    disks: tuple[Shortage, ...] = ()
    """File systems without room, as of the last look."""
    rivals: tuple[Rival, ...] = ()
    """What has the CPU time of the stages that are starved of it, as of the last look."""
    jobs: int = 0
    """`limits.jobs`; 0 where it is not known."""
    listed: float = 0.0
    """Seconds between the time of the list `incomplete` and that of the file: its entries are known for so much longer."""
    page: PageState | None = None
    """The page; None where it is off."""
    in_order: bool | None = None
    """Whether the daemon that wrote it has stopped in order, which it says with its last words; None where that is not known."""
    stopping: str | None = None
    """Since when it stops; None while nobody has asked it to."""
    known: str = ""
    """The settings in use that verbs ask for (`daemon.config.known`), as a JSON text; "" where not all of them come from the files."""
    clock: float | None = None
    """The machine's monotonic clock when this was written: `time` says nothing of its age where the wall clock was set meanwhile."""

    def age(self) -> float | None:
        """Seconds since it was written; None where that is not known, as of one that was written before the machine's last start."""
        passed = None if self.clock is None else time.monotonic() - self.clock
        return passed if passed is not None and passed >= 0 else None

    def aged(self) -> LiveFile:
        """The same with the times that pass counted until now."""
        age = self.age() or 0.0
        progress = {
            job: {name: replace(row, seconds=round(row.seconds + age, 1)) for name, row in stages.items()}
            for job, stages in self.progress.items()
        }
        roots = (
            root if (silent := root.silent_seconds) is None else replace(root, silent_seconds=round(silent + age, 1)) for root in self.roots
        )
        incomplete = (replace(row, seconds=round(row.seconds + self.listed + age)) for row in self.incomplete)
        return replace(self, progress=progress, roots=tuple(roots), incomplete=tuple(incomplete))


@dataclass(frozen=True)
class Condition:
    """How the daemon is. The fields are those of the live file."""

    verdict: str
    unwell: tuple[str, ...] = ()
    starved: tuple[str, ...] = ()
    deaths: tuple[Death, ...] = ()
    last_end: LastEnd | None = None
    places: tuple[Place, ...] = ()
    disks: tuple[Shortage, ...] = ()
    page: PageState | None = None


def live_file(
    settings: Settings, watcher: Watchers, runner: Runner, *, started: str, condition: Condition, loaded: ConfigLoad, care: JournalCare,
    in_order: bool, stopping: str | None = None, carried: tuple[Progress, ...] = (),
) -> LiveFile:  # fmt: skip
    """The content at this moment, without the lists of directories (`LiveWriter`). `in_order`: the daemon has stopped in order."""
    waiting, codes = _waits(runner)
    return LiveFile(
        pid=os.getpid(),
        version=__version__,
        started=started,
        time=now(),
        healthy=condition.verdict == "healthy",
        configuration=loaded,
        journal=care,
        roots=tuple(_root_state(root, watcher) for root in (*settings.watch.roots, *watcher.links)),
        unreadable={str(path): fault.sentence() for path, fault in itertools.islice(watcher.unreadable.items(), MOST_UNREADABLE)},
        progress=progress_of(runner),
        waiting=waiting,
        waiting_codes=codes,
        rivals=runner.children.rivals.seen,
        jobs=settings.jobs_at_once,
        in_order=in_order,
        stopping=stopping,
        carried=carried,
        known="" if are_given_elsewhere() else KnownSettings.of(settings).text(),
        clock=time.monotonic(),
        **vars(condition),
    )


def of_export(runner: Runner, started: str) -> LiveFile:
    """The content of the live file of an export in the foreground."""
    waiting, codes = _waits(runner)
    progress, clock = progress_of(runner), time.monotonic()
    return LiveFile(
        pid=os.getpid(), started=started, time=now(), progress=progress, waiting=waiting, waiting_codes=codes, clock=clock,
        rivals=runner.children.rivals.seen,
    )  # fmt: skip


def _waits(runner: Runner) -> tuple[dict[str, str], dict[str, str]]:
    """What the jobs wait for: job → sentence, and job → fault code."""
    faults = {job: waiting.fault for job, waiting in dict(runner.waits.of).items()}
    return {job: describe(fault) for job, fault in faults.items()}, {job: str(fault.code) for job, fault in faults.items()}


def progress_of(runner: Runner) -> dict[str, dict[str, StageProgress]]:
    """Job → stage → its progress, of all that run."""
    progress: dict[str, dict[str, StageProgress]] = {}
    for (job, stage), running in dict(runner.children.running).items():
        said, cpu = running.progress, running.cpu
        seconds = round(time.monotonic() - running.began, 1)
        progress.setdefault(job, {})[stage] = StageProgress(
            running.row.id.number, said.fraction, said.message, seconds, running.attempt.id, running.memory,
            None if cpu is None else round(cpu.got, 3), None if cpu is None else round(cpu.wanted, 3), running.priority,
            running.place,
        )  # fmt: skip
    return progress


def starved_sentences(runner: Runner) -> list[str]:
    """Sentences on the attempts that have got next to no CPU time for minutes."""
    rivals = runner.children.rivals.seen
    return [
        f"For {seconds / 60:.0f} min the stage {running.stage} of {running.job.id} {starving(running.cpu, running.priority, rivals)}."
        for running, seconds in runner.children.starved() if running.cpu is not None
    ]  # fmt: skip


def _root_state(root: Path, watchers: Watchers) -> RootState:
    since = watchers.silent.get(root)
    return RootState(
        str(root), watchers.backend_of(root), watchers.exists(root), None if since is None else round(time.monotonic() - since, 1)
    )  # fmt: skip


class LiveWriter:
    """Writes the live file. What may be thousands of directories is put into words only when it has changed."""

    def __init__(self, file: Path, refused: Callable[[Fault], object] = lambda fault: None) -> None:
        """`refused`: called where a full disk left it only the room that it has."""
        self._file, self._refused = file, refused
        self._seen: tuple[list[tuple[Path, tuple[str, ...]]], dict[Path, str], dict[Path, Fault]] | None = None
        self._lists = ""
        self._listed = self._list_again = 0.0
        self._last: LiveFile | None = None
        self._written = float("-inf")

    def write(self, value: LiveFile, watcher: Watchers) -> None:
        """Replace the file by `value` with the watcher's directories, where anything but the time differs from what is there.

        It is replaced also on a full disk, in the room that it has. Raises OSError where that fails.
        """
        now = time.monotonic()
        changed = self._list(watcher, now)
        timeless = replace(value, time=None, clock=None)
        if not changed and timeless == self._last and now - self._written < REWRITE_SECONDS:
            return
        small = {key: item for key, item in asdict(replace(value, listed=round(now - self._listed, 1))).items() if key not in _LISTS}
        self._last = None  # until it is written
        refusal = write_padded(self._file, f"{self._lists}, {json.dumps(censored_values(small))[1:]}")
        if refusal is not None:
            self._refused(from_oserror(refusal, "replace the live file", str(self._file)).fault)
        self._last, self._written = timeless, now

    def _list(self, watcher: Watchers, now: float) -> bool:
        """Whether the lists are others than those that were written last. Long ones are made anew for a twentieth of the time at most."""
        incomplete = watcher.incomplete
        seen = ([(path, entry.missing) for path, entry in incomplete.items()], watcher.passed_over, watcher.delayed)
        if seen == self._seen or now < self._list_again:
            return False
        states = [
            {"path": str(path), "missing": entry.missing, "seconds": round(now - entry.since)} for path, entry in incomplete.items()
        ]  # fmt: skip
        passed_over = {str(path): why for path, why in seen[1].items()}
        delayed = [asdict(DelayedState.of(path, fault)) for path, fault in seen[2].items()]
        self._lists = json.dumps({"incomplete": states, "passed_over": passed_over, "delayed": delayed})[:-1]
        self._seen, self._listed, done = seen, now, time.monotonic()
        self._list_again = done + LIST_SHARE * (done - now)
        return True


class ExportLive:
    """Writes the live file of an export in the foreground, at most once a second; a disk that takes none is no reason to end."""

    def __init__(self, file: Path) -> None:
        self._file, self._written = file, float("-inf")

    def write(self, value: LiveFile) -> None:
        """Replace the file, where it is old enough."""
        if time.monotonic() - self._written >= 1:
            self._written = time.monotonic()
            with contextlib.suppress(OSError):
                write_live(self._file, value)


def write_live(file: Path, value: LiveFile) -> None:
    """Replace the live file, also on a full disk, in the room that it has. Raises OSError where that fails."""
    write_padded(file, json.dumps(censored_values(asdict(value))))


def read_live(file: Path) -> LiveFile:
    """What the daemon wrote last; empty where that is nothing that this version can read."""
    for _ in range(READ_TRIES):
        with contextlib.suppress(ValueError):
            try:
                return read_json(LiveFile, file.read_bytes())
            except OSError:
                return LiveFile()
        time.sleep(0.01)  # on a full disk it is overwritten in place
    return LiveFile()
