"""The gauges: how the daemon, its jobs and its disks are at this moment."""

from __future__ import annotations

import time
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING

import psutil

from daemon.config.places.paths import Paths
from daemon.config.settings import Settings
from daemon.contract.version import __version__
from daemon.journal.journal import Journal
from daemon.journal.shipment_rows import SHIPMENT_STATES
from daemon.journal.states import ENDED_JOB, OPEN_JOB
from daemon.operating.monitoring.live import Condition, ConfigLoad
from daemon.operating.monitoring.metrics.figures import Figures
from daemon.operating.monitoring.metrics.table import CONDITIONS
from daemon.operating.monitoring.outlook import starved
from daemon.system.box import free_disk

if TYPE_CHECKING:
    from daemon.running.runner import Runner
    from daemon.watching.groups import Watchers


def take_gauges(
    settings: Settings, paths: Paths, journal: Journal, runner: Runner, watcher: Watchers, *, started: str, loaded: ConfigLoad,
    condition: Condition, low_disks: int,
) -> Figures:  # fmt: skip
    """Return how things are now. `started`: ISO 8601; `low_disks`: file systems without room."""
    figures = Figures("gauge")
    figures.set("ckptd_figures_time_seconds", time.time())
    figures.set("ckptd_build_info", 1, version=__version__)
    figures.set("ckptd_start_time_seconds", datetime.fromisoformat(started).timestamp())
    for verdict in CONDITIONS:
        figures.set("ckptd_condition", verdict == condition.verdict, condition=verdict)
    figures.set("ckptd_paused", journal.controls.paused_since() is not None)
    figures.set("ckptd_config_last_reload_successful", loaded.problem is None)
    figures.set("ckptd_thread_deaths", sum(death.count for death in condition.deaths))
    figures.set("ckptd_resident_bytes", psutil.Process().memory_info().rss)
    figures.set("ckptd_last_scan_age_seconds", time.monotonic() - watcher.last_scan)
    figures.set("ckptd_scan_interval_seconds", settings.watch.rescan_seconds)
    for root in (*settings.watch.roots, *watcher.links):
        figures.set("ckptd_root_up", root not in watcher.silent and watcher.exists(root), root=str(root))
    figures.set("ckptd_incomplete_checkpoints", len(watcher.incomplete))
    figures.set("ckptd_unreadable_directories", len(watcher.unreadable))
    figures.set("ckptd_lost_checkpoints", journal.sightings.lost())
    counts = journal.jobs.counts()
    for state in (*OPEN_JOB, *ENDED_JOB):
        figures.set("ckptd_jobs", counts.get(state, 0), state=state)
    for reason, count in Counter(str(waiting.fault.code) for waiting in dict(runner.waits.of).values()).items():
        figures.set("ckptd_jobs_waiting", count, reason=reason)
    oldest = journal.jobs.oldest_open()
    age = 0.0 if oldest is None else time.time() - datetime.fromisoformat(oldest).timestamp()
    figures.set("ckptd_oldest_open_job_age_seconds", max(0.0, age))
    running = list(dict(runner.children.running).values())
    figures.set("ckptd_children", len(running))
    figures.set("ckptd_children_starved", sum(starved(child.cpu) for child in running))
    figures.set("ckptd_children_memory_bytes", sum(child.memory for child in running))
    figures.set("ckptd_disk_low", low_disks)
    figures.set("ckptd_state_free_bytes", free_disk(paths.state))
    figures.set("ckptd_output_free_bytes", free_disk(paths.output))
    figures.set("ckptd_outbox_pending", journal.outbox.pending())
    _take_deliveries(figures, journal)
    return figures


def _take_deliveries(figures: Figures, journal: Journal) -> None:
    """How what is to lie at the targets of `[[deliver]]` stands."""
    for target, states in journal.shipments.standing().items():
        for state in SHIPMENT_STATES:
            figures.set("ckptd_deliveries", states.get(state, (0,))[0], target=target, state=state)
        begun = [oldest for state, (_, oldest, _) in states.items() if state in ("waiting", "running", "failed")]
        age = time.time() - datetime.fromisoformat(min(begun)).timestamp() if begun else 0.0
        figures.set("ckptd_oldest_delivery_age_seconds", max(0.0, age), target=target)
        figures.set("ckptd_delivered_bytes", states.get("delivered", (0, "", 0))[2], target=target)
