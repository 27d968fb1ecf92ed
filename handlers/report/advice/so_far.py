"""This run so far: the figures of its exports by step, with this one, and which checkpoint they speak for. Pure; `build` calls it.

What the daemon read from the other exports' reports comes in the job file; no other folder is read here.
"""

from __future__ import annotations

from daemon.contract.jobs.points import RunFigures
from daemon.contract.jobs.run_figures import Standing, advice, latest, point_of, standing
from daemon.contract.values import Json
from handlers.report.model import RunSoFar


def run_so_far(run: RunFigures | None, own: Json) -> RunSoFar | None:
    """The run with the export whose report is `own`, as JSON; None where it is the first one."""
    mine = point_of(own)
    if run is None or mine is None or not run.points:
        return None
    points = latest([mine, *run.points])
    outcome = standing(points, run.best_variant)
    known = outcome if isinstance(outcome, Standing) else None
    return RunSoFar(
        points=points, trainers_best=run.trainers_best, variant=known.variant if known else None, metric=known.metric if known else None,
        best=known.best.export if known else None, best_step=known.best.step if known else None,
        sentence=advice(points, run.trainers_best, run.best_variant),
    )  # fmt: skip
