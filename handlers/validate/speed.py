"""The stage `speed`: how fast each artifact is, in turns with the merged model in PyTorch, when nothing else of ours runs.

Called by `handlers/__main__.py` after all checks. It decides no verdict: an artifact that fails here has no figure, and a warning says why.
"""

from __future__ import annotations

from pathlib import Path

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.figures import Speed, SpeedFigures
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.validate import record
from handlers.validate.checks.live.reference import Reference
from handlers.validate.engines.registry import EXACT, artifact_spec
from handlers.validate.speeds.turns import Peer, alone, race, summary
from handlers.validate.workers.client import EngineWorker, WorkerFailed, toolchain_of
from handlers.validate.workers.protocol import Timing


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Measure every artifact whose check could run it; the figure `speed` is variant → figures."""
    reference = record.read_reference(Path(context.inputs["reference"]))
    timing = _Timing(context, reporter, reference)
    here = {name: variant for name, variant in catalog().variants.items() if variant.limits.timed}
    made = [variant for name, variant in here.items() if name in context.inputs and record.was_run(context, name)]
    published = next((variant.name for variant in made if "merged" in variant.traits), None)
    speeds, beside = dict[str, Speed](), list[Timing]()
    with timing.worker(EXACT.engine, context.inputs[published or "merge"], "pytorch") as worker:
        pytorch: Peer | None = Peer(worker)
        try:
            worker.load()
        except WorkerFailed as error:
            pytorch = None
            timing.lost("the merged model in PyTorch", error)
        for number, variant in enumerate(made):
            if variant.name == published:
                continue
            reporter.progress(number / len(made), variant.name)
            try:
                with timing.worker(variant.limits.engine, context.inputs[variant.name], variant.name, variant.limits.toolchain) as artifact:
                    artifact.load()
                    raced = race(artifact, pytorch, reference)
                speeds[variant.name] = raced.speed
                beside += raced.peer
            except WorkerFailed as error:
                timing.lost(variant.name, error)
                continue
            if raced.failed is not None:
                pytorch = None
                timing.lost("the merged model in PyTorch", raced.failed)
        if published and pytorch is not None:
            try:
                figures = summary(beside) if beside else alone(worker, reference)
                own = {"pytorch_tokens_per_second": figures.tokens_per_second, "speed_over_pytorch": None, "speed_over_pytorch_range": None}
                speeds = {published: figures.plus(**own), **speeds}
            except WorkerFailed as error:
                timing.lost("the merged model in PyTorch", error)
    return StageOutput(
        figures=SpeedFigures(speed=speeds, measured_on=record.processor()).written(), warnings=timing.warnings, reusable=not timing.warnings
    )


class _Timing:
    """What all measurements share."""

    def __init__(self, context: StageContext, reporter: Reporter, reference: Reference) -> None:
        self._context, self._reporter, self._subject = context, reporter, reference.subject
        self.warnings: list[str] = []

    def worker(self, engine: str, folder: str, name: str, toolchain: str = "") -> EngineWorker:
        """Give a worker that has loaded no model yet, in the Python that checks the artifact. Raises WorkerFailed where that is gone."""
        spec, place = artifact_spec(self._context, engine, folder, self._subject), toolchain_of(self._context, toolchain)
        return EngineWorker(name, spec, Path(self._context.temporary), self._context.limits, toolchain=place)

    def lost(self, what: str, error: WorkerFailed) -> None:
        """Go on without it, and say so; a stage that is told to stop ends here."""
        self._reporter.checkpoint()
        self.warnings.append(f"The speed of {what} could not be measured: {error.cause}.")
