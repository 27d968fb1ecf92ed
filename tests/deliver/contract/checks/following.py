"""The name that people follow."""

from __future__ import annotations

import threading

from tests.deliver.contract.bench import Bench, Delivery
from tests.deliver.exports import SMALL, Export
from tests.deliver.proxy import Fault, Request


def an_older_step_is_delivered_and_not_followed(bench: Bench) -> None:
    newer, older = bench.export(200), bench.export(100)
    current = bench.deliver(newer).receipt
    receipt = bench.deliver(older).receipt
    assert not receipt.moved and receipt.why_not_moved and bench.site.current("run-a") == current.version
    assert receipt.version in bench.site.visible("run-a")


def the_order_decides_whether_it_moves(bench: Bench) -> None:
    first, second = bench.export(100), bench.export(200)
    old = bench.deliver(first).receipt
    kept = bench.deliver(second, move="keep").receipt
    assert not kept.moved and kept.why_not_moved and bench.site.current("run-a") == old.version
    assert kept.version in bench.site.visible("run-a")
    assert bench.deliver(second).receipt.moved and bench.site.current("run-a") == kept.version
    assert bench.deliver(first, move="force").receipt.moved and bench.site.current("run-a") == old.version


def what_has_not_passed_is_delivered_and_not_followed(bench: Bench) -> None:
    passed, failed = bench.export(100), bench.export(200, own=True, **{bench.site.weights.split("/")[0].replace("-", "_"): "failed"})
    current = bench.deliver(passed).receipt
    kept = bench.deliver(failed).receipt
    assert not kept.moved and "failed" in kept.why_not_moved and bench.site.current("run-a") == current.version
    assert kept.version in bench.site.visible("run-a")
    assert bench.deliver(failed, move="force").receipt.moved and bench.site.current("run-a") == kept.version


def two_of_the_same_version_at_once_end_well(bench: Bench) -> None:
    export = bench.export()
    with bench.reader(export):
        both = [bench.start(export) for _ in range(2)]
        versions = {delivery.receipt.version for delivery in both}
    assert versions == {bench.site.current(export.run)} == set(bench.site.visible(export.run))


def two_steps_at_once_end_at_the_later(bench: Bench) -> None:
    for older, newer in ((100, 200), (300, 400), (500, 600)):
        exports = [bench.export(newer), bench.export(older)]
        both = [bench.start(export) for export in exports]
        receipts = [delivery.receipt for delivery in both]
        assert bench.site.current("run-a") == receipts[0].version and receipts[0].moved
        assert set(bench.site.visible("run-a")) >= {receipt.version for receipt in receipts}


def _requests(bench: Bench, step: int) -> int:
    """Of a delivery of a small step."""
    bench.proxy.clear()
    assert bench.deliver(_tiny(bench, step)).receipt
    count = len(bench.proxy.seen)
    bench.proxy.clear()
    return count


def _tiny(bench: Bench, step: int, run: str = "run-a") -> Export:
    beside = {path: data for path, data in bench.site.files.items() if bench.site.files is not SMALL and path != bench.site.weights}
    return bench.export(step, run=run, own=True, files={"pytorch/config.json": b"{}", **beside, bench.site.weights: 3000})


def _meanwhile(bench: Bench, points: list[int], by_hand: bool) -> None:
    """At each of those requests of an older step's delivery, the later one happens, or a person moves the name to it."""
    for point in points:
        run = f"run-{point}"
        bench.proxy.clear()
        older, later = _tiny(bench, 200, run), _tiny(bench, 300, run)
        held = threading.Event()
        ahead = bench.deliver(later, move="keep").receipt if by_hand else None
        bench.proxy.clear()

        def others(request: Request, ahead=ahead, run=run, later=later, held=held) -> None:
            held.set()
            if ahead is not None:
                bench.site.move_by_hand(run, ahead.version)
            else:
                assert bench.deliver(later).receipt

        bench.proxy.plan(Fault(before=others), first=point)
        delivery: Delivery = bench.start(older).wait()
        assert held.is_set(), "the delivery has fewer requests than before"
        if delivery.end.fault is not None:
            assert not delivery.end.permanent, delivery.end.fault.sentence()
            bench.proxy.clear()
            delivery = bench.deliver(older, resume=delivery.notes)
        version = delivery.receipt.version
        visible = bench.site.visible(run)
        assert bench.site.current(run) in set(visible) - {version}, f"at request {point} the name went back to the older step"
        bench.assert_whole(older, later)


def a_later_step_that_comes_at_the_end_stays_followed(bench: Bench) -> None:
    count = _requests(bench, 100)
    _meanwhile(bench, list(range(max(1, count - 3), count + 1)), by_hand=False)


def what_a_person_moves_at_the_end_stays_moved(bench: Bench) -> None:
    """Not after the very last request: what happens then is another story."""
    count = _requests(bench, 100)
    _meanwhile(bench, list(range(max(1, count - 3), count + 1)), by_hand=True)


def a_later_step_that_comes_at_any_request_stays_followed(bench: Bench) -> None:
    _meanwhile(bench, list(range(1, _requests(bench, 100) + 1)), by_hand=False)


a_later_step_that_comes_at_the_end_stays_followed.over_http = True  # type: ignore[attr-defined]
what_a_person_moves_at_the_end_stays_moved.over_http = True  # type: ignore[attr-defined]
a_later_step_that_comes_at_any_request_stays_followed.over_http = True  # type: ignore[attr-defined]
a_later_step_that_comes_at_any_request_stays_followed.slow = True  # type: ignore[attr-defined]
