"""This run so far: the figures of its exports by step, with this one, and which checkpoint they speak for. Pure; `build` calls it.

What the daemon read from the other exports' reports comes in the job file; no other folder is read here.
"""

from __future__ import annotations

from daemon.contract.advice.which import Standing, advice, standing
from daemon.contract.jobs.points import RunFigures, StepPoint
from daemon.contract.jobs.run_figures import latest, point_of
from daemon.contract.values import Json
from handlers.report.model import RunSoFar


def run_so_far(run: RunFigures | None, own: Json) -> RunSoFar | None:
    """The run with the export whose report is `own`, as JSON; None where it is the first one."""
    mine = point_of(own)
    if run is None or mine is None or not run.points:
        return None
    points = latest([mine, *run.points])
    outcome = standing(points, run.trainers_best, run.best_variant, run.best_task)
    known = outcome if isinstance(outcome, Standing) else None
    return RunSoFar(
        points=tuple(map(_without_texts, points)), trainers_best=run.trainers_best, variant=outcome.variant,
        metric=outcome.metric, best=known.pick.export if known else None, best_step=known.pick.step if known else None,
        equal=tuple(point.export for point in known.equal) if known else (),
        sentence=advice(points, run.trainers_best, run.best_variant, run.best_task),
    )  # fmt: skip


def _without_texts(point: StepPoint) -> StepPoint:
    """The point without the figures of each text, which are in its own export's report."""
    bare = {variant: artifact.model_copy(update={"by_text": {}}) for variant, artifact in point.artifacts.items()}
    return point.model_copy(update={"artifacts": bare})
