"""The fill sweep: one real daemon, whose disk is full at the n-th write of a kind, for one call or until there is room again.

Used by `tests/faults/test_filled_anywhere.py` and `benchmarks/faults.py`. Stages are toys; daemon, journal, child entry, pins and
publication are the real ones. For each case a checkpoint of its own content is added, and afterwards it must be exported, once, whole, with
the artifacts that an undisturbed export has, and with no attempt counted.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.contract.files import sha256_file
from daemon.operating.integrity.fsck import examine
from daemon.publishing.verification import exports_below
from tests.faults.layer import Faults, Rule, Seen
from tests.faults.services import FaultyService
from tests.runner.conftest import artifacts, copied
from tests.runner.toy_stages import SHARDS
from tests.service import ENDED, stray_handlers

KINDS = ("write", "fsync", "rename", "link", "symlink", "mkdir", "open-to-write", "truncate")
HALVES = ("state", "exports")
BLOCKED_SECONDS = 240.0
"""How long after there was room again an export may take before it counts as blocked; it takes a few seconds."""
NOTICED_SECONDS = 30.0
"""How long it may take until a disk that stays full is said; it takes at most five."""
HOLD_SECONDS = 1.0


@dataclass(frozen=True)
class Point:
    """The n-th call of a kind below the state or the output. `what`: the name that it worked on, without what changes from run to run."""

    half: str
    kind: str
    nth: int
    what: str


@dataclass
class Tally:
    """What was tried, and what came of it. All but the first three must be 0, or empty."""

    cases: int = 0
    points: int = 0
    failed_calls: int = 0
    lost: int = 0
    twice: int = 0
    half: int = 0
    blocked: int = 0
    counted: int = 0
    ended: int = 0
    unsaid: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """From the moment at which there was room to the end of the export."""

    def add(self, other: Tally) -> None:
        """Count another's cases too."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Sweep:
    """A daemon under the fault layer, for as many cases as wanted. A context manager; `close` checks all that is on disk."""

    def __init__(self, folder: Path, checkpoint: Path) -> None:
        self.service = FaultyService(folder)
        self.service.environment |= {"TOY_SECONDS": "0.02"}
        self._checkpoint = checkpoint
        self._faults = Faults(kinds=KINDS)
        self._count = 0

    def __enter__(self) -> Sweep:
        self._faults.__enter__()
        self.service.start_under(self._faults)
        self.service.wait_for(lambda v: bool(v["daemon"]["running"] and v["daemon"]["pid"]), 60)
        return self

    def __exit__(self, *error: Any) -> None:
        self._faults.__exit__(*error)

    def points(self) -> list[Point]:
        """Every call that an undisturbed export makes, in no order."""
        rules = [Rule(kind, below=self._below(half)) for kind in KINDS for half in HALVES]
        self._faults.set(*rules)
        self._add()
        self._wait(lambda: self._is_over(), BLOCKED_SECONDS)
        calls, found, counts = self._faults.calls, [], Counter[tuple[str, str]]()
        self._faults.set()
        for call in calls:
            # A `rename` out of one half into the other matches both; what opens a file for reading alone matches none.
            for half in HALVES:
                if any(path.startswith(f"{self._below(half)}") for path in call.paths):
                    kind = "open-to-write" if call.kind == "open" else call.kind
                    counts[half, kind] += 1
                    found.append(Point(half, kind, counts[half, kind], self._name(call, half)))
        return found

    def comb(self, half: str, kind: str, number: int, first: int, stride: int, most: int) -> Tally:
        """One export during which the calls `first`, `first + stride`, … up to `most` fail, each once."""
        wanted = range(first, most + 1, stride)
        rules = [Rule(kind, number, nth=nth, below=self._below(half)) for nth in wanted]
        return self._case(f"{kind} {list(wanted)} below {half}", lambda: self._faults.set(*rules), len(wanted))

    def lasting(self, point: Point, number: int) -> Tally:
        """One export during which from this call on nothing can be written there, until there is room."""
        rule, before = Rule(point.kind, number, nth=point.nth, calls=None, below=self._below(point.half)), self._said_full()

        def fill() -> None:
            self._faults.set(rule)

        def hold() -> str | None:
            self._wait(lambda: bool(self._faults.failed) or self._is_over(), BLOCKED_SECONDS)
            if not self._faults.failed:
                return None  # this run made fewer calls of the kind
            self._faults.set(*(Rule(kind, number, calls=None, below=self._below(point.half)) for kind in KINDS))
            began = time.monotonic()
            noticed = self._wait(lambda: self._said_full() > before or self._dead(), NOTICED_SECONDS)
            time.sleep(max(0.0, HOLD_SECONDS - (time.monotonic() - began)))
            return None if noticed else f"nothing was said of the full disk within {NOTICED_SECONDS:.0f} s"

        return self._case(f"{point.kind} {point.nth} ({point.what}) and all after it below {point.half}", fill, 1, hold)

    def close(self) -> Tally:
        """End the daemon in order and look at everything on disk."""
        tally, service = Tally(), self.service
        if not self._dead() and service.stop() != 0:
            tally.ended += 1
            tally.problems.append("the daemon did not end in order")
        found = examine(service.state, service.exports, quiescent=True, deep=True)
        if found.findings:
            tally.half += len(found.findings)
            tally.problems.append(str(found.findings)[:2000])
        if strays := stray_handlers(service.folder):
            tally.problems.append(f"left running: {strays}")
        return tally

    # A case

    def _case(self, name: str, fill: Callable[[], None], points: int, hold: Callable[[], str | None] = lambda: None) -> Tally:
        tally, said = Tally(cases=1, points=points), len(self.service.log())
        fill()
        checkpoint = self._add()
        if problem := hold():
            tally.unsaid += 1
            tally.problems.append(f"{name}: {problem}")
        if hold.__name__ == "hold":
            tally.failed_calls += len(self._faults.failed)
            self._faults.set()
        began = time.monotonic()
        over = self._wait(self._is_over, BLOCKED_SECONDS)
        tally.seconds.append(time.monotonic() - began)
        tally.failed_calls += len(self._faults.failed)
        self._faults.set()
        if self._dead():
            tally.ended += 1
            tally.problems.append(f"{name}: the daemon ended with {self.service.process and self.service.process.returncode}")
            return tally
        if not over:
            tally.blocked += 1
            tally.problems.append(f"{name}: not exported: {self._row(checkpoint)} {self.service.log()[said:][-3000:]}")
            return tally
        self._judge(name, checkpoint, tally)
        if tally.problems:
            tally.problems.append(self.service.log()[said:][-3000:])
        return tally

    def _judge(self, name: str, checkpoint: Path, tally: Tally) -> None:
        rows = self._rows(checkpoint)
        if len(rows) != 1:
            tally.lost, tally.twice = tally.lost + (not rows), tally.twice + max(0, len(rows) - 1)
            tally.problems.append(f"{name}: {len(rows)} jobs")
            return
        job, state, target, digest = rows[0]
        if state != "succeeded":
            tally.lost += 1
            tally.problems.append(f"{name}: {job} ended {state}")
            return
        wanted, there = expected(digest), artifacts(Path(target))
        broken = [str(path) for path in exports_below(self.service.exports / checkpoint.parent.name) if not is_whole(path)]
        if there != wanted or broken:
            tally.half += 1
            tally.problems.append(f"{name}: {job} published {there} instead of {wanted}, broken: {broken}")
        with closing(sqlite3.connect(self.service.state / "journal.sqlite3")) as raw:
            counted = raw.execute("SELECT name, failures, crashes FROM stage WHERE job = ? AND failures + crashes > 0", (job,)).fetchall()
        if counted:
            tally.counted += len(counted)
            tally.problems.append(f"{name}: {job} has counted attempts: {counted}")

    def _add(self) -> Path:
        self._count += 1
        return copied(self._checkpoint, self.service, f"run-{self._count}", 4)

    def _rows(self, checkpoint: Path) -> list[tuple[str, str, str, str]]:
        """(id, state, target, digest) of the jobs of a checkpoint."""
        with closing(sqlite3.connect(self.service.state / "journal.sqlite3", timeout=30)) as raw:
            return raw.execute(
                "SELECT id, state, target, json_extract(checkpoint, '$.digest') FROM job WHERE json_extract(checkpoint, '$.path') = ?",
                (str(checkpoint),),
            ).fetchall()

    def _row(self, checkpoint: Path) -> Any:
        return [job for job in self.service.status()["jobs"] if job["checkpoint"] == str(checkpoint)]

    def _is_over(self) -> bool:
        """Whether the latest checkpoint's job has ended and was cleared away, or the daemon has."""
        if self._dead():
            return True
        rows = self._rows(self.service.root / f"run-{self._count}" / "checkpoint-4")
        return any(state in ENDED and not (self.service.state / "pins" / job).exists() for job, state, _, _ in rows)

    def _dead(self) -> bool:
        assert self.service.process is not None
        return self.service.process.poll() is not None

    def _said_full(self) -> int:
        return self.service.log().count('"code": "disk-low"')

    def _below(self, half: str) -> Path:
        return self.service.folder / half

    def _name(self, call: Seen, half: str) -> str:
        path = next(path for path in call.paths if path.startswith(str(self._below(half))))
        name = path.removeprefix(f"{self.service.folder}/")
        for pattern, word in ((r"run-\d+-4-[0-9a-f]+", "JOB"), (r"run-\d+", "RUN"), (r"\.\d+\.tmp", ".TMP"), (r"[0-9a-f]{64}", "KEY")):
            name = re.sub(pattern, word, name)
        return re.sub(r"exports/\.(\w+)/[0-9a-f]+", r"exports/.\1/INSTANCE", name)

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


def places(points: Iterable[Point]) -> list[Point]:
    """The first and the last point of each kind and name."""
    ends: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        ends.setdefault((point.kind, point.what), []).append(point)
    return [point for group in ends.values() for point in dict.fromkeys((group[0], group[-1]))]


def combs(points: Iterable[Point], teeth: int) -> list[tuple[str, str, int, int, int]]:
    """(half, kind, first, stride, most) of combs that together make every point fail once, about `teeth` in each export."""
    most = Counter((point.half, point.kind) for point in points)
    found = []
    for (half, kind), count in most.items():
        stride = max(1, -(-count // teeth))
        found += [(half, kind, first, stride, count) for first in range(1, stride + 1)]
    return found


def sweep(
    folder: Path, checkpoint: Path, number: int, *, teeth: int = 8, once: int | None = None, lasting: int | None = None, seed: int = 0
) -> Tally:
    """The sweep with the errno `number`; `once` and `lasting`: how many cases of either kind, drawn by `seed`, None for all."""
    generator, tally = random.Random(seed), Tally()
    with Sweep(folder, checkpoint) as one:
        points = one.points()
        rows, held = combs(points, teeth), places(points)
        for half, kind, first, stride, most in rows if once is None else generator.sample(rows, min(once, len(rows))):
            tally.add(one.comb(half, kind, number, first, stride, most))
        for point in held if lasting is None else generator.sample(held, min(lasting, len(held))):
            tally.add(one.lasting(point, number))
        tally.add(one.close())
    return tally
