"""The fill sweep: one real daemon, whose disk is full at chosen writes, for one call or until there is room again.

Used by `tests/faults/test_filled_anywhere.py`. Stages are toys; daemon, journal, child entry, pins and
publication are the real ones. Each export has a checkpoint of its own content and meets several points at which its disk is full
(`tests.faults.fill_places`); afterwards it must be there once, whole, with the artifacts that an undisturbed one has, and with no attempt
counted. While a disk stays full, `status` and a notification must say so. The draws follow from the seed, the moments do not.
"""

from __future__ import annotations

import errno
import hashlib
import json
import random
import signal
import sqlite3
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.contract.disk.files import sha256_file
from daemon.operating.integrity.fsck import examine
from daemon.publishing.verification import exports_below
from tests.faults.fill_places import KINDS, FillingDisk, Point, combs, ends, one_of_each
from tests.faults.layer import Faults
from tests.faults.services import FaultyService
from tests.notify.test_delivery import Service as Post
from tests.runner.conftest import artifacts, copied
from tests.runner.toy_stages import SHARDS
from tests.service import ENDED, stray_handlers

ERRORS = (errno.ENOSPC, errno.EDQUOT)
BLOCKED_SECONDS = 120.0
"""How long after the last refused call an export may take before it counts as blocked; it takes a few seconds."""
NOTICED_SECONDS = 30.0
"""How long it may take, on a busy box, until a disk that stays full is said by `status` and a notification, and until that is over."""
HELD_SECONDS = 0.6
"""How long a full disk stays full at most after it was said."""
ONCE_TOGETHER, LASTING_TOGETHER = 24, 16
"""Points that one export meets."""
RESTARTED = 0.06
"""How often the daemon is ended and started while a disk is full, of those cases that are told to no service."""
PHASES = ("notified", "lasting", "once")
"""Full until there is room, told to a service; the same without; full for one call."""
ROUNDS = 3
"""How often a point is tried that is not reached, since another one changed what is done, or a file was written less often."""
BAD = ("lost", "twice", "half", "blocked", "counted", "ended", "unsaid", "tracebacks")


@dataclass
class Tally:
    """What was tried, and what came of it. All of BAD must be 0, and `problems` empty."""

    exports: int = 0
    once: set[Point] = field(default_factory=set)
    """Points at which one call was refused."""
    lasting: set[Point] = field(default_factory=set)
    """Points from which on all was refused until there was room."""
    missed_once: set[Point] = field(default_factory=set)
    missed_lasting: set[Point] = field(default_factory=set)
    """Those that no export reached."""
    restarts: int = 0
    """Of the daemon, while a disk was full."""
    refused: int = 0
    """Calls."""
    lost: int = 0
    twice: int = 0
    half: int = 0
    blocked: int = 0
    counted: int = 0
    ended: int = 0
    unsaid: int = 0
    tracebacks: int = 0
    problems: list[str] = field(default_factory=list)
    said: list[float] = field(default_factory=list)
    """Seconds from a full disk to `status` and a notification that say so."""
    seconds: list[float] = field(default_factory=list)
    """From the moment at which there was room for good to the end of the export."""
    wall: float = 0.0

    def bad(self, name: str, problem: str, count: int = 1) -> None:
        """Count something that must not be."""
        setattr(self, name, getattr(self, name) + count)
        self.problems.append(f"{name}: {problem}")

    def figures(self) -> dict[str, Any]:
        """All of it, for JSON."""
        places = {point.place for point in self.once | self.lasting | self.missed_once | self.missed_lasting}
        kinds = sorted({place.file_kind for place in places})

        def of(points: Collection[Point], kind: str) -> int:
            return len({point.place for point in points if point.place.file_kind == kind})

        return {
            "exports": self.exports,
            "places": len(places),
            "filled_once": len(self.once),
            "filled_lasting": len(self.lasting),
            "restarts_while_full": self.restarts,
            "refused_calls": self.refused,
            **{name: getattr(self, name) for name in BAD},
            "said_after_s": _spread(self.said),
            "end_after_room_s": _spread(self.seconds),
            "wall_s": round(self.wall),
            "places_by_file": {
                kind: {"all": sum(p.file_kind == kind for p in places), "once": of(self.once, kind), "lasting": of(self.lasting, kind)}
                for kind in kinds
            },
            "never_filled": sorted(f"{place.kind} {place.what}" for place in places - {p.place for p in self.once | self.lasting}),
            "not_reached": {"once": len(self.missed_once), "lasting": len(self.missed_lasting)},
            "problems": self.problems,
        }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 2), "most": round(max(values), 2)} if values else {}


class Sweep:
    """A daemon under the fault layer, for as many exports as wanted. A context manager; `close` checks all that is on disk."""

    def __init__(self, folder: Path, checkpoint: Path, generator: random.Random, tally: Tally, *, notified: bool) -> None:
        """`notified`: each full disk is also told to a service, for which a process is started."""
        folder.mkdir()
        self.tally = tally
        self._post = Post() if notified else None
        self.service = FaultyService(folder)
        self.service.environment |= {"TOY_SECONDS": "0.02", "TOY_LONGEST_PAUSE": "0.2", "TOY_JOURNAL_CARE": "8"}
        with self.service.config.open("a") as stream:
            stream.write(f'[notify]\nurls = ["{self._post.url}"]\non = ["disk_low"]\n' if self._post else "")
        self._checkpoint, self._generator = checkpoint, generator
        self._faults = Faults(kinds=KINDS)
        self.disk = FillingDisk(folder)
        self._faults.set(decider=self.disk)
        self._count = 0

    def __enter__(self) -> Sweep:
        self._faults.__enter__()
        self._start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._faults.__exit__(*error)
        if self._post:
            self._post.close()

    def points(self) -> list[Point]:
        """Every call for which an undisturbed export needs room, in order."""
        return self.export((), 0)

    def export(self, wanted: Sequence[Point], number: int, *, lasting: bool = False) -> list[Point]:
        """An export during which the disk is full at the wanted points; gives all points that it came by."""
        if self._dead():
            self._start()
        tally, service = self.tally, self.service
        self._said_before = len(service.log())
        before = len(tally.problems)
        self.disk.begin(wanted, number, lasting=lasting)
        self._count += 1
        checkpoint = copied(self._checkpoint, service, f"run-{self._count}", 4)
        name = f"run-{self._count} ({errno.errorcode.get(number, 'undisturbed')}{', lasting' * lasting})"
        room, refused = time.monotonic(), 0
        while not self._dead():
            if self.disk.full is not None:
                self._hold(name)
                self.disk.free()
                room = time.monotonic()
            elif self._is_over(checkpoint):
                break
            elif time.monotonic() - room > BLOCKED_SECONDS:
                tally.bad("blocked", f"{name}: not exported: {self._jobs(checkpoint)}")
                break
            else:
                time.sleep(0.05)
            if self.disk.refused > refused:  # it has to come from there in time, not through all of them
                room, refused = time.monotonic(), self.disk.refused
        tally.seconds.append(time.monotonic() - room)
        met, seen, tally.refused = list(self.disk.met), list(self.disk.seen), tally.refused + self.disk.refused
        (tally.lasting if lasting else tally.once).update(met)
        tally.exports += 1
        self.disk.begin()
        self._judge(name, checkpoint)
        if len(tally.problems) > before:
            tally.problems[before:] = [f"{one}\n  refused: {met}" for one in tally.problems[before:]]
            tally.problems.append(self._log()[-4000:])
            if "not exported" in "".join(tally.problems[before:]) and not self._dead():
                service.kill()  # what blocks it would block all that follow
        return seen

    def close(self) -> None:
        """End the daemon in order and look at everything on disk."""
        tally, service = self.tally, self.service
        self.disk.begin()
        if not self._dead() and service.stop() != 0:
            tally.bad("ended", "the daemon did not end in order")
        found = examine(service.state, service.exports, quiescent=True, deep=True)
        if found.findings:
            tally.bad("half", str(found.findings)[:2000], len(found.findings))
        if strays := stray_handlers(service.folder):
            tally.problems.append(f"left running: {strays}")

    # A case

    def _start(self) -> None:
        self.service.start_under(self._faults)
        self.service.wait_for(lambda v: bool(v["daemon"]["running"] and v["daemon"]["pid"]), 60)

    def _hold(self, name: str) -> None:
        """See to it that a full disk is said, and that no half export is to be seen meanwhile."""
        half, began, told, seen = self.disk.full, time.monotonic(), 0, "nothing"
        while time.monotonic() - began < NOTICED_SECONDS and not self._dead():
            status = self._status()
            seen = status if isinstance(status, str) else str(status["daemon"]["verdict"])
            told = sum("not enough disk space" in message["title"] for message in self._post.taken) if self._post else 0
            if seen == "full" and (not self._post or told >= max(1, self.service.log().count('"code": "disk-low"'))):
                self.tally.said.append(time.monotonic() - began)
                break
            time.sleep(0.1)
        else:
            if not self._dead():
                self.tally.bad("unsaid", f"{name}: {half} was full for {NOTICED_SECONDS:.0f} s at {self.disk.met[-1:]}; status: {seen}; "
                               f"notifications of no room: {told}")  # fmt: skip
        self._look_for_halves(name)
        if self._post is None and self._generator.random() < RESTARTED:
            self._restart(name)
        time.sleep(self._generator.uniform(0, HELD_SECONDS))

    def _restart(self, name: str) -> None:
        """End the daemon while the disk is full, in order or by kill -9; the next one has to live with that disk, and to say so."""
        process = self.service.process
        assert process is not None
        number = self._generator.choice((signal.SIGTERM, signal.SIGKILL))
        process.send_signal(number)
        code = process.wait(90)
        if number == signal.SIGTERM and code != 0:
            self.tally.bad("ended", f"{name}: told to end while the disk was full, it ended with {code}")
        self.tally.restarts += 1
        self.service.start_under(self._faults)
        process = self.service.process

        def says_it() -> bool:
            status = self._status()
            return isinstance(status, dict) and (status["daemon"]["pid"], status["daemon"]["verdict"]) == (process.pid, "full")

        if not self._wait(lambda: self._dead() or says_it(), NOTICED_SECONDS):
            self.tally.bad("unsaid", f"{name}: started on a full disk, it did not say so; status: {str(self._status())[:1000]}")

    def _judge(self, name: str, checkpoint: Path) -> None:
        tally = self.tally
        if self._dead():
            tally.bad("ended", f"{name}: the daemon ended with {self.service.process and self.service.process.returncode}")
            return
        if "Traceback" in self._log():
            tally.bad("tracebacks", f"{name}: a traceback stands in the log")
        if not self._wait(lambda: isinstance(status := self._status(), dict) and status["daemon"]["verdict"] == "healthy", NOTICED_SECONDS):
            tally.bad("unsaid", f"{name}: there is room, and status says {str(self._status())[:1000]}")
        rows = self._rows(checkpoint)
        if len(rows) != 1:
            tally.bad("twice" if rows else "lost", f"{name}: {len(rows)} jobs")
            return
        job, state, target, digest = rows[0]
        if state in ENDED and state != "succeeded":
            tally.bad("lost", f"{name}: {job} ended {state}")
        if state != "succeeded":
            return
        wanted, there = expected(digest), artifacts(Path(target))
        if there != wanted:
            tally.bad("half", f"{name}: {job} published {there} instead of {wanted}")
        if len(exports := self._look_for_halves(name)) != 1:
            tally.bad("twice" if exports else "lost", f"{name}: exported to {exports}")
        with closing(self._read()) as raw:
            counted = raw.execute("SELECT name, failures, crashes FROM stage WHERE job = ? AND failures + crashes > 0", (job,)).fetchall()
            faults = raw.execute("SELECT stage, number, fault FROM attempt WHERE job = ? AND fault IS NOT NULL", (job,)).fetchall()
        if counted:
            tally.bad("counted", f"{name}: {job} has counted attempts: {counted}; their faults: {faults}", len(counted))

    def _look_for_halves(self, name: str) -> list[Path]:
        below = self.service.exports / f"run-{self._count}"
        exports = list(exports_below(below)) if below.exists() else []
        if broken := [str(path) for path in exports if not is_whole(path)]:
            self.tally.bad("half", f"{name}: {broken}")
        return exports

    # What is to be seen

    def _status(self) -> dict[str, Any] | str:
        """The status, or why it can't be told."""
        try:
            return self.service.status()
        except (ValueError, OSError, sqlite3.Error) as error:
            return f"{type(error).__name__}: {error}"

    def _jobs(self, checkpoint: Path) -> list[dict[str, Any]]:
        status = self._status()
        return [] if isinstance(status, str) else [job for job in status["jobs"] if job["checkpoint"] == str(checkpoint)]

    def _is_over(self, checkpoint: Path) -> bool:
        """Whether its job has ended and was cleared away. Asks only where something was published: asking takes a while."""
        if not (self.service.exports / checkpoint.parent.name).is_dir():
            return False
        return any(job["state"] in ENDED and not (self.service.state / "pins" / job["id"]).exists() for job in self._jobs(checkpoint))

    def _read(self) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{self.service.state / 'journal.sqlite3'}?mode=ro", uri=True, timeout=30)

    def _rows(self, checkpoint: Path) -> list[tuple[str, str, str, str]]:
        """(id, state, target, digest) of the jobs of a checkpoint."""
        with closing(self._read()) as raw:
            return raw.execute(
                "SELECT id, state, target, json_extract(checkpoint, '$.digest') FROM job WHERE json_extract(checkpoint, '$.path') = ?",
                (str(checkpoint),),
            ).fetchall()

    def _dead(self) -> bool:
        return self.service.process is None or self.service.process.poll() is not None

    def _log(self) -> str:
        """What the daemon has said since this export was begun."""
        return self.service.log()[self._said_before :]

    @staticmethod
    def _wait(condition: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not (fulfilled := condition()) and time.monotonic() < end:
            time.sleep(0.05)
        return fulfilled


def expected(digest: str) -> dict[str, str]:
    """File → SHA-256 of what `tests.runner.toy_stages` makes of the checkpoint with this digest in the variant `pytorch`."""
    shards = {f"model-{n}.bin": hashlib.sha512(f"{digest} {n}".encode()).digest() * 64 for n in range(SHARDS)}
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in shards.items()}
    made = json.dumps(["pytorch", digest, {"merge": [sums[name] for name in sorted(sums)]}, None])
    return {**{f"pytorch/{name}": value for name, value in sums.items()}, "pytorch/model.json": hashlib.sha256(made.encode()).hexdigest()}


def is_whole(export: Path) -> bool:
    """Whether an export holds what its manifest says."""
    manifest = json.loads((export / "MANIFEST.json").read_bytes())
    return all(sha256_file(export / entry["path"]) == entry["sha256"] for entry in manifest["files"])


def sweep(
    folder: Path,
    checkpoint: Path,
    seed: int,
    *,
    most: int | None = None,
    every: bool = False,
    phases: Collection[str] = PHASES,
    say: Callable[[str], object] = lambda line: None,
) -> Tally:
    """Fill the disk at every place, once and lastingly, each time at a point and with an errno that are drawn.

    `every`: at every point once, and lastingly at the first and the last point of each place. `most`: in so many exports of each phase at
    most. `phases`: those of PHASES that are wanted. `say` gets a line for each. One in six of the lasting ones is told to a service too.
    """
    generator, began, tally = random.Random(seed), time.monotonic(), Tally()
    for phase in (phase for phase in PHASES if phase in phases):
        lasting, together = phase != "once", LASTING_TOGETHER if phase != "once" else ONCE_TOGETHER
        met, missed = (tally.lasting, tally.missed_lasting) if lasting else (tally.once, tally.missed_once)
        with Sweep(folder / phase, checkpoint, generator, tally, notified=phase == "notified") as one:
            points = one.points()
            wanted = (ends(points) if lasting else points) if every else one_of_each(points, generator)
            if phase == "notified":
                wanted = wanted[generator.randrange(6) :: 6]
            elif phase == "lasting":
                done = {point.place for point in met}
                wanted = [point for point in wanted if point not in met and (every or point.place not in done)]
            if most is not None and len(wanted) > most * together:
                drawn = set(generator.sample(wanted, most * together))
                wanted = [point for point in wanted if point in drawn]
            for _ in range(ROUNDS if most is None else 1):
                for group in combs([point for point in wanted if point not in met], together):
                    before = len(tally.problems)
                    one.export(group, generator.choice(ERRORS), lasting=lasting)
                    reached = f"{sum(point in met for point in wanted)} of {len(wanted)} points"
                    say(f"{time.monotonic() - began:5.0f} s  {phase}: {tally.exports} exports, {reached}")
                    for problem in tally.problems[before:]:
                        say(problem)
            missed |= set(wanted) - met
            one.close()
    tally.wall = time.monotonic() - began
    return tally
