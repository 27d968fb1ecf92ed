"""One simulated box whose bases, texts, toolchain, adapters, roots, checkpoints and output go away and come back, by a seed.

Tracker, intake, journal, runner, gate and publication are the real ones; attempts are fakes that really read (`attempts.py`); the clock is
virtual. At any round, and at any named point of a publication or a start, something may go away, come back, or become another one; the
daemon may die there, and start again whatever is away then.
"""

from __future__ import annotations

import math
import random
import shutil
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

from daemon.config.places.paths import Paths, prepare
from daemon.config.settings import Settings
from daemon.contract.faults.errors import CkptdError, Fault, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext, StageResult
from daemon.journal.journal import Journal
from daemon.running.attempts.executor import Order
from daemon.running.runner import Runner
from daemon.watching.taking.intake import Intake
from daemon.watching.tracker import Tracker
from tests.runner.desk import Fake, FakeExecutor
from tests.simulation.absences import furniture, oracle
from tests.simulation.absences.attempts import Attempt
from tests.simulation.absences.things import FOREVER, UNREADABLE, Thing
from tests.simulation.test_running import Clock

PATIENCE = 600.0
"""limits.away_hours, in virtual seconds."""
RESCAN = 30.0
ACTIVE = 300.0
"""For so long things go away; then what is to come back does."""
QUIET = 100.0
"""Seconds from the last thing that came back to the end, by which every checkpoint must be taken."""
END = ACTIVE + 3 * PATIENCE
STEP, LONGEST_STEP = 2.0, 30.0
SHORT_SPELLS = (1.0, 3.0, 10.0, 40.0, 200.0)


class Died(BaseException):
    """The daemon was killed."""


class World:
    """A world below `folder`; `play` gives what was violated."""

    def __init__(self, seed: int, folder: Path, clock: Clock) -> None:
        self.rng, self.folder, self.clock = random.Random(seed), folder, clock
        self.began = clock.now
        self.said: list[str] = []
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.told: list[tuple[float, str, bool]] = []
        """When which path was told to be away, or (True) to be back."""
        self.waited: set[str] = set()
        """Names of what was waited for."""
        self.jobs: set[str] = set()
        """All that were ever entered."""
        self.patience = PATIENCE
        self.attempts: dict[str, Attempt] = {}
        self.started: list[tuple[float, StageContext]] = []
        self.ended: dict[tuple[str, str], Attempt] = {}
        """(job, stage) → its last attempt that succeeded."""
        self.up_at, self.up_since = self.now, math.inf
        self.rescan_at = 0.0
        self.things = furniture.things(self.rng, folder)
        self.saves = furniture.saves(self.rng, folder, self.things)
        for thing in self.things.values():
            thing.make(self.now)
        self.settings = Settings.model_validate(furniture.sections(self.rng, folder, self.things, PATIENCE))
        self.paths: Paths
        self.journal: Journal
        self.runner: Runner | None = None
        self.tracker: Tracker | None = None
        self._eager = self.rng.choice([0.02, 0.05, 0.1])
        self._deadly = self.rng.choice([0.0, 0.003, 0.01])
        furniture.install(folder, self.things)

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.clock.now

    @property
    def is_over(self) -> bool:
        """Whether nothing goes away any more."""
        return self.now >= self.began + ACTIVE

    def is_mounted(self, path: str) -> bool | None:
        """Whether the output's mount is there; None for any other path."""
        output = self.things["output"]
        return not output.is_away or output.way == UNREADABLE if output.mounted and path == str(output.path) else None

    # The daemon

    def _start(self) -> None:
        """As the real one starts: a folder that can't be used ends it, and it is started again a while later. Where the output is a mount,
        the unit asks for that (`RequiresMountsFor=`)."""
        output = self.things["output"]
        try:
            if output.mounted and not self.is_mounted(str(output.path)):
                raise UsageError(FaultCode.NOT_WRITABLE, "start", "the mount of the output is not there", "mount it")
            self.paths = prepare(self.settings.state_directory, self.settings.output.directory)
        except UsageError:
            self.up_at = self.now + 5.0
            return
        self.journal = Journal(self.paths.journal)
        self.up_at, self.up_since, self.rescan_at = math.inf, self.now, self.now
        self.runner = Runner(self.settings, self.journal, self.paths, FakeExecutor(self._begin))
        self.runner.away.tell = self._note_told
        intake = Intake(self.settings, self.journal, self.paths, tell=self._note_told)
        self.tracker = Tracker(self.settings.watch, intake, taken=lambda: None)
        add_lost = self.journal.sightings.add_lost
        self.journal.sightings.add_lost = lambda path, *times: self._note_lost(path) or add_lost(path, *times)  # type: ignore[method-assign]
        with suppress(CkptdError, OSError):
            self.runner.recover()

    def _note_told(self, fault: Fault, over: bool) -> None:
        self.told.append((self.now, str(fault.path or fault.operation), over))
        self._note(f"told {'over' if over else 'begun'}: {fault.path or fault.operation}")
        thing = oracle.thing_of(self, fault.path)
        if over and thing is not None and thing.is_away:
            self.said.append(f"{thing.name} was called back at {self.now - self.began:.1f}, and it is away")

    def _note_lost(self, path: str) -> None:
        self.counts["lost"] += 1
        gone, thing = next((self.things[save.root], save.thing) for save in self.saves if str(save.thing.path) == path)
        self._note(f"lost: {path}")
        if gone.away_in(self.now - RESCAN, self.now) and not thing.away_in(self.now - RESCAN, self.now):
            self.said.append(f"{path} was called lost, and {gone.name} went as a whole")

    def _die(self) -> None:
        self.counts["deaths"] += 1
        if self.rng.random() < 0.7:  # while it is down the wall clock is set
            self.clock.wall = self.rng.choice([0.0, -3600.0, 86400.0, 365 * 86400.0])
        self._note("the daemon died")
        if self.runner is not None:
            self.runner.parts.resumption.close()
            self.runner = self.tracker = None
            self.journal.close()
        self.attempts.clear()
        self.up_at = self.now + self.rng.choice([0.0, 5.0, 30.0])

    def _begin(self, order: Order) -> Fake:
        context = order.context
        self.started.append((self.now, context))
        self._note(f"started {context.attempt_id}")
        return Fake(context, self._script)

    def _script(self, context: StageContext) -> StageResult | None:
        attempt = self.attempts.get(context.attempt_id)
        if attempt is None:
            attempt = self.attempts[context.attempt_id] = Attempt(context, self.now + self.rng.choice([0.5, 5.0, 5.0, 30.0]))
        if self.now < attempt.ends:
            return None
        result = attempt.end()
        if result.fault is None:
            self.ended[context.job, context.stage] = attempt
        self._note(f"ended {context.attempt_id}: {result.outcome} {result.fault.sentence() if result.fault else ''}")
        return result

    # What moves

    def point(self, name: str) -> None:
        """A named point of the product's own: something moves, or the daemon dies."""
        if threading.current_thread() is not threading.main_thread() or not name.startswith(("publish.", "owner.", "kept.", "runner.")):
            return
        if not self.is_over and self.rng.random() < 4 * self._deadly:
            self._note(f"at {name}:")
            raise Died
        if not self.is_over and self.rng.random() < self._eager:
            self._note(f"at {name}:")
            self._move()

    def _move(self) -> None:
        """Something goes away, or comes back before its time."""
        thing = self.rng.choice([*self.things.values()])
        if thing.is_away:
            if not thing.stays_away:
                self._back(thing)
            return
        if not self._is_reachable(thing):
            return
        back = self.now + self.rng.choice(SHORT_SPELLS) if self.rng.random() > 0.03 else FOREVER
        way = self.rng.choice(thing.ways)
        thing.leave(way, self.now, back)
        self.counts[thing.name.partition(" ")[0]] += 1
        self._note(f"{thing.name} is away ({way}) until {back:.1f}")

    def _is_reachable(self, thing: Thing) -> bool:
        """Whether no folder around it is away, and nothing in it is: what is nested moves one at a time."""
        return not any(
            other.is_away and (other.path in thing.path.parents or thing.path in other.path.parents) for other in self.things.values()
        )

    def _back(self, thing: Thing) -> None:
        other = thing.write is not None and not thing.name.startswith("checkpoint") and self.rng.random() < 0.25
        left = thing.come_back(self.now, other=other)
        self.counts["others"] += other
        self._note(f"{thing.name} is back{', another one' if other else ''}")
        if left:
            self.said.append(f"{left[:3]} was written into the empty mount point of {thing.name}")

    def _happen(self) -> None:
        for thing in self.things.values():
            if thing.is_away and thing.back_at <= self.now:
                self._back(thing)
        for save in self.saves:
            if not save.done and save.at <= self.now and not self.things[save.root].is_away:
                save.thing.make(self.now)
                save.done = True
                self.things[save.thing.name] = save.thing
                self._note(f"saved {save.thing.path}")
        if not self.is_over and self.rng.random() < 3 * self._eager:
            self._move()

    # Time

    def play(self) -> list[str]:
        """Play it to its end; gives what was violated."""
        watch = oracle.Watch(self)
        while self.now < self.began + END and len(self.said) < 5:
            self._happen()
            try:
                self._round()
            except Died:
                self._die()
            if self.runner is not None:
                watch.look()
                if not self.is_over and self.rng.random() < self._deadly:
                    self._die()
            if self.is_over and self._is_quiet():
                break
            self.clock.now = max(self.now + STEP, min(self._next(), self.now + LONGEST_STEP))
        if self.runner is None:
            self.said += [] if self.things["output"].stays_away else ["the daemon can't be started"]
            return self.said
        self.said += oracle.check(self)
        return self.said

    def _is_quiet(self) -> bool:
        if self.runner is None or any(thing.is_away and not thing.stays_away for thing in self.things.values()):
            return False
        moved = [spell.until for thing in self.things.values() for spell in thing.spells if spell.until < FOREVER]
        if self.now < max([self.began + ACTIVE, self.up_since, *moved]) + QUIET:
            return False
        stays = any(thing.stays_away for thing in self.things.values())
        return not self.journal.jobs.open_ids() and (not stays or self.now > self.began + ACTIVE + PATIENCE + 120)

    def _round(self) -> None:
        if self.runner is None:
            if self.up_at <= self.now:
                self._start()
            return
        runner, tracker = self.runner, self.tracker
        assert tracker is not None
        if self.now >= self.rescan_at:
            self.rescan_at = self.now + RESCAN
            for root in self.settings.watch.roots:
                tracker.scan(root, self.now)
        tracker.look_at_due(self.now)
        try:
            if not runner._recovered:
                runner.recover()
            runner.tick()
        except (CkptdError, OSError) as error:  # the runner's own thread goes on after these
            self._note(f"a round failed: {error}")
            self.counts["failed rounds"] += 1

    def _next(self) -> float:
        """When something happens next."""
        times = [thing.back_at for thing in self.things.values() if thing.is_away]
        times += [save.at for save in self.saves if not save.done]
        if self.runner is None:
            return min([*times, self.up_at])
        times += [attempt.ends for key, attempt in self.attempts.items() if self._runs(key)]
        times += [waiting.until for waiting in self.runner.waits.of.values()]
        assert self.tracker is not None
        due = self.tracker.next_due()
        times += [self.rescan_at, due if due is not None else math.inf]
        going = {attempt.partition("/")[0] for attempt in self.attempts if self._runs(attempt)}
        soon = [self.now] if self.journal.jobs.open_ids() - self.runner.waits.of.keys() - going else []
        return min([*times, *soon])

    def _runs(self, attempt: str) -> bool:
        assert self.runner is not None
        return any(one.context.attempt_id == attempt for one in self.runner.children.running.values())

    def _note(self, what: str) -> None:
        self.trace.append(f"{self.now - self.began:9.2f} {what}")

    def close(self) -> None:
        """Bring everything back, close the journal, remove everything."""
        for thing in self.things.values():
            if thing.is_away:
                with suppress(OSError):
                    thing.come_back(self.now)
        if self.runner is not None:
            self.runner.parts.resumption.close()
            self.journal.close()
        shutil.rmtree(self.folder)
