"""Ticks by APScheduler: the clock behind rescans, the outbox, metrics and the watchdog. The queue itself is the journal's.

Every tick only wakes the thread that does the work. A late tick still fires, once: APScheduler's default would
drop it after a second.
"""

from __future__ import annotations

from collections.abc import Callable

from apscheduler.schedulers.background import BackgroundScheduler


def make_scheduler(ticks: dict[str, tuple[float, Callable[[], None]]]) -> BackgroundScheduler:
    """A scheduler, not started, with each tick by name: (seconds between, function)."""
    scheduler = BackgroundScheduler(
        timezone="UTC", job_defaults={"misfire_grace_time": None, "coalesce": True, "max_instances": 1},
    )  # fmt: skip
    for name, (seconds, function) in ticks.items():
        scheduler.add_job(function, "interval", seconds=seconds, id=name, name=name)
    return scheduler
