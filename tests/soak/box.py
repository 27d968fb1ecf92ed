"""The box of a soak: the daemon, what happens to it, and what must hold all along and at the end.

A second daemon, the neighbour, has the same output and a root of its own; it is killed and stopped too, but its disk does not fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from daemon.checkpoints.pinning.pins import identify
from daemon.contract.disk.files import remove_tree
from daemon.journal.file.opening import reading
from daemon.journal.rows import job_of
from daemon.operating.integrity.fsck import examine
from tests.clock.shift import Shift
from tests.faults.layer import Faults, Rule
from tests.runner.conftest import Toy
from tests.service import ENDED, stray_handlers
from tests.soak.receiver import Receiver
from tests.soak.trainers import Trainers, make_hostile
from tests.storm.world import Sharing, at_rest

SETTINGS = '[limits]\njobs = 2\nretry_seconds = 0.3\nattempts = 50\ndisk_reserve = 0\npriority = "normal"\n[retention]\nkeep_last = 0\n'
MOST_CHILDREN = 2
"""Stages that may run at once: toys are light, and each job has one at a time."""
MOST_GROWTH, MOST_AT_WORK = 64 << 20, 384 << 20
"""Bytes that the daemon may have grown by at the end, and at any time since its first minute: it reads headers of hostile length too."""
VERBS: list[tuple[str, ...]] = [
    ("status",), ("status", "--json"), ("list",), ("check",), ("explain", "ROOT"), ("logs",), ("pause",), ("reload",),
    ("fsck",), ("retry", "JOB"), ("cancel", "JOB"), ("show", "JOB"), ("prune", "--dry-run"),
]  # fmt: skip
MOST_OPEN = 12
BEGINNING_SECONDS = 15.0
FINAL_SECONDS = 180
"""In which something more has ended once nothing more happens."""


class Box:
    """One daemon in `folder`, fed with copies of the checkpoint `source`."""

    def __init__(self, folder: Path, source: Path, seed: int) -> None:
        self.folder = folder
        self._rng = random.Random(seed)
        self._toy = Toy(folder, variants=("pytorch", "onnx"), extra=SETTINGS)
        self._clock = Shift(folder / "shift")
        self._toy.environment = {**self._toy.environment, **self._clock.environment()}
        # Children get no variable that is not known or named.
        self._toy.environment["CKPTD_LIMITS__PASS_ENVIRONMENT"] = (
            "TOY_SECONDS,TOY_HOLD,TOY_LOG,TOY_REJECT,TOY_INEXACT,TOY_BROKEN,TOY_TEXT,TOY_PERPLEXITY,TOY_SWAP,CLOCK_SHIFT"
        )
        self._toy.environment["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[2])
        self._faults = Faults(kinds=("write", "fsync", "open", "rename", "mkdir"))
        self._base, self._aside = folder / "base", folder / "base-aside"
        self._receiver = Receiver(folder)
        self._toy.environment["PYTHONFAULTHANDLER"] = "1"
        self._toy.environment["CKPTD_NOTIFY__URLS_FILE"] = str(self._receiver.urls_file)
        self._neighbour = Sharing(folder / "neighbour", [folder / "runs-of-neighbour"], self._toy.exports, "")
        self._trainers = Trainers(source, self._toy.root, self._rng)
        self._others = Trainers(source, self._neighbour.root, random.Random(seed + 1), "other")
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self._first_size = 0
        self._started = 0.0
        self._began = time.monotonic()

    def soak(self, seconds: float) -> list[str]:
        """Let everything happen for a while; gives what was wrong."""
        self._began = time.monotonic()
        events: list[tuple[int, Callable[[], None]]] = [
            (30, self._train), (10, self._use), (5, self._kill_child), (4, self._kill), (2, self._restart), (6, self._fail),
            (3, self._jump), (5, self._hostile), (20, lambda: None),
            (4, self._take_the_base_away), (6, self._train_next_door), (3, self._disturb_the_neighbour),
        ]  # fmt: skip
        weights = [weight for weight, _ in events]
        with self._faults, self._receiver:
            self._start()
            self._neighbour.start()
            while time.monotonic() < self._began + seconds:
                ((_, event),) = self._rng.choices(events, weights)
                event()
                self._look(self._rng.uniform(0.1, 1.5))
            self._trainers.end()
            self._others.end()
            self._settle()
            self._look(5)
            self._weigh(psutil.Process(self._process().pid).memory_info().rss, at_rest=True)
            self._toy.stop()
            self._settle_the_neighbour()
        self._judge()
        self.counts.update(self._trainers.counts)
        self.counts.update({f"neighbour's {name}": count for name, count in self._others.counts.items()})
        return self.problems

    def remove(self) -> None:
        """Delete everything."""
        remove_tree(self.folder)

    # What happens

    def _start(self) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            environment = {**os.environ, **self._toy.environment, "HF_HUB_OFFLINE": "1"}
            self._toy.process = self._faults.start([*self._toy.command, str(self._toy.config)], stdout=log, stderr=log, env=environment)
        self._started = time.monotonic()
        self.counts["starts"] += 1

    def _train(self) -> None:
        """A trainer begins, unless the daemon has enough to do already: it has to come to everything while things happen to it."""
        if sum(state not in ENDED for _, _, state in self._rows()) < MOST_OPEN:
            self._trainers.begin()

    def _kill(self) -> None:
        self._toy.kill()
        self.counts["daemons killed"] += 1
        self._sleep(1)
        self._start()

    def _take_the_base_away(self) -> None:
        """The base's folder has another name for a while; nothing fails for it."""
        self._base.rename(self._aside)
        self.counts["times that the base was away"] += 1
        self._look(self._rng.uniform(0.5, 5))
        if self._rng.random() < 0.3:
            self._kill()
        self._aside.rename(self._base)

    def _train_next_door(self) -> None:
        if sum(job.state not in ENDED for job in self._neighbour.jobs()) < MOST_OPEN:
            self._others.begin()

    def _disturb_the_neighbour(self) -> None:
        """It dies or is stopped, and starts again; a trouble of this box is none of its own, and it does not end by itself."""
        if not self._neighbour.lives:
            self.problems.append(f"the neighbour ended by itself: {self._neighbour.log()[-1500:]}")
        elif self._rng.random() < 0.7:
            self._neighbour.kill()
            self.counts["neighbour killed"] += 1
        elif (code := self._neighbour.stop()) != 0:
            self.problems.append(f"the neighbour ended with {code} after SIGTERM")
        self._sleep(1)
        self._neighbour.start()

    def _restart(self) -> None:
        process = self._process()
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        if process.poll() is None:
            self.problems.append("the daemon did not end within 60 s of SIGTERM; daemon.log says where its threads were")
            process.send_signal(signal.SIGABRT)  # faulthandler
            self._sleep(1)
            self._toy.kill()
        elif process.returncode not in (0, -signal.SIGTERM):  # the latter before it has taken the signal over
            self.problems.append(f"the daemon ended with {process.returncode} after SIGTERM")
        self.counts["daemons stopped"] += 1
        self._sleep(1)
        self._start()

    def _kill_child(self) -> None:
        for child in self._toy.children()[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
                self.counts["children killed"] += 1

    def _fail(self) -> None:
        """A disk is full, or fails, or nothing may be opened, once or for a while."""
        below = self._rng.choice([self._toy.state, self._toy.exports, self.folder])
        kind, number = self._rng.choice(
            [("write", errno.ENOSPC), ("write", errno.EDQUOT), ("fsync", errno.EIO), ("mkdir", errno.ENOSPC), ("rename", errno.EIO),
             ("open", errno.EMFILE), ("open", errno.EACCES)]
        )  # fmt: skip
        for_good = self._rng.random() < 0.6
        self._faults.set(Rule(kind, number, nth=self._rng.randint(1, 40), calls=None if for_good else 1, below=below))
        self._look(self._rng.uniform(0.5, 6))
        if self._faults.failed:
            self.counts[f"failed calls: {kind} {errno.errorcode[number]}"] += len(self._faults.failed)
            self.counts["times that a disk failed"] += 1
        self._faults.set()

    def _jump(self) -> None:
        self._clock.set(self._rng.choice([0.0, 3600.0, -3600.0, 86400.0, -30.0, 365 * 86400.0]))
        self.counts["clock jumps"] += 1

    def _hostile(self) -> None:
        kind = make_hostile(self._toy.root, self._trainers.source, self._rng, self.counts["hostile directories"])
        self.counts["hostile directories"] += 1
        self.counts[f"hostile: {kind}"] += 1

    def _use(self) -> None:
        """A person uses a verb: it answers in time, and never with a traceback."""
        words = self._rng.choice(VERBS)
        jobs = [job["id"] for job in self._jobs()]
        if "JOB" in words and not jobs:
            return
        names = {"ROOT": str(self._toy.root), "JOB": self._rng.choice(jobs) if jobs else ""}
        try:
            self._toy.run_verb(*(names.get(word, word) for word in words))
        except subprocess.TimeoutExpired:
            self.problems.append(f"`ckptd {' '.join(words)}` did not answer within a minute")
            return
        self.counts["verbs"] += 1
        if words == ("pause",):
            self._look(self._rng.uniform(0.2, 3))
            self._toy.run_verb("queue", "resume")
        if self._receiver.secret in self._toy.said:
            self.problems.append(f"`ckptd {' '.join(words)}` says the notifications' secret")
        if "Traceback" in self._toy.said:
            self.problems.append(f"`ckptd {' '.join(words)}` ended in a traceback: {self._toy.said[-1500:]}")

    # What must hold

    def _look(self, seconds: float) -> None:
        """Watch the limits for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            process = self._process()
            # What can't begin on a failing disk ends, as a service manager expects, and is started again.
            if process.poll() is not None and self._faults.failed and time.monotonic() < self._started + BEGINNING_SECONDS:
                self.counts["starts on a disk that failed"] += 1
                self._faults.set()
                self._start()
            elif process.poll() is not None:
                self.problems.append(f"the daemon ended by itself with {process.returncode}: {self._toy.log()[-1500:]}")
                self._faults.set()
                self._start()
            with contextlib.suppress(psutil.NoSuchProcess):
                running = [
                    child for child in psutil.Process(process.pid).children() if "tests.runner.toy_handlers" in " ".join(child.cmdline())
                ]
                self.counts["most children at once"] = max(self.counts["most children at once"], len(running))
                if len(running) > MOST_CHILDREN:
                    self.problems.append(f"{len(running)} stages ran at once where {MOST_CHILDREN} may")
                self._weigh(psutil.Process(process.pid).memory_info().rss)
            time.sleep(0.1)

    def _weigh(self, size: int, *, at_rest: bool = False) -> None:
        if time.monotonic() > self._began + 60 and not self._first_size:
            self._first_size = size
        self.counts["largest daemon, MiB"] = max(self.counts["largest daemon, MiB"], size >> 20)
        most = MOST_GROWTH if at_rest else MOST_AT_WORK
        if self._first_size and size > self._first_size + most and not any("grew" in problem for problem in self.problems):
            self.problems.append(f"the daemon grew from {self._first_size >> 20} to {size >> 20} MiB")

    def _settle(self) -> None:
        """Nothing more happens: let it end, and take up what people or faults ended early."""
        self._clock.set(0.0)
        self._toy.run_verb("queue", "resume")
        for _ in range(5):
            ended, end = -1, 0.0
            while not self._is_at_rest():
                now = sum(state in ENDED for _, _, state in self._rows())
                if now != ended:
                    ended, end = now, time.monotonic() + FINAL_SECONDS
                elif time.monotonic() > end:
                    self.problems.append(f"nothing has ended for {FINAL_SECONDS} s, and {len(self._rows()) - now} exports are open")
                    return
                self._look(1)
            ended_early = self._ended_early()
            retried = [job for job in ended_early if self._toy.run_verb("queue", "retry", job) == 0]
            if not retried:
                return
            self.counts["taken up again at the end"] += len(retried)

    def _settle_the_neighbour(self) -> None:
        wanted = {str(path): identify(path) for path in self._others.expected}
        end = time.monotonic() + FINAL_SECONDS
        while not at_rest(self._neighbour, wanted) and time.monotonic() < end:
            time.sleep(0.2)
        if (code := self._neighbour.stop()) != 0:
            self.problems.append(f"the neighbour ended with {code} after SIGTERM")
        taken = [(job.checkpoint.path, job.checkpoint.digest, job.state) for job in self._neighbour.jobs()]
        self.counts["neighbour's checkpoints that stay"] = len(wanted)
        for path, digest in wanted.items():
            if (states := [state for *which, state in taken if which == [path, digest]]) != ["succeeded"]:
                self.problems.append(f"the neighbour's {path} ended {states}")

    def _is_at_rest(self) -> bool:
        rows = self._rows()
        taken = {(path, digest) for path, digest, _ in rows}
        wanted = {(str(path), identify(path)) for path in self._trainers.expected}
        return wanted <= taken and all(state in ENDED for _, _, state in rows)

    def _judge(self) -> None:
        for toy in (self._toy, self._neighbour):
            findings = examine(toy.state, toy.exports, quiescent=True, deep=True)
            self.problems += [f"fsck of {toy.state}: {finding}" for finding in findings.findings]
        self.problems += [f"the notifications' secret stands in {path}" for path in self._receiver.leaks()]
        self.counts["notifications"] = self._receiver.count
        self.problems += [f"a child was left: {child}" for child in stray_handlers(self.folder)]
        if "Traceback" in self._toy.log():
            self.problems.append("a traceback in the log: " + self._toy.log().split("Traceback", 1)[1][:1500])
        lost = twice = 0
        for checkpoint in self._trainers.expected:
            digest = identify(checkpoint)
            states = [state for path, of, state in self._rows() if (path, of) == (str(checkpoint), digest)]
            done = states.count("succeeded")
            lost += not done
            twice += done > 1
            if done != 1 or len(states) != 1:
                self.problems.append(f"{checkpoint} as it is was taken {len(states)} times and exported {done} times: {states}")
        rows = self._rows()
        self.problems += [f"{path} was exported" for path, _, state in rows if "hostile-" in path and state in ("succeeded", "partial")]
        self.counts.update({"checkpoints that stay": len(self._trainers.expected), "lost": lost, "twice": twice, "jobs": len(rows)})
        self.counts.update(Counter(f"jobs: {state}" for _, _, state in rows))

    def _rows(self) -> list[tuple[str, str, str]]:
        """(checkpoint, digest, state) of every job."""
        with contextlib.suppress(FileNotFoundError), reading(self._toy.state / "journal.sqlite3") as connection:
            jobs = [job_of(row) for row in connection.execute("SELECT * FROM job").fetchall()]
            return [(job.checkpoint.path, job.checkpoint.digest, job.state) for job in jobs]
        return []

    def _ended_early(self) -> list[str]:
        """Ids of all jobs that people or faults have ended, not of the newest alone as `status` has them."""
        with reading(self._toy.state / "journal.sqlite3") as connection:
            return [row[0] for row in connection.execute("SELECT id FROM job WHERE state IN ('failed', 'partial', 'cancelled')")]

    def _jobs(self) -> list[dict[str, Any]]:
        return list(self._toy.status()["jobs"])

    def _process(self) -> subprocess.Popen[bytes]:
        assert self._toy.process is not None
        return self._toy.process

    def _sleep(self, most: float) -> None:
        time.sleep(self._rng.uniform(0, most))
