"""Kill -9 of a delivery at each point, while somebody follows the repository by the Hub's own client."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deliver.contract.bench import Bench, Delivery
from tests.deliver.exports import Export
from tests.deliver.hub.far_end import poller
from tests.deliver.hub.far_end.stock import environment
from tests.deliver.proxy import Fault, Request
from tests.deliver.sites.hub import SITE


@contextlib.contextmanager
def _follower(site: SITE, home: Path, *exports: Export) -> Iterator[dict[str, Any]]:
    """What it saw is there afterwards."""
    home.mkdir()
    (home / "wholes.json").write_text(json.dumps([dict(site.expected(export)) for export in exports]))
    process = subprocess.Popen(
        [sys.executable, poller.__file__, "me/run-a", home / "wholes.json"], env=environment(site.service.url, home), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    said: dict[str, Any] = {}
    try:
        yield said
        out, errors = process.communicate("\n", timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors[-2000:]
    said.update(json.loads(out))
    assert not said["problems"], said["problems"]


def _points(bench: Bench, tmp_path: Path) -> list[str]:
    """All that a delivery passes."""
    bench.site.variables = {"CKPTD_FAULT_TRACE": str(tmp_path / "trace")}
    assert bench.deliver(bench.export(run="traced")).receipt
    return list(dict.fromkeys((tmp_path / "trace").read_text().split()))


def test_killed_at_each_point_a_version_is_whole_or_not_there(bench: Bench, site: SITE, tmp_path: Path) -> None:
    points = _points(bench, tmp_path)
    assert len(points) >= 5
    exports = [bench.export(100 * step) for step in range(1, len(points) + 1)]
    with _follower(site, tmp_path / "home", *exports) as said:
        for point, export in zip(points, exports, strict=True):
            site.variables = {"CKPTD_FAULT": point}
            stopped = bench.deliver(export)
            assert stopped.killed, point
            site.variables = {}
            assert bench.deliver(export, resume=stopped.notes).receipt.moved, point
    assert set(said["seen"]) == {"main", *site.visible("run-a")} and len(said["seen"]) == len(points) + 1
    assert set(site.service.store.repo("me/run-a").branches) == {"main"}, "a branch of work was left"


def _killed(bench: Bench, export: Export, number: int, late: bool) -> Delivery:
    """One that is killed at that request, before or after the Hub knows of it."""
    started: list[Delivery] = []

    def kill(request: Request) -> None:
        started[0].process.kill()

    bench.proxy.clear()
    bench.proxy.plan(Fault(after=kill) if late else Fault(before=kill), first=number)
    started.append(bench.start(export))
    started[0].wait()
    bench.proxy.clear()
    return started[0]


def test_what_a_delivery_left_that_never_went_on_is_listed_as_not_finished_and_taken_away(bench: Bench, site: SITE) -> None:
    def dropped() -> str:
        site.variables = {"CKPTD_FAULT": "deliver.compared"}
        assert bench.deliver(bench.export(100)).killed
        site.variables = {}
        ((version, whole, current),) = [(row.version, row.whole, row.current) for row in bench.listed("run-a") if row.step == 100]
        assert site.leftovers() == [f"me/run-a: ckptd-work-{version}"] and not whole and not current
        return version

    assert bench.remove(dropped()).fault is None
    assert not site.leftovers() and bench.listed("run-a") == []
    left = dropped()
    receipt = bench.deliver(bench.export(200), keep=1).receipt
    assert receipt.removed == (left,) and not site.leftovers() and set(site.visible("run-a")) == {receipt.version}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("late", [False, True])
def test_killed_at_each_request_a_version_is_whole_or_not_there(bench: Bench, site: SITE, tmp_path: Path, late: bool) -> None:
    assert bench.deliver(bench.export(100)).receipt
    bench.proxy.clear()
    assert bench.deliver(bench.export(200)).receipt
    count = len(bench.proxy.seen)
    exports = [bench.export(100 * step) for step in range(1, count + 3)]
    with _follower(site, tmp_path / "home", *exports) as said:
        for number, export in enumerate(exports[2:], 1):
            stopped = _killed(bench, export, number, late)
            assert stopped.killed, f"it ended before request {number} of {count}"
            assert bench.deliver(export, resume=stopped.notes).receipt.moved, number
    assert set(said["seen"]) == {"main", *site.visible("run-a")}


def test_after_each_request_what_people_see_is_whole(bench: Bench, site: SITE) -> None:
    """Between any two requests, however short that is."""
    exports, problems = [bench.export(100), bench.export(200)], list[AssertionError]()

    def look(request: Request) -> None:
        try:
            bench.assert_whole(*exports)
            current = site.current("run-a")
            assert current is None or current in site.visible("run-a"), f"main stands for {current}, which has no name yet"
        except AssertionError as problem:
            problems.append(problem)

    bench.proxy.plan(Fault(after=look), times=None)
    for export in exports:
        assert bench.deliver(export).receipt.moved
    assert not problems, problems
