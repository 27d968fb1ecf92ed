"""A delivery where nothing goes wrong at the far end."""

from __future__ import annotations

from daemon.contract.faults.fault_codes import FaultCode
from tests.clock.shift import Shift
from tests.deliver.contract.bench import Bench


def a_whole_version_arrives_and_is_followed(bench: Bench) -> None:
    export = bench.export()
    receipt = bench.deliver(export).receipt
    assert dict(bench.site.visible(export.run)[receipt.version]) == dict(bench.site.expected(export))
    assert receipt.moved and bench.site.current(export.run) == receipt.version
    assert receipt.sent + receipt.there >= bench.site.carried(export) * 0.5 and receipt.place and receipt.usage


def what_lies_there_is_read_back(bench: Bench) -> None:
    export = bench.export()
    assert bench.deliver(export).receipt.read_back >= bench.site.carried(export)
    assert bench.deliver(bench.export(200), read_back=False).receipt.read_back == 0


def a_second_delivery_sends_nothing_again(bench: Bench) -> None:
    export = bench.export()
    first = bench.deliver(export).receipt
    if bench.site.proxy:
        bench.proxy.clear()
    second = bench.deliver(export).receipt
    assert second.version == first.version and second.sent == 0 and second.there == bench.site.carried(export)
    assert not bench.site.proxy or bench.proxy.sent <= bench.site.slack
    bench.assert_whole(export)


def what_another_version_brought_is_not_sent_again(bench: Bench) -> None:
    assert bench.deliver(bench.export(100)).receipt
    same = bench.export(200, seed=100)
    receipt = bench.deliver(same).receipt
    assert receipt.sent <= bench.site.slack, "contents that lay there were sent"
    bench.assert_whole(bench.export(100), same)


def chosen_variants_go_alone(bench: Bench) -> None:
    export = bench.export()
    receipt = bench.deliver(export, variants=("onnx",)).receipt
    assert dict(bench.site.visible(export.run)[receipt.version]) == dict(bench.site.expected(export, ("onnx",)))


def a_variant_that_is_missing_is_said(bench: Bench) -> None:
    export = bench.export()
    end = bench.deliver(export, variants=("mlx",)).end
    assert end.permanent and end.fault and "mlx" in end.fault.sentence()
    assert not bench.site.visible(export.run)


def a_reader_sees_whole_versions_or_none(bench: Bench) -> None:
    steps = [bench.export(step) for step in (100, 200, 300)]
    with bench.reader(*steps) as seen:
        receipts = [bench.deliver(export).receipt for export in steps]
    followed = [version for version in seen if version is not None]
    assert followed == sorted(set(followed), key=followed.index), f"the followed name went back: {seen}"
    assert bench.site.current(steps[0].run) == receipts[-1].version and len(bench.site.visible(steps[0].run)) == 3


def hostile_names_of_runs_stay_apart(bench: Bench) -> None:
    runs = ["../../etc/a b", "..-..-etc-a-b", "-x", "日本語 #1?&%2f", ".", "a\nb", "a b", "x" * 240, "x" * 239 + "y", "latest.json", "0"]
    versions = {run: bench.deliver(bench.export(run=run)).receipt.version for run in runs}
    for run, version in versions.items():
        assert bench.site.current(run) == version, run
        assert [row.version for row in bench.listed(run)] == [version], run
        bench.assert_whole(bench.export(run=run))


def a_source_that_changed_makes_nothing_visible(bench: Bench) -> None:
    for change in (lambda data: data[:-1], lambda data: bytes([data[0] ^ 1]) + data[1:], lambda data: data + b"x", None):
        export = bench.export()
        path = export.folder / bench.site.weights
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))
        end = bench.deliver(export).end
        assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_SOURCE, end
        assert not bench.site.visible(export.run) and bench.site.current(export.run) is None


def a_look_changes_nothing(bench: Bench) -> None:
    export, before = bench.export(), bench.site.stored()
    end = bench.deliver(export, action="look").end
    assert end.fault is None and bench.site.stored() == before and not bench.site.visible(export.run)


def a_wrong_clock_changes_nothing(bench: Bench) -> None:
    shift = Shift(bench.site.folder / "clock")
    receipts = []
    for step, seconds in ((100, 0.0), (200, -90_000.0), (300, 90_000.0), (250, 0.0)):
        shift.set(seconds)
        delivery = bench.start(bench.export(step), clock=bench.site.folder / "clock").wait()
        receipts.append(delivery.receipt)
    assert bench.site.current("run-a") == receipts[2].version and not receipts[3].moved
    assert [row.step for row in bench.listed("run-a")] == [100, 200, 250, 300]


def an_export_of_many_small_files_arrives(bench: Bench) -> None:
    export = bench.export(
        files={**bench.site.files, **{f"{bench.site.weights.split('/')[0]}/part/{number}": b"%d" % number for number in range(30)}}
    )
    receipt = bench.deliver(export).receipt
    assert dict(bench.site.visible(export.run)[receipt.version]) == dict(bench.site.expected(export))
