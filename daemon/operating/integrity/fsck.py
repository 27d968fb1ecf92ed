"""Nothing lost, nothing twice, nothing half: the one checker of the invariants of a state directory and its output.

Called by `ckptd verify --journal` and, as a library, by everything that breaks ckptd on purpose and looks at it afterwards. It
never writes. While a daemon works (`quiescent` false) only what must hold at every instant is checked, and a finding
is what several looks with pauses between them all see, since the journal and the disk can't be read in one instant.

What a crash left and the next start clears away is a finding too: after a start and an orderly stop there must be none.
What it can't tell: an export that retention removed from one that a person removed; both are notes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from daemon.config.cluster import ClusterSettings
from daemon.contract.faults.errors import Permanent
from daemon.journal.file.integrity import misshapen
from daemon.journal.file.opening import reading, reading_as_it_is
from daemon.journal.file.sqlite_errors import damaged
from daemon.operating.integrity.disk_rules import check_disk
from daemon.operating.integrity.journal_rules import check_file, check_plans, check_rules, check_verdicts
from daemon.operating.integrity.scene import Finding, Scene, paths_of, read_rows
from daemon.running.attempts.executor import Executor
from daemon.running.cluster.by_stage import with_cluster
from daemon.running.workers.executor import LocalExecutor
from daemon.system.lock import is_locked

PAUSES = (0.3, 1.0, 2.0)
"""Seconds between the looks at a working daemon. A child that ended is settled within them."""
_STRAY = "end it; the next start of the daemon also does this"


@dataclass(frozen=True)
class Findings:
    """The result of a check. `notes` are not problems. `exports`: number of exports that were compared with their manifests."""

    state: Path
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    jobs: int
    exports: int
    seconds: float


def examine(
    state: Path, output: Path, pins: Path | None = None, *, quiescent: bool, deep: bool = False, pauses: Iterable[float] = PAUSES,
    executor: Executor | None = None,
) -> Findings:  # fmt: skip
    """Check all invariants of one journal.

    `pins`: the configured folder of pins, None for the one in the state directory. `quiescent`: no daemon works, and
    none is about to. `deep`: hash every published file, pin and finished output. `executor`: what runs the attempts, None for
    processes of this box. Raises UsageError for a journal of another schema, Retryable where it is held by another process for long,
    OSError where a folder can't be read.
    """
    began = time.monotonic()
    state, output = state.absolute(), output.absolute()
    paths = paths_of(state, output)
    scene, executor = (
        Scene(paths, (pins or paths.pins).absolute(), quiescent, deep),
        executor or with_cluster(ClusterSettings(), LocalExecutor()),
    )
    _look(scene, executor)
    for pause in () if quiescent else pauses:
        if not scene.findings:
            break
        time.sleep(pause)
        before = {finding.key for finding in scene.findings}
        scene = Scene(paths, scene.pins, quiescent, deep)
        _look(scene, executor)
        scene.findings = [finding for finding in scene.findings if finding.key in before]
    return Findings(
        state, tuple(scene.findings), tuple(scene.notes), len(scene.jobs), scene.exports, round(time.monotonic() - began, 3)
    )  # fmt: skip


def _look(scene: Scene, executor: Executor) -> None:
    journal = scene.paths.journal
    try:
        believed = not journal.exists() or _look_at_journal(scene)
    except Permanent as error:
        scene.find(error.fault.code, error.fault.cause, error.fault.remedy, path=journal)
        believed = False
    if believed:
        check_disk(scene)
        _check_attempts(scene, executor)


def _look_at_journal(scene: Scene) -> bool:
    """Everything about the journal in one read transaction; False where it can't be believed."""
    with reading_as_it_is(scene.paths.journal) as connection:
        if problems := misshapen(connection):
            raise damaged("check the journal", "; ".join(problems[:3]), scene.paths.journal)
    with reading(scene.paths.journal) as connection:
        connection.execute("BEGIN")
        if not check_file(connection, scene, thorough=scene.quiescent or scene.deep):
            return False
        read_rows(connection, scene)
        check_rules(connection, scene)
        check_plans(scene)
        check_verdicts(connection, scene)
    return True


def _check_attempts(scene: Scene, executor: Executor) -> None:
    """Nothing is at work without an open attempt and a daemon, and no open attempt of a living daemon without something at work."""
    at_work = executor.at_work(scene.paths.jobs)
    attempts = {row["folder"]: row for row in scene.attempts}
    alive = not scene.quiescent and is_locked(scene.paths.lock)
    for name, folder in at_work.items():
        if not alive or str(folder) not in attempts:
            scene.find("stray-child", f"{name} works on an attempt that no job waits for", _STRAY, path=folder)
    if not alive:
        return
    for path, row in attempts.items():
        if path not in map(str, at_work.values()):
            what = f"attempt {row['number']} of {row['stage']} is open, but the process that ran it ({row['executor_id']}) is gone"
            remedy = "check the daemon's log; a restart closes the attempt"
            scene.find("attempt-without-child", what, remedy, path=path, job=row["job"])
