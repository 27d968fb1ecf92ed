"""Export windows: when heavy stages may start, by the cron expressions of `[schedule]`.

Called by the runner before a heavy stage. APScheduler reads the expressions; a window is open in every minute that one of
them matches, by the wall clock of the configured zone, so that a change of daylight saving or of the clock just counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode

if TYPE_CHECKING:
    from apscheduler.triggers.cron import CronTrigger


def problem_of(expression: str) -> str | None:
    """What is wrong with a cron expression, None for a sound one."""
    try:
        _trigger(expression, "UTC")
    except ValueError as error:
        return f"{expression!r} is no cron expression of five fields ({error}); try '* 20-23,0-6 * * *'"
    return None


def zone_problem(name: str) -> str | None:
    """What is wrong with the name of a time zone, None for a sound one or ""."""
    try:
        _zone(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"{name!r} is no time zone; try 'UTC' or 'Europe/Berlin'"
    return None


def _trigger(expression: str, zone: tzinfo | str) -> CronTrigger:
    # By those who have windows: every command that reads the settings imports this module.
    from apscheduler.triggers.cron import CronTrigger

    return CronTrigger.from_crontab(expression, timezone=zone)


def _zone(name: str) -> tzinfo:
    if name:
        return ZoneInfo(name)
    from tzlocal import get_localzone

    return get_localzone()


class Windows:
    """The minutes in which heavy stages may start; always, without expressions."""

    def __init__(self, expressions: Sequence[str], timezone: str = "") -> None:
        self._zone = _zone(timezone)
        self._triggers = [_trigger(expression, self._zone) for expression in expressions]

    def is_open(self, moment: datetime) -> bool:
        """Whether heavy stages may start at `moment`, an aware time."""
        minute = moment.astimezone(self._zone).replace(second=0, microsecond=0)
        return not self._triggers or any(trigger.get_next_fire_time(None, minute) == minute for trigger in self._triggers)

    def opens(self, moment: datetime) -> datetime | None:
        """When the next window begins after `moment`; None where none ever does."""
        after = moment.astimezone(self._zone) + timedelta(seconds=1)
        times = [time for trigger in self._triggers if (time := trigger.get_next_fire_time(None, after))]
        return min(times, default=None)

    def closed_fault(self, stage: str, moment: datetime) -> Fault:
        """What is said of a heavy stage that waits for its window."""
        opens = self.opens(moment)
        when = f"the next one begins at {opens:%Y-%m-%d %H:%M %Z}" if opens else "none ever begins"
        return Fault(
            code=FaultCode.WINDOW_CLOSED, operation=f"start the stage {stage}",
            cause=f"schedule.heavy allows it in its windows alone, and {when}",
            remedy="nothing, it waits for the window; change schedule.heavy to have it sooner",
        )  # fmt: skip
