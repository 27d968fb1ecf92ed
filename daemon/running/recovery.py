"""What a start finds of a daemon that died: open attempts, folders that no job needs.

Called once by the runner before its first round. Nothing is run here: attempts are settled or taken over, and the work is picked up
by the same rounds as any other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

import structlog

from daemon.checkpoints.pinning.pins import held
from daemon.config.places.paths import Paths
from daemon.contract.disk.files import remove_tree, sweep_temporaries
from daemon.contract.disk.own_folders import own
from daemon.contract.faults.errors import from_oserror
from daemon.contract.faults.events import Event
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId, AttemptRow
from daemon.publishing.exchange.swap import complete_swaps
from daemon.publishing.lending import take_all_back
from daemon.running.attempts.executor import Attempt, Bounds, Executor
from daemon.system.logger import Logger

log = Logger("runner")

PATIENCE = 5.0
"""Seconds that a start waits for a `ckptd queue retry` that pins a checkpoint."""
END_SECONDS = 15.0
"""That it waits for the end of an attempt that still runs and that nobody needs."""


def left_open(
    journal: Journal, executor: Executor, bounds: Bounds, mine: Collection[AttemptId] = ()
) -> list[tuple[AttemptRow, Attempt | StageResult | None]]:
    """Every attempt without an outcome, with what its executor says became of it: it still runs, it left a result, or (None) neither.

    `mine`: attempts that were taken over already.
    """
    rows = []
    for row in journal.attempts.open():
        if row.id in mine:
            continue
        with structlog.contextvars.bound_contextvars(job=row.job, stage=row.stage):
            left = executor.reclaim(row.executor_id, row.folder, bounds)
            if left is None or isinstance(left, StageResult):
                log.info(
                    "resumed",
                    event_id=Event.ATTEMPT_RESUMED,
                    attempt=row.number,
                    outcome=str(left.outcome if left else Outcome.INTERRUPTED),
                )
            else:
                log.info("still running", event_id=Event.ATTEMPT_ADOPTED, attempt=row.number, id=left.id)
        rows.append((row, left))
    return rows


def end(attempt: Attempt) -> StageResult:
    """End an attempt that nobody needs any more; interrupted where its executor does not say in time what became of it."""
    attempt.hurry()
    deadline = time.monotonic() + END_SECONDS
    while (result := attempt.poll()) is None and time.monotonic() < deadline:
        time.sleep(0.02)
    if result is None:
        log.warning("an attempt that nobody needs does not end", event_id=Event.ATTEMPT_LEFT, id=attempt.id)
    return result or StageResult(outcome=Outcome.INTERRUPTED)


def tidy_up(journal: Journal, paths: Paths, pins: Path, at_work: Collection[Path]) -> list[str]:
    """End what a crash cut off in a publication, then remove temporary names, folders and pins that nobody needs.

    `at_work`: temporary folders of attempts that go on.
    """
    with own(paths.output, paths.staging, make=True) as staging:
        complete_swaps(staging)
        take_all_back(staging)
    gone = [str(path) for path in sweep_temporaries(paths.state)]
    for temporary in paths.jobs.glob("*/*/tmp"):
        if temporary not in at_work:
            _remove(temporary)
    return gone + collect_orphans(journal, paths, pins)


def collect_orphans(journal: Journal, paths: Paths, pins: Path) -> list[str]:
    """Remove staging and pins that belong to no open job; names what went. `pins`: the configured folder, which may be new."""
    gone: list[str] = []
    with held(paths.pins_lock, patience=PATIENCE) as mine:
        if not mine:
            log.info(
                "a checkpoint is being pinned again; what no job needs is removed at the next start", event_id=Event.CHECKPOINT_PINNED_AGAIN
            )
            return gone
        keep = journal.jobs.open_ids()
        with own(paths.output, paths.staging, make=True) as staging:
            gone += _swept(staging, paths.staging, keep)
        for parent in {paths.pins: None, pins: None}:
            gone += _swept(parent, parent, keep)
    return gone


def _swept(folder: Path, name: Path, keep: Collection[str]) -> list[str]:
    """Remove all in a folder but for the entries `keep`; gives what went, by the `name` of the folder that people know."""
    entries = list(os.scandir(folder)) if folder.is_dir() else []
    return [str(name / entry.name) for entry in entries if entry.name not in keep and _remove(Path(entry.path))]


def _remove(path: Path) -> bool:
    """Remove what no job needs; where that fails it is said, stays until the next start, and keeps nothing from its turn."""
    try:
        remove_tree(path)
    except OSError as error:
        fault = from_oserror(error, "remove what no job needs", str(path)).fault
        log.warning(fault.sentence(), event_id=Event.STATE_NOT_CLEANED, code=fault.code)
        return False
    return True
