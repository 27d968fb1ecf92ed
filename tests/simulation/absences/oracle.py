"""What must be true of a world in which things go away, by what the world itself knows of where each thing was and when.

- Every complete checkpoint that is there in the end, and what it needs too, is published, once, made of one base, the newest.
- Nothing fails but for what was away for `limits.away_hours`, and says so by its path.
- Whatever waits says for what, and that is away, or was a moment ago.
- What is waited for is told, and no more often than it went.
- No checkpoint is called lost whose root went as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.rows import JobRow, StageRow
from daemon.operating.monitoring.live import DelayedState
from tests.simulation.absences.attempts import NOTE, OF_TEXTS, Made
from tests.simulation.absences.things import Thing

if TYPE_CHECKING:
    from tests.simulation.absences.furniture import Save
    from tests.simulation.absences.world import World

LOOK = 62.0
"""Longest pause between two looks at what is away."""
WITHOUT_REASON = 5.0
"""So long a job may stand still without saying why."""
BOUND = 130.0
"""So long a checkpoint may not be taken: two scans, two looks, and the time for which an adapter must not have changed."""
OF_ABSENCE = frozenset({FaultCode.SOURCE_AWAY, FaultCode.BASE_NOT_FOUND})
OF_TURNS = frozenset({FaultCode.VERIFYING, FaultCode.TURN, FaultCode.TIMING, FaultCode.RETRY, FaultCode.BASE_CHANGED})
"""What a job waits for that has nothing to do with absence."""


def thing_of(world: World, path: str | None) -> Thing | None:
    """The thing that a path lies in."""
    if path is None:
        return None
    around = [Path(path), *Path(path).parents]
    return next((thing for place in around for thing in world.things.values() if thing.path == place), None)


class Watch:
    """Looks at what every job that is open waits for, after each round."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._still: dict[str, float] = {}
        """Job → since when it has stood still without a reason."""

    def look(self) -> None:
        """Note what is not as it must be now."""
        world = self._world
        runner, now = world.runner, world.now
        assert runner is not None
        running = runner.children.jobs()
        for name in sorted(world.journal.jobs.open_ids()):
            world.jobs.add(name)
            waiting = runner.waits.of.get(name)
            if waiting is None or name in running:
                self._look_at_silent(name, bool(running))
                continue
            self._still.pop(name, None)
            self._look_at_reason(name, waiting.fault, now)
        for save in world.saves:
            self._look_at_untaken(save)

    def _look_at_untaken(self, save: Save) -> None:
        """A checkpoint that could be taken is, or what it waits for is named where people look."""
        world, name = self._world, save.thing.name
        assert world.tracker is not None
        there = save.done and not save.thing.is_away and not world.things[save.root].is_away
        if not there or world.journal.sightings.jobs_at(str(save.thing.path)):
            self._still.pop(name, None)
            return
        since = max(self._still.setdefault(name, world.now), world.up_since)
        why, addition = _why_delayed(world, save.thing.path), world.things.get("addition")
        if addition is not None and str(addition.path) in why and "limits.away_hours" in why:
            world.waited.add(addition.name)
        if world.now - since < BOUND or (addition and addition.away_in(world.now - BOUND, world.now) and str(addition.path) in why):
            return
        self._still[name] = world.now
        world.said.append(f"{name} is there since {since - world.began:.1f} and not taken: {why}")

    def _look_at_silent(self, name: str, busy: bool) -> None:
        world = self._world
        if busy or world.runner is None or world.now - world.up_since < WITHOUT_REASON:
            self._still.pop(name, None)
        elif world.now - self._still.setdefault(name, world.now) > WITHOUT_REASON:
            world.said.append(f"{name} has waited since {self._still[name] - world.began:.1f} and nobody says for what")

    def _look_at_reason(self, name: str, fault: Fault, now: float) -> None:
        world = self._world
        if fault.code in OF_TURNS:
            return
        if fault.code not in OF_ABSENCE:
            world.said.append(f"{name} waits at {now - world.began:.1f} as if something were wrong: {fault.sentence()}")
            return
        thing = thing_of(world, fault.path)
        if thing is None:
            world.said.append(f"{name} waits for what is none of the things: {fault.sentence()}")
        elif not thing.away_in(now - LOOK - 20, now):
            world.said.append(f"{name} waits at {now - world.began:.1f} for {thing.name}, which is there: {fault.sentence()}")
        else:
            world.counts["waited"] += 1
            world.waited.add(thing.name)


def check(world: World) -> list[str]:
    """What was violated, seen from the end."""
    jobs = list(_jobs(world))
    said = [*_missed(world, jobs), *_twice(jobs)]
    for job in jobs:
        stages = world.journal.stages.of(job.id)
        said += _failures(world, job, stages)
        if job.state == "succeeded":
            said += _mixed(world, job, stages)
    return [*said, *_told(world)]


def _jobs(world: World) -> Iterator[JobRow]:
    for name in sorted(world.jobs):
        row = world.journal.jobs.get(name)
        if row is not None and row.state != "superseded":
            yield row


def _is_needed(world: World, name: str) -> bool:
    return not name.startswith(("root", "checkpoint"))


def _missed(world: World, jobs: list[JobRow]) -> Iterator[str]:
    """Every checkpoint that can be exported is, and one that can't says why."""
    assert world.tracker is not None
    lasting = [thing for name, thing in world.things.items() if _is_needed(world, name) and thing.stays_away]
    for save in world.saves:
        job = next((job for job in jobs if job.checkpoint.path == str(save.thing.path)), None)
        gone = save.thing.is_away or world.things[save.root].is_away or not save.done
        if job is None:
            if not gone and not _said_of(world, save.thing.path, lasting):
                yield f"{save.thing.name} was missed: {_why_delayed(world, save.thing.path)}"
        elif job.state == "succeeded":
            world.counts["published"] += 1
            yield from _not_there(world, job)
        elif job.state not in ("failed", "partial") and not lasting:
            yield f"{job.id} never ends: {job.state}, {_reason(world, job)}"
        elif job.state not in ("failed", "partial") and not any(str(thing.path) in _reason(world, job) for thing in lasting):
            yield f"{job.id} is {job.state} and does not name what stays away: {_reason(world, job)}"


def _said_of(world: World, path: Path, lasting: list[Thing]) -> bool:
    why = _why_delayed(world, path)
    return any(str(thing.path) in why for thing in lasting)


def _why_delayed(world: World, path: Path) -> str:
    """Why a checkpoint is not taken, as `ckptd status` has it."""
    assert world.tracker is not None
    listing = world.tracker.listing
    return DelayedState.of(path, listing.delayed[path]).why if path in listing.delayed else listing.passed_over.get(path, "")


def _reason(world: World, job: JobRow) -> str:
    assert world.runner is not None
    waiting = world.runner.waits.of.get(job.id)
    return waiting.fault.sentence() if waiting else "it gives no reason"


def _not_there(world: World, job: JobRow) -> Iterator[str]:
    output = world.things["output"]
    if output.is_away:
        return
    variant = job.work.export.variants[0]
    file = job.target / variant / NOTE
    if not file.is_file():
        yield f"{job.id} succeeded and {file} is not there"
        return
    published = json.loads(file.read_text())
    weights = next(save.thing for save in world.saves if str(save.thing.path) == job.checkpoint.path)
    assert weights.write is not None
    if published["adapter"] != [weights.write(0)["adapter_model.safetensors"].hex()[-64:]]:
        yield f"{job.id} was made of another checkpoint"


def _twice(jobs: list[JobRow]) -> Iterator[str]:
    seen = set[str]()
    for job in jobs:
        if job.checkpoint.path in seen:
            yield f"{job.checkpoint.path} was exported twice"
        seen.add(job.checkpoint.path)


def _failures(world: World, job: JobRow, stages: dict[str, StageRow]) -> Iterator[str]:
    """A stage fails only for what was away for long, and names it."""
    for name, row in stages.items():
        if row.state != "failed":
            continue
        fault = row.fault
        sentence = fault.sentence() if fault else "it gives no reason"
        world.counts["failed"] += 1
        thing = thing_of(world, fault.path if fault else None)
        if thing is None:
            yield f"{job.id} {name} failed and names nothing that was away: {sentence}"
        elif thing.longest(world.now, LOOK) < world.patience - LOOK:
            yield f"{job.id} {name} failed though {thing.name} was away for {thing.longest(world.now, LOOK):.0f} s at most: {sentence}"


def _mixed(world: World, job: JobRow, stages: dict[str, StageRow]) -> Iterator[str]:
    """All of an export is made of one base and of one state of its texts: the newest when its last stage but the report began."""
    made = Made()
    for name in stages:
        if (attempt := world.ended.get((job.id, name))) is not None:
            made.add({key: values for key, values in vars(attempt.made).items() if key == "base" or name in OF_TEXTS})
    began = max(at for at, context in world.started if context.job == job.id and context.stage != "report")
    for name in ("base", "prompts", "data"):
        values, thing = getattr(made, name), world.things.get(name)
        if thing is None:
            continue
        numbers = {int("".join(filter(str.isdigit, value))) for value in values}
        newest = sum(at <= began for at in thing.changed)
        if len(numbers) > 1:
            yield f"{job.id} was made of {name} {sorted(numbers)} beside each other"
        elif numbers and min(numbers) < newest:
            yield f"{job.id} was made of {name} {min(numbers)}, and {newest} was there when its last stage began"


def _told(world: World) -> Iterator[str]:
    """Whatever was waited for was told, at most as often as it went."""
    for name, thing in world.things.items():
        begun = [at for at, path, over in world.told if not over and thing_of(world, path) is thing]
        if name in world.waited and not begun:
            yield f"{name} was waited for and that was never told"
        if len(begun) > len(thing.spells):
            yield f"{name} was away {len(thing.spells)} times and that was told {len(begun)} times"
