"""`limits.raise_priority_hours`: an export that a training keeps waiting climbs one class."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.runner.desk import Desk

NICE = {"idle": (True, 19), "low": (False, 10), "normal": (False, 0)}


@pytest.mark.parametrize(
    ("priority", "after", "age", "now"),
    [
        ("idle", 0, 1000, "idle"),
        ("idle", 6, 5.9, "idle"),
        ("idle", 6, 6.1, "low"),
        ("idle", 6, 1000, "low"),
        ("low", 0.5, 1, "normal"),
        ("normal", 1, 2, "normal"),
    ],
)
def test_a_stage_starts_with_the_class_of_its_exports_age(
    make_desk: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, priority: str, after: float, age: float, now: str
) -> None:
    monkeypatch.delenv("CKPTD_LIMITS__PRIORITY", raising=False)  # what all other tests run with
    desk = make_desk(limits={"priority": priority, "raise_priority_hours": after})
    desk.add("run", 1)
    entered = (datetime.now(UTC) - timedelta(hours=age)).isoformat(timespec="milliseconds")
    desk.journal.database.write("age a job", lambda c: c.execute("UPDATE job SET created = ?", (entered,)))
    desk.tick(3)
    limits = desk.fakes[0].context.limits
    assert (limits.idle, limits.nice) == NICE[now]
