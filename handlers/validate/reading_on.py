"""More texts for an artifact of which a limit is undecided: read by the live model and by the artifact in turn, until nothing is undecided.

Called by the stages `merged` and `check-VARIANT` while a worker holds the artifact. The live model is loaded beside it, and only then. What
is read here goes into the decisions alone: all other figures stay those of the first texts, which all artifacts and checkpoints share.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from daemon.contract import units
from daemon.contract.faults.errors import CkptdError
from daemon.contract.formats.declaration import Limits
from daemon.contract.jobs.messages import StageContext, Verdict
from handlers.child.progress import Reporter
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.selection import further_texts
from handlers.validate import limits
from handlers.validate.arithmetic.bounds import looks
from handlers.validate.checks.examination import Examination, comparable
from handlers.validate.checks.live.further import FurtherTexts
from handlers.validate.checks.live.reference import Reference, teacher_forced
from handlers.validate.checks.live.samples import Sample
from handlers.validate.engines.registry import LAYERWISE, WAY, base_values, live_spec
from handlers.validate.verdict import judge
from handlers.validate.workers.client import EngineWorker, WorkerFailed

MARGIN = 1.1
"""Over the memory that the live model took for the reference."""


@dataclass(frozen=True)
class ReadingOn:
    """What it takes to read on with one artifact."""

    context: StageContext
    reporter: Reporter
    reference: Reference
    worker: EngineWorker
    """Holds the artifact, or the merged model."""
    variant: str
    own: Limits
    examination: Examination

    def until_decided(self) -> None:
        """Read on. Where that can't be, `examination` says why. Raises WorkerFailed where the artifact's worker fails."""
        options, examination = self.context.work.validation, self.examination
        numbers = looks(options.samples, options.budget)
        examination.looks = len(numbers)
        if len(numbers) == 1 or not self._is_open():
            return
        examination.stopped = self._obstacle()
        if examination.stopped is not None:
            return
        try:
            self._read(numbers)
        except CkptdError as error:
            examination.stopped = error.fault.cause

    def _is_open(self) -> bool:
        """Tell whether the verdict depends on what is undecided, and the live model can decide that; else `examination` says so."""
        thresholds, examination = self.context.work.validation.thresholds.get(self.variant), self.examination
        if thresholds is None:
            return False
        fails = [judge(self.variant, self.own, examination, thresholds, side).verdict is Verdict.FAILED for side in ("accept", "reject")]
        if fails != [False, True]:
            return False
        if limits.beside_live(self.variant, examination, thresholds).can_be_decided():
            return True
        examination.stopped = limits.ASKED_ONCE
        return False

    def _obstacle(self) -> str | None:
        """Say why no more texts can be read, as a clause."""
        reference, needed = self.reference, MARGIN * (self.reference.figures.peak_rss_bytes or 0)
        if not reference.readable or not reference.subject.reads_text:
            return "only texts are read on"
        taken = _resident(os.getpid()) + _resident(self.worker.pid)
        free, allowed = _available(), self.context.limits.memory
        room = min(free, allowed - taken) if allowed else free
        if needed > room:
            return f"the live model needs {units.size(int(needed))} of memory beside it, and there are {units.size(max(0, room))}"
        return None

    def _read(self, numbers: tuple[int, ...]) -> None:
        context, examination = self.context, self.examination
        layerwise = self.reference.figures.way == WAY
        spec = live_spec(context, ("torch" if context.base is None else "live") + LAYERWISE * layerwise, self.reference.subject)
        rendering = replace(Rendering.of(ModelFiles.of_job(context)), kind=self.reference.subject.kind)
        texts, apart = further_texts(context.work.validation, rendering, numbers[-1] - numbers[0])
        if not texts and (layerwise or self.reference.subject.kind != "causal"):
            examination.stopped = "there are no further texts: name the training's data in validate.data"
            return
        thresholds = context.work.validation.thresholds[self.variant]
        scratch = Path(context.temporary)
        try:
            with EngineWorker("live", spec, scratch, context.limits, python=context.python) as live:
                about = self.worker.load()
                further = FurtherTexts(
                    live, self.reference, texts, apart, not layerwise, scratch, base_values(context), about.context_length,
                    context.work.validation.new_tokens,
                )  # fmt: skip
                for before, until in itertools.pairwise(numbers):
                    examination.decisions = limits.beside_live(self.variant, examination, thresholds).decisions
                    read = self._take(further, until - before)
                    examination.look += 1
                    if read < until - before:
                        examination.stopped = "there are no further texts"
                        return
                    if not self._is_open():
                        return
        except _LiveFailed as failure:
            examination.stopped = f"the live model could not be run again: {failure}"

    def _take(self, further: FurtherTexts, wanted: int) -> int:
        """Compare the artifact on so many texts more; give on how many it was."""
        examination, reporter, read = self.examination, self.reporter, 0
        assert examination.compared is not None and examination.tuned is not None
        out = Path(self.context.temporary) / "further.npy"
        for samples in _of_live(further, wanted, reporter):
            reporter.progress(0.9, f"{self.variant} is undecided: reads on, text {read + 1} of {wanted}")
            for sample in samples:
                live, rows = np.load(sample.logits), teacher_forced(self.worker, sample, out)
                with comparable():
                    examination.compared.add(live, rows, self.reference.following(sample), same_text=sample.piece)
                if sample.base_logits is not None:
                    of_base, changed = np.load(sample.base_logits), sample.base_rows
                    examination.tuned.add(live[changed], of_base, rows[changed], same_text=sample.piece)
                for path in filter(None, (sample.logits, sample.base_logits, out)):
                    path.unlink(missing_ok=True)
            read += 1
        return read


def _resident(pid: int) -> int:
    """Give the memory of a process; 0 where it has ended, which it says itself when it is asked for something."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _available() -> int:
    """Give the bytes that new processes may take. A toolchain has no psutil."""
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10


class _LiveFailed(Exception):
    """The live model could not be run, or gives what is no number; the cause as a clause."""


def _of_live(further: FurtherTexts, wanted: int, reporter: Reporter) -> Iterator[list[Sample]]:
    """Give what the live model answers. Raises _LiveFailed, so that its failure is not taken for the artifact's."""
    texts = further.answered(wanted, reporter.progress)
    while True:
        try:
            samples = next(texts, None)
        except WorkerFailed as error:
            reporter.checkpoint()  # a stage that is told to stop loses its workers too
            raise _LiveFailed(error.cause) from error
        if samples is None:
            return
        if not all(np.isfinite(np.load(sample.logits)).all() for sample in samples):
            raise _LiveFailed("its logits hold values that are not finite")
        yield samples
