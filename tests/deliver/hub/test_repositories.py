"""Which repository a run has, who may see it, and what names a version."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.contract.faults.fault_codes import FaultCode
from tests.deliver.contract.bench import Bench
from tests.deliver.hub.far_end.stock import stock
from tests.deliver.hub.far_end.store import Repo
from tests.deliver.proxy import Answer, Fault
from tests.deliver.sites.hub import SITE

FORBIDDEN = Fault(answer=Answer(403, {"X-Error-Message": "You don't have the rights to create a model under the namespace me"}, b"{}"))


@pytest.mark.parametrize("private", [None, True, False])
def test_a_repository_is_made_and_private_unless_it_is_said(bench: Bench, site: SITE, private: bool | None) -> None:
    site.more = {} if private is None else {"private": private}
    bench.deliver(bench.export())
    assert site.service.store.repo("me/run-a").private is (private is not False)


def test_a_repository_that_is_there_stays_as_public_as_it_is(bench: Bench, site: SITE) -> None:
    site.service.store.repos["me/run-a"] = Repo("me/run-a", private=False)
    assert bench.deliver(bench.export()).receipt.moved and not site.service.store.repo("me/run-a").private


def test_a_token_that_may_not_make_one_is_said_in_a_sentence(bench: Bench, site: SITE) -> None:
    bench.proxy.plan(FORBIDDEN, when=lambda request: request.path == "/api/repos/create", times=None)
    end = bench.deliver(bench.export()).end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_REFUSED
    assert "make the repository" in end.fault.sentence() and "rights to create a model" in end.fault.sentence()
    assert not site.service.store.repos


def test_a_token_of_one_repository_alone_is_enough(bench: Bench, site: SITE) -> None:
    site.service.store.repos["me/run-a"] = Repo("me/run-a", private=True)
    bench.proxy.plan(FORBIDDEN, when=lambda request: request.path == "/api/repos/create", times=None)
    export = bench.export()
    assert bench.deliver(export).receipt.moved
    bench.assert_whole(export)


def test_runs_that_share_a_repository_keep_their_versions_apart(bench: Bench, site: SITE) -> None:
    site.more = {"repo": "me/all"}
    first = [bench.deliver(bench.export(step, run="run-a"), keep=1).receipt.version for step in (100, 200)]
    second = bench.deliver(bench.export(50, run="run-b"), keep=1).receipt
    assert second.moved and second.removed == ()
    assert set(site.service.store.repo("me/all").tags) == {first[1], second.version}
    assert [row.version for row in bench.listed("run-a")] == [first[1]] and [row.version for row in bench.listed("run-b")] == [
        second.version
    ]


def test_a_version_may_be_a_branch(bench: Bench, site: SITE, tmp_path: Path) -> None:
    site.more = {"revisions": "branch"}
    exports = [bench.export(step) for step in (100, 200, 300)]
    versions = [bench.deliver(export, keep=2).receipt.version for export in exports]
    refs = stock(site.service.url, tmp_path / "home", """
refs = api.list_repo_refs("me/run-a")
say([[row.name for row in refs.branches], [row.name for row in refs.tags]])
""")  # fmt: skip
    assert refs == [["main", *versions[1:]], []]
    assert [(row.version, row.current) for row in bench.listed("run-a")] == [(versions[1], False), (versions[2], True)]
    bench.assert_whole(*exports)


def test_main_may_be_left_to_people(bench: Bench, site: SITE) -> None:
    site.more = {"main": False}
    receipt = bench.deliver(bench.export()).receipt
    repo = site.service.store.repo("me/run-a")
    assert not receipt.moved and "main" in receipt.why_not_moved and set(repo.at("main").files) == {".gitattributes"}
    assert set(repo.tags) == {receipt.version} and set(repo.branches) == {"main"}


def test_a_folder_may_be_kept_for_each_variant(bench: Bench, site: SITE) -> None:
    site.more = {"layout": "folders"}
    export = bench.export()
    bench.deliver(export)
    there = set(site.service.store.repo("me/run-a").at("main").files)
    assert {path for path in export.digests if "/" in path} <= there and "config.json" not in there


def test_a_name_that_the_hub_knows_nothing_of_is_said_once(bench: Bench, site: SITE) -> None:
    """A service without that interface, as a wrong address is."""
    bench.proxy.plan(Fault(answer=Answer(200, {"Content-Type": "text/html"}, b"<html>hello</html>")), times=None)
    end = bench.deliver(bench.export()).end
    assert end.fault and "no JSON" in end.fault.sentence() and "endpoint" in end.fault.sentence()
