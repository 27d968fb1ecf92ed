"""`python -m tests.runner.breaking CHECKPOINT [seed=N] [seconds=N] [always=SHARE] [only=TEXT]`: makes functions raise in a running daemon.

The places are not listed: runs that nothing disturbs say which functions each thread calls. One that raises once has to be without
consequence: the job succeeds, nothing is made twice, the daemon lives and ends in order. One that raises always, until it is mended,
leaves three ways: the job ends all the same; the daemon says what is wrong for as long as that lasts, goes on in the same process when it
is over, and can be stopped meanwhile; or the daemon ends with a reason that the next start tells, and the next one ends the job.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from daemon.config.places.paths import StatePaths
from daemon.journal.file.opening import reading
from daemon.operating.integrity import fsck
from tests.runner.breaking_daemon import ERRORS, JOURNAL, MAIN
from tests.runner.conftest import Toy, copied
from tests.service import ENDED

LOST, TEMPORARY = 70, 75
GROUP = 4
"""Places that raise once in the same daemon: fewer than the deaths after which a thread is given up."""
TOLD_SECONDS, SILENT_SECONDS, MOST_SECONDS, STOP_SECONDS = 3.0, 30.0, 150.0, 60.0
"""How long a daemon must say what is wrong, how long nothing may move before it does, what a case may take, and an end in order."""
STOPPED = 0.3
"""The share of daemons that are stopped while they say what is wrong."""
AFTER = (0, 0, 1, 2, 5)
"""Calls that go well before one that raises once."""
EARLY = 0.3
"""The share of errors in the journal's thread that come already at the start."""
SAID = ('"level": "error"', '"level": "critical"', "made to fail", "MemoryError")
"""What a log has that says something of an error."""
URLS = ("json://one", "json://two")
EXTRA = f"""
[limits]
retry_seconds = 0.1
crashes = 100
[notify]
urls = {json.dumps(URLS)}
on = ["succeeded", "partial", "failed"]
"""


@dataclass(frozen=True)
class Place:
    """A function of a thread. `real`: it is called only where attempts are processes, `reload`: only after a reload."""

    thread: str
    module: str
    name: str
    real: bool = False
    reload: bool = False


@dataclass(frozen=True)
class Case:
    """What raises what: `times` 0 for always, from the call `after` on; `early`: also while the daemon starts, in the journal's thread."""

    place: Place
    error: str
    times: int
    after: int = 0
    early: bool = False

    def __str__(self) -> str:
        times = ("always" if not self.times else "once") + f" {self.after}" * bool(self.after)
        times += " early" * self.early + " reload" * self.place.reload
        return f"{self.place.thread} {self.place.module} {self.place.name} {self.error} {times}"

    @property
    def told(self) -> list[str | int | bool]:
        """As the daemon is told it."""
        return [self.place.thread, self.place.module, self.place.name, self.error, self.times, self.after, self.early]

    @staticmethod
    def of(text: str) -> Case:
        """What `__str__` gave."""
        thread, module, name, error, times, *more = text.split()
        place = Place(thread, module, name, "workers" in module, "reload" in more)
        return Case(place, error, int(times == "once"), sum(int(one) for one in more if one.isdecimal()), "early" in more)


class Breaking(Toy):
    """A daemon in which functions raise."""

    command = (sys.executable, "-m", "tests.runner.breaking_daemon")

    def __init__(self, folder: Path, cases: Iterable[Case] = (), **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, extra=EXTRA)
        self.cases, self.fired, self.over = tuple(cases), folder / "fired.txt", folder / "over"
        self.told = folder / "told.txt"
        self.environment |= {"BREAK_FIRED": str(self.fired), "BREAK_OVER": str(self.over), "BREAK_TOLD": str(self.told), **environment}
        self.environment["BREAK"] = json.dumps([one.told for one in self.cases])
        if not any(one.place.real for one in self.cases):
            self.environment.setdefault("BREAK_QUICK", "1")
        self.jobs = 1
        """How many it is given."""

    def begin(self, checkpoint: Path, *, reload: bool | None = None) -> None:
        """Start it on a checkpoint; where something raises only then (or `reload`), let it reload after that and give it another one."""
        copied(checkpoint, self)
        self.start()
        if reload if reload is not None else any(one.place.reload for one in self.cases):
            self.jobs = 2
            self.wait_for(lambda value: _ended(value, 1), MOST_SECONDS)
            self.reconfigure("settle_seconds = 0.3", "settle_seconds = 0.2")
            assert self.process is not None
            self.process.send_signal(signal.SIGHUP)
            copied(checkpoint, self, step=8)

    def done(self, value: dict[str, Any] | None) -> bool:
        """Whether all that it was given has ended."""
        return value is not None and _ended(value, self.jobs)

    @property
    def raised(self) -> tuple[Case, ...]:
        """The cases whose function has raised."""
        numbers = {int(line) for line in self.fired.read_text().split()} if self.fired.exists() else set()
        return tuple(self.cases[number] for number in sorted(numbers))

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self.process is not None and self.process.poll() is not None

    def end(self) -> int:
        """End it as systemd would, whatever it is at; gives the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end when it is told to\n{self.tail()}") from None

    def end_well(self) -> None:
        """End it; fails where it does not do so in order."""
        code = self.end()
        assert code == 0, f"told to end it ends with {code}\n{self.tail()}"

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(line[:1000] for line in self.log()[-6000:].splitlines()[1:])

    def discard(self) -> None:
        """End what is left of it."""
        if self.process is not None and not self.ended:
            self.kill()


def places(checkpoint: Path, below: Path) -> list[Place]:
    """Every function that a thread of an undisturbed daemon calls."""
    found = dict[tuple[str, str, str], Place]()
    for real, reload in ((False, False), (False, True), (True, False)):
        name = f"trace-{real}-{reload}"
        toy = Breaking(below / name, BREAK_TRACE=str(trace := below / f"{name}.txt"), BREAK_QUICK="" if real else "1")
        try:
            toy.begin(checkpoint, reload=reload)
            toy.wait_for(toy.done)
            toy.end_well()
        finally:
            toy.discard()
        for line in sorted(set(trace.read_text().splitlines())):
            thread, module, name = line.split()
            if not name.endswith("__"):
                found.setdefault((thread, module, name), Place(thread, module, name, real, reload))
    return list(found.values())


def _ended(value: dict[str, Any], count: int) -> bool:
    """Whether so many jobs have ended, and everybody has been told."""
    return len(value["jobs"]) >= count and all(job["state"] in ENDED for job in value["jobs"]) and not value["outbox"].get("pending")


def _check_told(toy: Breaking, *, once: bool) -> None:
    """Every service was told of every job, and (`once`) nothing twice."""
    lines = toy.told.read_text().splitlines() if toy.told.exists() else []
    jobs = Counter(line for line in lines if "room" not in line)
    for url in URLS:
        mine = [line for line in jobs if line.startswith(f"{url} ")]
        assert len(mine) == toy.jobs, f"not told: {lines}\n{toy.tail()}"
    assert not once or set(jobs.values()) == {1}, f"told twice: {lines}\n{toy.tail()}"


def _says(value: dict[str, Any]) -> list[Any]:
    """What the status says is wrong, or keeps the job."""
    waiting = [job["waiting_for"] for job in value["jobs"] if job["waiting_for"]]
    kept = [value[name] for name in ("disks", "passed_over", "delayed", "unreadable", "incomplete", "lost") if value[name]]
    return [*value["daemon"]["unwell"], *waiting, *kept]


def _moves(value: dict[str, Any]) -> str:
    return str([(stage["name"], stage["state"], stage["attempts"]) for job in value["jobs"] for stage in job["stages"]])


def _status(toy: Breaking) -> dict[str, Any] | None:
    try:
        return toy.status()
    except Exception:
        return None  # the file is just being made


def _whole(toy: Breaking) -> None:
    """After an orderly end: nothing half, nothing lost, nothing made twice."""
    found = fsck.examine(toy.state, toy.exports, quiescent=True, deep=True).findings
    assert not found, f"fsck: {found}"


def _whole_after_a_start(toy: Breaking) -> None:
    """The same where what was to be cleared away may have failed just before the end."""
    if fsck.examine(toy.state, toy.exports, quiescent=True, deep=True).findings:
        _next_start(toy, told=False)


def _twice(toy: Breaking) -> list[str]:
    """Stages that were done more than once."""
    with reading(StatePaths(toy.state).journal) as connection:
        rows = connection.execute("SELECT stage, count(*) FROM attempt WHERE outcome = 'succeeded' GROUP BY job, stage").fetchall()
    return [stage for stage, count in rows if count > 1]


def _next_start(toy: Breaking, *, told: bool) -> None:
    """Another daemon, undisturbed, tells the reason if there is one to tell, and does what is left; then nothing is out of order."""
    toy.over.touch()
    toy.start()
    process = toy.process
    assert process is not None
    value = toy.wait_for(lambda v: v["daemon"]["pid"] == process.pid and v["daemon"]["verdict"] is not None, MOST_SECONDS)
    if told:
        assert value["last_end"] is not None and "Could not go on" in value["last_end"]["why"], (
            f"not told: {value['last_end']}\n{toy.tail()}"
        )
        assert "ended by itself" in toy.log()
    jobs = toy.wait_for(toy.done, MOST_SECONDS)["jobs"]
    assert all(job["state"] == "succeeded" or job["error"] for job in jobs), f"{jobs}"
    toy.end_well()
    assert toy.status()["last_end"] is None
    _whole(toy)
    _check_told(toy, once=False)


def _after_its_end(toy: Breaking) -> str:
    """What is to be said of a daemon that has ended by itself."""
    assert toy.process is not None
    code, serving = toy.process.returncode, "ckptd is watching" in toy.log()
    assert code == LOST or (not serving and code in (1, 2, TEMPORARY)), f"it ended with {code}\n{toy.tail()}"
    assert "Could not" in toy.log() or (not serving and "Traceback" in toy.log()), f"it ended without a reason\n{toy.tail()}"
    _next_start(toy, told=code == LOST)
    return "ended" if serving else "did not start"


def once(toy: Breaking, checkpoint: Path) -> str:
    """What became of a daemon in which each of its cases raised once."""
    toy.begin(checkpoint)
    end, value = time.monotonic() + MOST_SECONDS, None
    while not toy.ended and time.monotonic() < end and not toy.done(value := _status(toy)):
        time.sleep(0.05)
    if toy.ended:
        outcome = _after_its_end(toy)
        main = any(one.place.thread == MAIN for one in toy.raised)
        assert main or outcome == "did not start", f"one error ended the daemon\n{toy.tail()}"
        return outcome
    assert value is not None and toy.done(value), f"not done in {MOST_SECONDS:.0f} s; says {value and _says(value)}\n{toy.tail()}"
    assert {job["state"] for job in value["jobs"]} == {"succeeded"}, f"{value['jobs']}\n{toy.tail()}"
    code = toy.end()
    if code == LOST and any(one.place.thread == MAIN for one in toy.raised):
        _next_start(toy, told=True)
        return "ended"
    assert code == 0, f"told to end it ends with {code}\n{toy.tail()}"
    assert toy.status()["last_end"] is None
    _whole_after_a_start(toy)
    _check_told(toy, once=True)
    assert not _twice(toy), f"made twice: {_twice(toy)}\n{toy.tail()}"
    return "recovered"


def always(toy: Breaking, checkpoint: Path, *, stop: bool) -> str:
    """What became of a daemon in which a function raises always. `stop`: it is stopped while it says what is wrong, else the error ends."""
    toy.begin(checkpoint)
    moved, now = "", time.monotonic()
    end, still, said = now + MOST_SECONDS, now, now
    while True:
        value, now = _status(toy), time.monotonic()
        if toy.ended:
            return _after_its_end(toy)
        if value is not None and toy.done(value):
            return _ended_though_broken(toy, value)
        if value is not None and moved != (moved := _moves(value)):
            still = now
        if value is None or not _says(value) or not toy.raised:
            said = now
        if now - max(said, still) > TOLD_SECONDS or (now > end and said < now):
            break
        assert now - still < SILENT_SECONDS, f"it lives on and says nothing\n{toy.tail()}"
        time.sleep(0.05)
    if stop:
        code = toy.end()
        assert code in (0, LOST), f"told to end it ends with {code}\n{toy.tail()}"
        _next_start(toy, told=code == LOST)
        return "told, stopped"
    toy.over.touch()
    end = time.monotonic() + MOST_SECONDS
    while (value := _status(toy)) is None or not toy.done(value):
        if toy.ended:
            return _after_its_end(toy)
        assert time.monotonic() < end, f"it does not go on when the error is over; says {value and _says(value)}\n{toy.tail()}"
        time.sleep(0.05)
    jobs = value["jobs"]
    assert all(job["state"] == "succeeded" or job["error"] for job in jobs), f"{jobs}\n{toy.tail()}"
    toy.end_well()
    _whole_after_a_start(toy)
    return "told, went on" + ("" if jobs[0]["state"] == "succeeded" else f" ({jobs[0]['state']}: {jobs[0]['error']})")


def _ended_though_broken(toy: Breaking, value: dict[str, Any]) -> str:
    job = next((one for one in value["jobs"] if one["state"] != "succeeded"), value["jobs"][0])
    assert job["state"] == "succeeded" or job["error"], f"{job['state']} without a reason\n{toy.tail()}"
    said = any(word in line for line in toy.log().splitlines() for word in SAID) or "Traceback" in toy.log()
    code = toy.end()
    assert code in (0, LOST), f"told to end it ends with {code}\n{toy.tail()}"
    _next_start(toy, told=code == LOST)
    if not toy.raised:
        return "not reached"
    if job["state"] != "succeeded":
        return f"job {job['state']}: {job['error']}"
    return "recovered" if said else "recovered in silence"


@dataclass
class Sweep:
    """Tries cases one after the other and says what became of them."""

    checkpoint: Path
    below: Path
    generator: random.Random
    tried: int = 0
    starts: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def run(self, cases: Iterable[Case], go_on: Callable[[], bool] = lambda: True) -> None:
        """Try them while there is time: those that raise once in groups, of which a bad one is taken apart."""
        group: list[Case] = []
        for case in cases:
            if not go_on():
                break
            if case.times == 0:
                self._try([case])
                continue
            if group and (len(group) == GROUP or (group[0].place.real, group[0].place.reload) != (case.place.real, case.place.reload)):
                self._group(group)
                group = []
            group.append(case)
        if group:
            self._group(group)

    def _group(self, group: list[Case]) -> None:
        outcome, raised = self._try(group, quiet=len(group) > 1)
        if len(group) > 1:
            missed = [replace(one, after=0) for one in group if one not in raised]
            for case in group if outcome is None or outcome == "ended" else missed:
                self._try([case])

    def _try(self, cases: list[Case], *, quiet: bool = False) -> tuple[str | None, tuple[Case, ...]]:
        """`quiet`: what is not all right is tried again one by one."""
        self.starts += 1
        toy, began = Breaking(self.below / f"case-{self.starts}", cases), time.monotonic()
        outcome: str | None = None
        try:
            stop = self.generator.random() < STOPPED
            outcome = once(toy, self.checkpoint) if cases[0].times else always(toy, self.checkpoint, stop=stop)
        except Exception as error:
            why = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
            if not quiet:
                self.failures.append(f"{'; '.join(map(str, cases))}: {why.splitlines()[0] if why else '?'}")
                print(f"FAIL {'; '.join(map(str, cases))}: {why}", flush=True)
        finally:
            toy.discard()
        raised = toy.raised
        good = [one for one in cases if one in raised] if outcome else []
        if not quiet:
            self.tried += len(cases)
            self.outcomes[re.sub(r"[:(].*", "", outcome) if raised and outcome else "not reached" if outcome else "FAIL"] += len(cases)
        elif outcome == "recovered":
            self.tried += len(good)
            self.outcomes[outcome] += len(good)
        if not (quiet and outcome is None):
            for case in cases if not quiet else good:
                print(f"{outcome or 'FAIL'}: {case} ({time.monotonic() - began:.1f} s)", flush=True)
        if outcome:
            shutil.rmtree(toy.folder, ignore_errors=True)
        return outcome, raised

    def summary(self) -> str:
        """Counts, and what failed."""
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.outcomes.items()))
        return "\n".join([f"{self.tried} cases in {self.starts} daemons: {counts}", *(f"FAIL {one}" for one in self.failures)])


def cases_of(found: list[Place], generator: random.Random, share: float = 0.3) -> Iterator[Case]:
    """Each place with a random error, in a random order, again and again; `share` of them raises always."""
    while True:
        for place in generator.sample(found, len(found)):
            error, times = generator.choice(list(ERRORS)), int(generator.random() >= share)
            after = generator.choice(AFTER) if times else 0
            yield Case(place, error, times, after, early=place.thread == JOURNAL and generator.random() < EARLY)


def main(checkpoint: Path, seed: int, seconds: float, share: float, only: str) -> int:
    """Sweep for so long; print every case, the counts and the seed. `only`: cases as they are printed, with semicolons between them, or a
    text that each has in it."""
    print(f"seed={seed}", flush=True)
    below, generator = Path(tempfile.mkdtemp(prefix="breaking-")), random.Random(seed)
    end = time.monotonic() + seconds
    sweep = Sweep(checkpoint, below, generator)
    print(f"folder {below}")
    if len(only.split()) >= 5:
        cases: Iterable[Case] = map(Case.of, only.split(";"))
    else:
        found = places(checkpoint, below)
        print(f"{len(found)} places in {sorted(Counter(one.thread for one in found).items())}", flush=True)
        cases = (case for case in cases_of(found, generator, share) if only in str(case))
    sweep.run(cases, lambda: time.monotonic() < end)
    print(f"seed={seed}: {sweep.summary()}")
    return 1 if sweep.failures else 0


if __name__ == "__main__":
    options = dict(word.split("=", 1) for word in sys.argv[2:])
    sys.exit(main(
        Path(sys.argv[1]), int(options.get("seed", random.randrange(10**6))), float(options.get("seconds", 1800)),
        float(options.get("always", 0.3)), options.get("only", ""),
    ))  # fmt: skip
