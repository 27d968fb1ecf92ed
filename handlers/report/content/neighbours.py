"""The other exports of the run, as links from this one's folder. Pure; `build` calls it.

Only what is there is linked. What comes later is reached by the run's links `latest` and `best`, which move: a published report stays as it
is. All paths are relative, so that they hold in a copy of the run's folder.
"""

from __future__ import annotations

from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.points import RunFigures, StepPoint
from daemon.contract.jobs.run_figures import point_of
from daemon.contract.values import Json
from handlers.report.content.sanitize import visible
from handlers.report.model import Neighbour, Neighbours


def neighbours(run: RunFigures | None, own: Json, best: str | None) -> Neighbours:
    """The exports around the one whose report is `own`, as JSON; `best`: the id of the export to deploy, where that is known."""
    mine = point_of(own)
    if run is None or mine is None:
        return Neighbours()
    folders = {export: path for export, path in run.folders.items() if path == visible(path)}  # another can't be written as an address
    there = sorted((point for point in run.points if point.kept and point.export in folders), key=lambda point: point.place)
    before = [point for point in there if point.place < mine.place]
    after = [point for point in there if point.place > mine.place]
    of_best = next((point for point in there if point.export == best), None)
    is_led_to = any(_has_passed(point) for point in (mine, *there))
    return Neighbours(
        before=_neighbour(before[-1], run) if before else None,
        after=_neighbour(after[0], run) if after else None,
        best=_neighbour(of_best, run) if of_best else None,
        is_best=best == mine.export,
        latest_link=run.latest if run.latest and run.latest == visible(run.latest) and is_led_to else None,
        best_link=run.best if run.best and run.best == visible(run.best) else None,
    )


def _has_passed(point: StepPoint) -> bool:
    """Whether the run's link `latest` moves to such an export."""
    return any(artifact.published and artifact.verdict == Verdict.PASSED for artifact in point.artifacts.values())


def _neighbour(point: StepPoint, run: RunFigures) -> Neighbour:
    return Neighbour(export_id=point.export, step=point.step, ending=point.ending, status=point.status, path=run.folders[point.export])
