"""What networks and services do, by a proxy before the far end."""

from __future__ import annotations

from daemon.contract.faults.fault_codes import FaultCode
from tests.deliver.contract.bench import Bench
from tests.deliver.exports import Export
from tests.deliver.proxy import Answer, Fault, flipped, writes


def _refuses(bench: Bench, code: int, retry_after: str | None = None, times: int | None = None, first: int = 1) -> None:
    answer = bench.site.refusal(code)
    headers = {**answer.headers, **({"Retry-After": retry_after} if retry_after else {})}
    bench.proxy.plan(Fault(answer=Answer(answer.status, headers, answer.body)), first=first, times=times)


def _goes_on(bench: Bench, export: Export, notes: dict[str, object] | None = None) -> None:
    """Nothing is half visible, and once the far end is well, another attempt succeeds."""
    assert not bench.site.visible(export.run) and bench.site.current(export.run) is None
    bench.proxy.clear()
    assert bench.deliver(export, resume=notes or {}).receipt
    bench.assert_whole(export)


def what_is_refused_waits_for_a_person(bench: Bench) -> None:
    for code in (401, 403):
        bench.proxy.clear()
        export = bench.export(run=f"run-{code}")
        _refuses(bench, code)
        end = bench.deliver(export).end
        assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_REFUSED and str(code) in end.fault.sentence(), end
        assert len(bench.proxy.seen) <= 4, "what is refused was asked again and again"
        _goes_on(bench, export)


def a_refusal_in_the_midst_makes_nothing_visible(bench: Bench) -> None:
    export = bench.export()
    answer = bench.site.refusal(403)
    bench.proxy.plan(Fault(answer=answer), when=writes, first=2, times=None)
    end = bench.deliver(export).end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_REFUSED
    _goes_on(bench, export)


def a_look_says_what_would_be_refused(bench: Bench) -> None:
    _refuses(bench, 403)
    end = bench.deliver(bench.export(), action="look").end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_REFUSED


def a_wish_for_a_pause_is_kept(bench: Bench) -> None:
    export = bench.export()
    _refuses(bench, 429, retry_after="300")
    end = bench.deliver(export).end
    assert end.fault and not end.permanent and end.retry_after and 290 <= end.retry_after <= 300, end
    _goes_on(bench, export)


def a_service_that_is_down_for_a_moment_costs_nothing(bench: Bench) -> None:
    for code in (500, 503):
        bench.proxy.clear()
        export = bench.export(run=f"run-{code}")
        _refuses(bench, code, times=1, first=2)
        assert bench.deliver(export).receipt
        bench.assert_whole(export)


def a_service_that_stays_down_is_tried_later(bench: Bench) -> None:
    export = bench.export()
    _refuses(bench, 500)
    end = bench.deliver(export).end
    assert end.fault and not end.permanent and end.fault.code == FaultCode.DELIVERY_FAR_END, end
    _goes_on(bench, export)


def a_far_end_that_closes_is_tried_later(bench: Bench) -> None:
    export = bench.export()
    bench.proxy.closed_at_connect = True
    end = bench.deliver(export).end
    assert end.fault and not end.permanent and end.fault.code == FaultCode.DELIVERY_FAR_END, end
    _goes_on(bench, export)


def a_full_far_end_is_said(bench: Bench) -> None:
    export = bench.export()
    answer = bench.site.refusal(507)
    bench.proxy.plan(Fault(answer=answer), when=writes, times=None)
    end = bench.deliver(export).end
    assert end.fault and not end.permanent and end.fault.code == FaultCode.DELIVERY_FULL, end
    _goes_on(bench, export)


def a_far_end_that_lies_is_caught(bench: Bench) -> None:
    export = bench.export()
    bench.proxy.plan(
        Fault(corrupt=flipped), when=lambda request: bench.site.gives_contents(request), times=None,
    )  # fmt: skip
    end = bench.deliver(export).end
    assert end.fault and end.fault.code == FaultCode.DELIVERY_MISMATCH, end
    _goes_on(bench, export)


def _cut(bench: Bench, numbers: list[int], fault: Fault) -> None:
    """Cut each of those requests, in a delivery of its own."""
    for number in numbers:
        export = bench.export(
            run=f"run-{number}-{fault.cut_request}-{fault.cut_response}", seed=number + 1000 * (hash(fault) % 10**6), own=True
        )
        bench.proxy.clear()
        bench.proxy.plan(fault, first=number)
        delivery = bench.deliver(export)
        sent = bench.proxy.sent
        if delivery.end.fault is not None:
            assert not delivery.end.permanent, delivery.end.fault.sentence()
            bench.proxy.clear()
            delivery = bench.deliver(export, resume=delivery.notes)
            sent += bench.proxy.sent
        assert sent <= export.size + bench.site.part + bench.site.slack, f"{sent} bytes were sent of {export.size}"
        assert delivery.receipt.version in bench.site.visible(export.run)
        bench.assert_whole(export)


def _count(bench: Bench) -> int:
    assert bench.deliver(bench.export(run="first", seed=0, own=True)).receipt  # what all share lies there now
    bench.proxy.clear()
    assert bench.deliver(bench.export(run="counted", own=True)).receipt
    return len(bench.proxy.seen)


def a_cut_costs_a_part_at_most(bench: Bench) -> None:
    count = _count(bench)
    _cut(bench, sorted({2, count // 2, count - 1, count}), Fault(cut_request=700))
    _cut(bench, sorted({2, count - 1}), Fault(cut_response=0))


def a_cut_anywhere_costs_a_part_at_most(bench: Bench) -> None:
    count = _count(bench)
    for fault in (Fault(cut_request=1), Fault(cut_request=10_000), Fault(cut_response=0), Fault(cut_response=100)):
        _cut(bench, list(range(1, count + 1)), fault)


a_cut_anywhere_costs_a_part_at_most.slow = True  # type: ignore[attr-defined]
