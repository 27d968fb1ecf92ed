"""Killed at every point, the daemon or a delivery's process, deliveries go on: the far end has each version once, and whole."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from daemon.journal.shipment_rows import ShipmentRow
from tests.deliver.queue.yard import Aim, Yard, save, start
from tests.deliver.sites.reference import SITE

STEPS = (100, 200)


def prepare(folder: Path, site: SITE) -> None:
    folder.mkdir()
    with Yard(folder) as yard:
        for step in STEPS:
            yard.end(step)
    save(folder, Aim(options=site.options(), key=site.secret))


def rows(folder: Path) -> list[ShipmentRow]:
    with Yard(folder) as yard:
        return [yard.row(f"run-a-{step}") for step in STEPS]


def check(folder: Path, site: SITE, point: str) -> None:
    delivered = rows(folder)
    assert [row.state for row in delivered] == ["delivered"] * len(STEPS), point
    visible = site.visible("run-a")
    assert sorted(visible) == sorted(row.receipt.version for row in delivered if row.receipt), point
    assert [site.current("run-a")] == [row.receipt.version for row in delivered[-1:] if row.receipt], point
    assert not list(folder.glob("state/deliveries/*/*.tmp")), point


def points_of(tmp_path: Path) -> tuple[list[str], int]:
    """What is passed while two exports are delivered, and the bytes that lie at the far end then."""
    trace = tmp_path / "trace"
    with _far(tmp_path / "far") as site:
        prepare(tmp_path / "whole", site)
        assert start(tmp_path / "whole", CKPTD_FAULT_TRACE=str(trace)).wait() == 0
        check(tmp_path / "whole", site, "none")
        return [point for point in dict.fromkeys(trace.read_text().split()) if not point.startswith("migrate.")], site.stored()


def kill_at(tmp_path: Path, point: str, whole: int) -> None:
    once, folder = tmp_path / f"once-{point}", tmp_path / f"yard-{point}"
    once.touch()
    with _far(tmp_path / f"far-{point}") as site:
        prepare(folder, site)
        ends = [start(folder, CKPTD_FAULT=point, CKPTD_FAULT_ONCE=str(once)).wait()]
        assert not once.exists(), f"{point} was not reached"
        while ends[-1] == -signal.SIGKILL:
            ends.append(start(folder, CKPTD_FAULT=point, CKPTD_FAULT_ONCE=str(once)).wait())
        assert ends[-1] == 0 and len(ends) <= 2, point
        check(folder, site, point)
        assert site.stored() == whole, point


def test_killed_where_it_matters_most_each_export_is_delivered_once(tmp_path: Path) -> None:
    points, whole = points_of(tmp_path)
    some = ("deliver.put", "deliver.after-end", "after.claim-shipment", "before.shipment-delivered")
    assert {*some} <= {*points}
    for point in some:
        kill_at(tmp_path, point, whole)


@pytest.mark.slow
def test_killed_anywhere_each_export_is_delivered_once(tmp_path: Path) -> None:
    points, whole = points_of(tmp_path)
    for point in points:
        kill_at(tmp_path, point, whole)


def _far(folder: Path) -> SITE:
    folder.mkdir()
    return SITE(folder)
