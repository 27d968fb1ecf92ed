"""What lies there, and what is taken away."""

from __future__ import annotations

from tests.deliver.contract.bench import Bench


def the_list_names_what_was_brought_oldest_first(bench: Bench) -> None:
    bench.site.lay_foreign()
    assert bench.listed() == []
    receipts = {step: bench.deliver(bench.export(step)).receipt for step in (300, 100, 200)}
    other = bench.deliver(bench.export(50, run="run-b")).receipt
    rows = bench.listed("run-a")
    assert [(row.version, row.step, row.run) for row in rows] == [(receipts[step].version, step, "run-a") for step in (100, 200, 300)]
    assert [row.current for row in rows] == [False, False, True] and all(row.whole and row.export for row in rows)
    assert {row.version for row in bench.listed()} == {other.version, *(receipt.version for receipt in receipts.values())}
    assert bench.site.foreign_is_there()


def contents_that_another_version_needs_stay(bench: Bench) -> None:
    first, second = bench.export(100), bench.export(200)
    old, new = bench.deliver(first).receipt, bench.deliver(second).receipt
    assert bench.remove(old.version).fault is None
    assert set(bench.site.visible("run-a")) == {new.version} and [row.version for row in bench.listed("run-a")] == [new.version]
    bench.assert_whole(second)
    assert bench.remove(old.version).fault is None, "one that is not there is none"


def contents_that_nobody_needs_go(bench: Bench) -> None:
    assert bench.deliver(bench.export(200)).receipt
    before = bench.site.stored()
    extra = bench.deliver(bench.export(100)).receipt
    assert bench.site.stored() > before + 100_000
    bench.remove(extra.version)
    assert bench.site.stored() <= before + 1000


def the_followed_version_is_not_taken_away(bench: Bench) -> None:
    export = bench.export()
    receipt = bench.deliver(export).receipt
    end = bench.remove(receipt.version)
    assert end.fault is not None and set(bench.site.visible(export.run)) == {receipt.version}
    bench.assert_whole(export)


def what_is_not_ours_stays(bench: Bench) -> None:
    export = bench.export()
    receipt = bench.deliver(export).receipt
    bench.site.lay_foreign()
    for name in ("foreign-1-00000000", "..", ".", "", "/", "*", "../" + receipt.version):
        bench.remove(name)
    assert bench.site.foreign_is_there() and set(bench.site.visible(export.run)) == {receipt.version}
    bench.assert_whole(export)


def the_targets_rule_takes_the_oldest_away(bench: Bench) -> None:
    exports = [bench.export(step) for step in (100, 200, 300)]
    versions = [bench.deliver(export, keep=2).receipt for export in exports]
    assert versions[-1].removed == (versions[0].version,)
    assert set(bench.site.visible("run-a")) == {versions[1].version, versions[2].version}
    bench.assert_whole(*exports)
