"""Kill -9 of a delivery, and another attempt."""

from __future__ import annotations

from tests.deliver.contract.bench import Bench, Delivery
from tests.deliver.proxy import Fault, Request


def _points(bench: Bench) -> int:
    """At how many points a delivery can be stopped."""
    assert bench.deliver(bench.export(run="first", seed=0, own=True)).receipt  # what all share lies there now
    export = bench.export(run="counted", seed=1, own=True)
    if bench.site.counts == "calls":
        log = bench.site.folder.parent / "calls"
        assert bench.start(export, log=log).receipt
        return len(log.read_text().splitlines())
    bench.proxy.clear()
    assert bench.deliver(export).receipt
    return len(bench.proxy.seen)


def _stopped(bench: Bench, number: int, late: bool, run: str, lost: bool = False) -> None:
    """Stop a delivery at a point, and let another attempt go on, without the notes where they are `lost`."""
    export = bench.export(run=run, seed=hash((number, late)) % 10**6, own=True)
    sent, started = 0, []
    if bench.site.proxy:
        bench.proxy.clear()

        def kill(request: Request) -> None:
            delivery: Delivery = started[0]
            delivery.process.kill()
            delivery.process.wait(60)

        bench.proxy.plan(Fault(after=kill) if late else Fault(before=kill), first=number)
    delivery = bench.start(export, stop_at=number if bench.site.counts == "calls" else 0)
    started.append(delivery)
    delivery.wait()
    assert delivery.killed, f"it ended before point {number}"
    bench.assert_whole(export)
    if bench.site.proxy:
        sent = bench.proxy.sent
        bench.proxy.clear()
    receipt = bench.deliver(export, resume={} if lost else delivery.notes).receipt
    assert dict(bench.site.visible(export.run)[receipt.version]) == dict(bench.site.expected(export))
    assert bench.site.current(export.run) == receipt.version
    assert not (left := bench.site.leftovers()), f"stopped at {number}: {left}"
    if bench.site.proxy and not lost:
        sent += bench.proxy.sent
        assert sent <= export.size + bench.site.part + bench.site.slack, f"{sent} bytes were sent of {export.size}, stopped at {number}"


def a_stop_in_the_midst_costs_a_part_at_most(bench: Bench) -> None:
    count = _points(bench)
    for place, number in enumerate(sorted({1, count // 3, count // 2, count - 2, count - 1, count} - {0})):
        _stopped(bench, number, late=bool(place % 2), run=f"run-{number}")


def a_stop_whose_notes_are_lost_leaves_nothing(bench: Bench) -> None:
    count = _points(bench)
    for number in sorted({count // 4, count // 2, 3 * count // 4} - {0}):
        _stopped(bench, number, late=True, run=f"run-{number}", lost=True)


def a_stop_anywhere_costs_a_part_at_most(bench: Bench) -> None:
    for late in (False, True) if bench.site.counts == "requests" else (False,):
        for number in range(1, _points(bench) + 1):
            _stopped(bench, number, late, run=f"run-{number}-{late}")


a_stop_anywhere_costs_a_part_at_most.slow = True  # type: ignore[attr-defined]
