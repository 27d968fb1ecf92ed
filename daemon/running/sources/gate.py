"""Lets a job go on where all that it reads from outside is there, and has it wait where something is away.

A part of the runner and used by its thread alone. The looks themselves are made in threads of their own, so that a file system which does
not answer holds up no other job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from daemon.checkpoints.models.base_models import Bases
from daemon.contract.disk import away
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.stages import StageSpec
from daemon.contract.values import digest_of
from daemon.journal.rows import JobRow, StageRow
from daemon.running.attempts.executor import Whereabouts
from daemon.running.rules.admission import WAIT_SECONDS
from daemon.running.rules.resume_keys import Sources, texts_of
from daemon.running.sources import outside
from daemon.running.sources.outside import Absent, Place, Seen, key_of
from daemon.running.waits import Waits
from daemon.system.episodes import Away
from daemon.system.processes.looks import Looks, NotYet
from daemon.toolchains.registry import Toolchains

FOR_SOURCES = frozenset({FaultCode.SOURCE_AWAY, FaultCode.BASE_NOT_FOUND})
"""What a job waits for that is away."""
TOOLCHAIN = "toolchain"
"""The kind of look that is made for one stage alone."""
HOUR = 3600.0


def met_there(stage: str) -> str:
    """The kind of look that an attempt on another machine is: only the stage's success ends what it waits for."""
    return f"attempt {stage}"


class Gate:
    """The looks at what jobs read, by one configuration."""

    def __init__(
        self, bases: Bases, places: Sequence[Place], gone: Away, waits: Waits, answered: Callable[[], object], toolchains: Path, *,
        at_once: bool = False,
    ) -> None:  # fmt: skip
        """`at_once`: a person waits, so what is missing at the start is an error and not waited for. `answered`: called when a file system
        that was silent has answered. `toolchains`: the folder of all of them."""
        self.toolchains = toolchains
        self._bases, self._places, self._away, self._waits, self._at_once = bases, places, gone, waits, at_once
        self._looks = Looks(answered)
        self._known: set[str] = set()
        """Texts that were there."""

    def find_base(self, job: JobRow) -> Seen | None:
        """Where a job that has not begun finds its base; None where it waits for that."""
        checkpoint = job.checkpoint
        key = f"base {digest_of([checkpoint.method, checkpoint.layout, checkpoint.base_name, checkpoint.base_revision])}"
        return self._ask(job, key, lambda: outside.look_for_base(job, self._bases, whole=not self._at_once), patience=not self._at_once)

    def look(self, job: JobRow, stages: Mapping[str, StageRow], before: Sources | None) -> Seen | None:
        """What the stages of a job that runs read, as it is now; None where it waits for that. Where none is left to be made, only the
        places that it is published to and cleared away from are looked at.

        `before`: what finished ones were made of.
        """
        if before is not None and all(stage.state != "waiting" for stage in stages.values()):
            return self._look_at_places(job, before)
        known, done_with = frozenset(self._known), self._done_with(job, stages)

        def required(value: str) -> bool:
            return value not in done_with and (not self._at_once or value in known)

        def question() -> Seen:
            seen = outside.look(job, stages, self._bases, self._places, required, self.toolchains, whole=not self._at_once)
            if before is not None and seen.sources is not None and job.base is not None:
                outside.check_vanished(job.base, before["base"], seen.sources["base"])
            return seen

        seen = self._ask(job, f"job {job.id}", question, patience=True)
        if seen is not None and seen.sources is not None:
            self._known |= {value for path, value in texts_of(job, stages).items() if (rows := seen.sources.get(path)) and rows[0][0] != ""}
        return seen

    def _look_at_places(self, job: JobRow, sources: Sources) -> Seen | None:
        """That the places of a job of which no stage is left are there, so that it can be published; None where it waits for that."""

        def question() -> Seen:
            for place in self._places:
                place.check()
            return Seen(job.base, sources)

        mine = {name for place in self._places for name in (place.mount, str(place.folder))}
        return self._ask(job, f"places {job.id}", question, patience=True, only=mine)

    def _done_with(self, job: JobRow, stages: Mapping[str, StageRow]) -> set[str]:
        """Texts that the job has waited for long enough: the stages that read them say so, and the others go on."""
        return {value for value in texts_of(job, stages).values() if self._away.is_over(job.id, outside.shown(value))}

    def toolchain(self, job: JobRow, spec: StageSpec, chains: Toolchains, cache: Path) -> tuple[bool, Fault | None]:
        """Whether the toolchain of a stage was looked at and is not away, so that the stage need not wait for it; and what it lacks."""
        name, operation = spec.toolchain, f"run the stage {spec.name}"
        if not name:
            return True, None

        def question() -> Fault | None:
            if name in chains.known and (problem := chains.gone(name, cache)) is not None:
                raise Absent(str(chains.folder(name)), away.fault_of(problem.filename, problem, operation))
            return chains.lacking(name, operation)

        try:
            fault = self._looks.ask(f"toolchain {name}", question)
        except NotYet as error:
            if not error.silent:
                return False, None
            absent = Absent(str(chains.home), away.fault_of(chains.home, TimeoutError(), operation))
        except Absent as error:
            absent = error
        else:
            self._away.there(job.id, TOOLCHAIN)
            return True, fault
        seen = self._absent(job, absent.key, absent.fault, patience=True)
        return seen is not None, None if seen is None else seen.fault

    def offer(self, chains: Toolchains, cache: Path) -> bool:
        """Let stages find their toolchains; False where that is not known to have been done."""
        try:
            self._looks.ask("toolchains", lambda: chains.offer(cache))
        except NotYet:
            return False
        return True

    def _ask(
        self, job: JobRow, key: str, question: Callable[[], Seen], *, patience: bool, only: Collection[str] | None = None
    ) -> Seen | None:
        try:
            seen = self._looks.ask(key, question)
        except NotYet as error:
            if not error.silent:
                return None
            place = str(job.base or job.checkpoint.base_name or job.pin)
            fault = away.fault_of(place, TimeoutError(), "read what the export is made of")
            return self._absent(job, place, fault, patience=True)
        except Absent as error:
            return self._absent(job, error.key, error.fault, patience=patience)
        self._away.there(job.id, only=only)
        return seen

    def _absent(self, job: JobRow, key: str, fault: Fault, *, patience: bool) -> Seen | None:
        if not patience:
            return Seen(None, None, fault)
        said = self.explain_wait(fault)
        pause = self.waits(job, key, said)
        if pause is None:
            return Seen(job.base, None, self.given_up(fault))
        self._waits.add(job.id, said, pause, said=True)
        return None

    def waits(self, job: JobRow, key: str, fault: Fault) -> float | None:
        """As `Away.waits`, by the kind of look that can find this there again."""
        return self._away.waits(job.id, key, fault, TOOLCHAIN if self.toolchains in (Path(key), *Path(key).parents) else "")

    def met(self, job: JobRow, stage: str, fault: Fault, place: Whereabouts | None) -> tuple[Fault, float | None]:
        """What is said of what an attempt met that is away, and how long it is until the next; None where it was waited for long enough.

        `place`: where the attempt ran, if not on this box, which may see what another machine does not.
        """
        key = key_of(job, fault.path or job.id, self.toolchains)
        if place is None:
            said = self.explain_wait(fault)
            pause = self.waits(job, key, said)
            return self.given_up(fault) if pause is None else said, pause
        cause = f"{fault.cause} on {place.host}, a machine of {place.scheduler}"
        remedy = (
            f"make it readable there by the same path (`ckptd check` says what the machines of {place.scheduler} don't see), or let the"
            f' stage run here (stages = {{ {stage} = "local" }} in [cluster], and a restart of the daemon)'
        )
        said = fault.model_copy(update={"cause": cause, "remedy": f"{remedy} (it waits for {self._hours()}, limits.away_hours)"})
        pause = self._away.waits(job.id, f"{place.scheduler}:{key}", said, met_there(stage), there=True)
        return self.given_up(fault.model_copy(update={"cause": cause}), remedy) if pause is None else said, pause

    def place_away(self) -> Fault | None:
        """What of the places is away right before something is made there: what lies in a mount point is hidden once it is mounted."""
        try:
            for place in self._places:
                place.check()
        except Absent as error:
            return error.fault
        return None

    def refused(self, job: JobRow, fault: Fault) -> None:
        """A job could not go on for `fault`, and waits: what is away is told as the looks tell it, however short it was."""
        if fault.code == FaultCode.SOURCE_AWAY:
            seen = self._absent(job, key_of(job, fault.path or job.id, self.toolchains), fault, patience=True)
            if seen is None:
                return
            fault = seen.fault or fault
        self._waits.add(job.id, fault, WAIT_SECONDS)

    def is_away(self, fault: Fault) -> bool:
        """Whether an attempt ended for what is away: by its own word, or since texts were missing that the gate had seen before."""
        missing = fault.code in (FaultCode.PROMPTS_NOT_FOUND, FaultCode.DATA_NOT_FOUND)
        return fault.code == FaultCode.SOURCE_AWAY or (missing and not self._at_once)

    def explain_wait(self, fault: Fault) -> Fault:
        """Return a fault of what is waited for, with how long that is."""
        if self._at_once:
            remedy = "put it back, or make it readable, and run the same command again"
        elif fault.code != FaultCode.BASE_NOT_FOUND:
            remedy = f"{away.REMEDY} (it waits for {self._hours()}, limits.away_hours)"
        else:
            remedy = (
                f"{fault.remedy}; the export then continues, also after `ckptd reload` (it waits for {self._hours()}, limits.away_hours)"
            )
        return fault.model_copy(update={"remedy": remedy})

    def given_up(self, fault: Fault, remedy: str = "put it back, or make it readable") -> Fault:
        """The fault of what was waited for long enough."""
        cause = (
            fault.cause if not self._away.patience else f"{fault.cause}, and the export has waited for {self._hours()} (limits.away_hours)"
        )
        remedy = fault.remedy if fault.code == FaultCode.BASE_NOT_FOUND else remedy
        return fault.model_copy(update={"cause": cause, "remedy": f"{remedy}, and run `ckptd queue retry` with the export's id"})

    def _hours(self) -> str:
        seconds = self._away.patience
        return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} min" if seconds < HOUR else f"{seconds / HOUR:g} h"
