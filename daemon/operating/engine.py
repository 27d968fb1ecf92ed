"""What the daemon and `ckptd export` share: one state directory, locked, with its journal, intake and runner."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from daemon.config.places.paths import Paths, prepare
from daemon.config.settings import Settings
from daemon.contract.faults.errors import Retryable
from daemon.contract.faults.events import Event
from daemon.contract.jobs.options import Work
from daemon.contract.values import build_models
from daemon.journal.journal import Journal
from daemon.journal.rows import JobRow
from daemon.operating.integrity.maintenance import open_journal
from daemon.operating.monitoring.live import read_live
from daemon.operating.work_now import work_now
from daemon.running.attempts.executor import Executor
from daemon.running.cluster.by_stage import with_cluster
from daemon.running.runner import Runner
from daemon.running.workers.executor import LocalExecutor
from daemon.system.filesystems.private import private_files
from daemon.system.lease import leased
from daemon.system.lock import locked
from daemon.system.logger import Logger
from daemon.watching.taking.intake import Intake
from daemon.watching.taking.places import target_of

log = Logger("daemon")


@dataclass
class Engine:
    """What the daemon and `ckptd export` share: journal, intake and runner on one state directory, locked."""

    settings: Settings
    paths: Paths
    journal: Journal
    intake: Intake
    runner: Runner
    attention: threading.Event


@contextmanager
def engine(
    settings: Settings, state: Path, work_of: Callable[[Settings, JobRow], Work | None] = work_now, executor: Executor | None = None, *,
    patient: bool = False, at_once: bool = False,
) -> Iterator[Engine]:  # fmt: skip
    """Lock, open and recover. `executor` runs the attempts: as processes of this box, unless another one takes its place.
    `at_once`: as for `Runner`. `patient`: what can't be recovered now, since the disk is full or does not give a file, is left to the
    runner's first rounds.

    Raises UsageError where a folder can't be written or another process holds the lock.
    """
    build_models()
    executor = executor or with_cluster(settings.cluster, LocalExecutor())
    paths = prepare(state, settings.output.directory)
    with private_files(), locked(paths.lock), leased(paths.state):
        executor.prepare()
        journal = open_journal(
            paths, target_of=lambda seen: target_of(settings, paths, seen), reserve=int(settings.limits.disk_reserve)
        )  # fmt: skip
        try:
            attention = threading.Event()
            full_before = read_live(paths.live).verdict == "full"
            runner = Runner(
                settings, journal, paths, executor, changed=attention.set, work_of=work_of, at_once=at_once, full_before=full_before
            )  # fmt: skip
            try:
                runner.recover()
            except (Retryable, OSError) as error:
                if not patient:
                    raise
                log.warning(
                    f"What the last ckptd left open is taken up as soon as that is possible. {error}", event_id=Event.RECOVERY_WAITS
                )
            yield Engine(settings, paths, journal, Intake(settings, journal, paths), runner, attention)
        finally:
            journal.close()
