"""What a start finds of a daemon that died: open attempts, children, folders that no job needs.

Called once by the runner before its first round. Nothing is run here: attempts are settled, and the work is picked up by
the same rounds as any other.
"""

from __future__ import annotations

import os
from pathlib import Path

import structlog
from pydantic import ValidationError

from daemon.checkpoints.pins import held
from daemon.config.paths import Paths
from daemon.contract.files import remove_tree, sweep_temporaries
from daemon.contract.messages import Outcome, StageContext, StageResult
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptRow
from daemon.publishing.swap import mend_swaps
from daemon.running.workers.post_mortem import examine
from daemon.running.workers.worker import kill_stray

log = structlog.get_logger("runner")

PATIENCE = 5.0
"""Seconds that a start waits for a `ckptd retry` that pins a checkpoint."""


def left_open(journal: Journal) -> list[tuple[str, str, int, StageResult | None]]:
    """(job, stage, attempt, result) of every attempt without an outcome; the result is None where the child gave none.

    Children that outlived their daemon are killed first: nobody else may write into what is looked at now.
    """
    found = []
    for attempt in journal.attempts.open():
        if kill_stray(attempt.pid, attempt.process_started, attempt.folder):
            log.warning("a child outlived its daemon and was killed", job=attempt.job, stage=attempt.stage, pid=attempt.pid)
        result = _result_of(attempt)
        found.append((attempt.job, attempt.stage, attempt.number, result))
        outcome = result.outcome if result else Outcome.INTERRUPTED
        log.info("resumed", job=attempt.job, stage=attempt.stage, attempt=attempt.number, outcome=str(outcome))
    return found


def _result_of(attempt: AttemptRow) -> StageResult | None:
    """The result that a child left, if it is one and its files are there."""
    try:
        context = StageContext.model_validate_json((attempt.folder / "job.json").read_bytes())
    except (OSError, ValidationError):
        return None
    result, wrong = examine(context)
    if wrong:
        log.warning("what a child left is not taken", job=attempt.job, stage=attempt.stage, because=wrong)
    return result


def tidy_up(journal: Journal, paths: Paths, pins: Path) -> list[str]:
    """End what a crash cut off in a publication, then remove temporary names, folders and pins that nobody needs."""
    mend_swaps(paths.staging)
    gone = [str(path) for path in sweep_temporaries(paths.state)]
    for temporary in paths.jobs.glob("*/*/tmp"):
        remove_tree(temporary)
    return gone + collect_orphans(journal, paths, pins)


def collect_orphans(journal: Journal, paths: Paths, pins: Path) -> list[str]:
    """Remove staging and pins that belong to no open job; names what went. `pins`: the configured folder, which may be new."""
    gone: list[str] = []
    with held(paths.pins_lock, patience=PATIENCE) as mine:
        if not mine:
            log.info("a checkpoint is being pinned again; what no job needs is removed at the next start")
            return gone
        keep = journal.jobs.open_ids()
        for parent in {paths.staging: None, paths.pins: None, pins: None}:
            for entry in os.scandir(parent) if parent.is_dir() else ():
                if entry.name not in keep:
                    remove_tree(Path(entry.path))
                    gone.append(entry.path)
    return gone
