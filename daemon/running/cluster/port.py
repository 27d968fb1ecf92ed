"""What a scheduler of other machines must be able to do: four verbs. Each of its folders below this one implements them, and nothing else.

A scheduler is believed in one thing alone: that it does not know a job any more. How an attempt ended is in the attempt's folder.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class State(StrEnum):
    """What a scheduler knows of a job."""

    PENDING = "pending"
    RUNNING = "running"
    GONE = "gone"
    """It answered, and has no such job, or one that has ended."""
    UNKNOWN = "unknown"
    """It gave no answer. That says nothing about the job."""


class Ending(StrEnum):
    """Why a scheduler says that a job is gone, as far as it says so."""

    ENDED = "ended"
    """By itself, or nobody knows."""
    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    NODE_LOST = "node-lost"
    TIME_LIMIT = "time-limit"
    OUT_OF_MEMORY = "out-of-memory"
    REQUEUED = "requeued"
    """Somebody put it back into the queue; no scheduler says so, the course does."""


@dataclass(frozen=True)
class Sighting:
    """What a scheduler says about a job."""

    state: State
    id: str = ""
    """Its own name of the job."""
    word: str = ""
    """Its own name of the state, for people."""
    reason: str = ""
    """Why the job waits, in words."""
    host: str = ""
    """Where it runs."""
    ending: Ending = Ending.ENDED
    paused: bool = False
    """It runs, and is suspended: its processes are stopped, and go on later."""


NOT_SEEN = Sighting(State.UNKNOWN)
ABSENT = Sighting(State.GONE)


@dataclass(frozen=True)
class Resources:
    """What a job is given."""

    cpus: int
    memory: int
    """Bytes; 0: what the scheduler gives by default."""
    seconds: float
    gpus: int = 0
    alone: bool = False
    """Nothing else may run on its machine, since it measures time."""
    queue: str = ""
    """Name of `cluster.queues` whose options it is submitted with; "" for those of all."""


class Refused(Exception):
    """The scheduler has answered that it does not take the job; the text says why."""


class Full(Refused):
    """It takes none at present: it is to be asked again later."""


class Unsure(Exception):
    """It gave no answer: the job may have been taken or not."""


class Unasked(Unsure):
    """It could not be asked at all."""


class Scheduler(Protocol):
    """A scheduler. All calls come from one thread, and may block for as long as `CALL_SECONDS`."""

    @property
    def name(self) -> str:
        """As `cluster.executor` has it; ids of its attempts begin with it."""

    def submit(self, token: str, script: Path, resources: Resources) -> str:
        """Hand in a job with the name `token` that runs `script` (in its folder, which is the attempt's); gives the scheduler's own name
        of it. It must never be started a second time by the scheduler. Raises Refused, Full, Unsure, Unasked."""

    def look(self, tokens: Collection[str]) -> Mapping[str, Sighting]:
        """What is known about the jobs with these names, by one call for all: each is in it, unless the scheduler gave no answer, when {}
        is given."""

    def cancel(self, jobs: Mapping[str, str]) -> None:
        """End jobs; token → the scheduler's own name, "" where that is not known. Whether it was done, a look says."""

    def tail(self, token: str, folder: Path) -> str:
        """The end of what the scheduler itself has to say about a job, "" for nothing."""


CALL_SECONDS = 60.0
"""Longest call."""
