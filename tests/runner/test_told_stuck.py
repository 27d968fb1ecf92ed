"""Exports that make no progress are told after a while, and not where somebody wants it so or where it is told already."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from daemon.config.notify import NotifySettings
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.progress import idle_since
from daemon.operating.well_being import why_stuck
from daemon.running.waits import Waiting
from tests.runner.desk import Desk


def age(desk: Desk, hours: float) -> None:
    """All that happened happened so long ago."""
    at = (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="milliseconds")
    for table, column in (("job", "created"), ("job", "started"), ("job", "ended"), ("attempt", "started"), ("attempt", "ended")):
        desk.journal.database.write(
            "age",
            lambda c, t=table, k=column: c.execute(f"UPDATE {t} SET {k} = ? WHERE {k} IS NOT NULL", (at,)),  # type: ignore[misc]
        )


def test_exports_that_make_no_progress_are_stuck_after_the_configured_hours(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    settings = NotifySettings()

    def why(hours: float = 6.0) -> str:
        return why_stuck(settings.model_copy(update={"stuck_hours": hours}), desk.journal, desk.runner)

    assert (why(), idle_since(desk.journal.database)) == ("", None), "nothing is open"
    name = desk.add("run", 4)
    assert why() == ""
    age(desk, 7)
    assert why().startswith("For 7 h nothing has gone on though exports are open.") and why(hours=8.0) == why(hours=0.0) == ""
    memory = Fault(code=FaultCode.MEMORY_NOW, operation="start the stage merge", cause="it needs 9 GiB", remedy="wait")
    desk.runner.waits.of[name] = Waiting(memory, time.monotonic(), 0.0)
    assert "it needs 9 GiB" in why()
    for code in (FaultCode.WINDOW_CLOSED, FaultCode.DISK_NOW):
        desk.runner.waits.of[name] = Waiting(memory.model_copy(update={"code": code}), time.monotonic(), 0.0)
        assert why() == "", code
    del desk.runner.waits.of[name]
    desk.journal.controls.pause_all(True)
    assert why() == ""
    desk.journal.controls.pause_all(False)
    assert why() != ""
    desk.tick(2)
    assert desk.started and (why(), idle_since(desk.journal.database)) == ("", None), "an attempt runs"
