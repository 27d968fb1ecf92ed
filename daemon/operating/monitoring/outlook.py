"""What is to be expected of an open export: what it waits for, and how long it will take by what earlier ones took. Pure.

Called by `status`. An estimate is never more precise than it can be: it comes from the medians of a few earlier exports of
the same run or base, and from the progress of what runs; where there is nothing to estimate from there is none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from daemon.contract.light import dataclass
from daemon.journal.rows import StageRow
from daemon.journal.states import ENDED_STAGE
from daemon.running.attempts.executor import CpuShare
from daemon.system.processes.rivals import Rival

LATEST = 5
"""Earlier durations of a stage that count."""
TELLING = 0.2
"""Share of a stage that must be done before its progress says how long the rest takes, beside what earlier ones took."""
CROWDED = 8.0
"""Stages that count as running side by side at the most."""


@dataclass(frozen=True)
class Earlier:
    """What earlier exports like one took."""

    seconds: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Stage → how long it took, newest first."""
    side_by_side: float = 1.0
    """How many of their stages ran at a time, on average."""

    def of(self, stage: str) -> float | None:
        """How long a stage is expected to take; None where it never ran."""
        known = sorted([seconds for seconds in self.seconds.get(stage, ()) if seconds > 0][:LATEST])
        return (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2 if known else None  # the median


def starved(share: CpuShare | None) -> bool:
    """Whether other processes keep an attempt from most of the CPU time that it could use."""
    return share is not None and share.starved


def starving(share: CpuShare, priority: str, rivals: Sequence[Rival] = ()) -> str:
    """What an attempt that is starved gets, in words. `priority`: its own, as `limits.priority` has it; "" where that is not known.

    `rivals`: who has the rest, as far as that was seen.
    """
    rivals_said = " and ".join(map(str, rivals))
    others = f"the rest goes to {rivals_said}" if rivals else "other processes have the rest"
    began = f'; limits.priority = "{priority}", with which this stage began, lets them go first ("normal" counts for later stages)'
    decides = began if priority else "; limits.priority decides"
    if priority == "normal":
        decides = ', though limits.priority is "normal"'
    return f"gets {_percent(share.got)} % of a core and could use {_percent(share.wanted)} %: {others}{decides}"


def _percent(cores: float) -> str:
    return f"{100 * cores:.0f}" if cores >= 0.01 else "less than 1"


def stage_left(expected: float | None, seconds: float, fraction: float, share: CpuShare | None = None) -> float | None:
    """Seconds until a stage that has run for `seconds` ends; None where nothing tells.

    Its own progress alone does not: the parts of a stage take unlike times. The further it is, the more that counts, and the less what
    earlier ones took, which says nothing of one that is starved of CPU time.
    """
    by_progress = seconds / fraction if fraction >= TELLING else None
    if expected is None or starved(share) or (seconds > 2 * expected and by_progress is None):
        return None  # it is not like the earlier ones
    total = expected if by_progress is None else fraction * by_progress + (1 - fraction) * expected
    return max(0.0, total - seconds)


def job_left(stages: Sequence[StageRow], running: Mapping[str, float | None], earlier: Earlier) -> float | None:
    """Seconds of work until a job ends. `running`: stage → what is left of it. None where that is unknown of any stage."""
    left, longest = 0.0, 0.0
    for stage in stages:
        if stage.state in ENDED_STAGE:
            continue
        seconds = running[stage.name] if stage.name in running else earlier.of(stage.name)
        if seconds is None:
            return None
        left, longest = left + seconds, max(longest, seconds)
    return max(longest, left / earlier.side_by_side)


def about(seconds: float) -> str:
    """A duration as roughly as an estimate can be."""
    minutes = seconds / 60
    if minutes < 0.75:
        return "less than a minute"
    if minutes < 10:
        return f"about {max(1, round(minutes))} min"
    if minutes < 90:
        return f"about {5 * round(minutes / 5)} min"
    hours = minutes / 60
    return (
        f"about {round(2 * hours) / 2:g} h" if hours < 5 else f"about {round(hours)} h" if hours < 48 else f"about {round(hours / 24)} days"
    )


def retrying(stages: Iterable[StageRow], clock: float) -> str | None:
    """Which stage waits for its next try, until when, and why; None where none does. `clock`: seconds since the epoch."""
    late = [stage for stage in stages if stage.state == "waiting" and not stage.due(clock)]
    if not late:
        return None
    first = min(late, key=lambda stage: stage.retry_at or 0.0)
    why = f", after: {first.fault.sentence()}" if first.fault else ""
    return f"The stage {first.name} is tried again in {about((first.retry_at or clock) - clock)} (attempt {first.attempts + 1}){why}"
