"""Large files: parts, addresses that end, an object that is not what was sent, and what a later move of `main` costs."""

from __future__ import annotations

import json
import re

import pytest

from daemon.contract.faults.fault_codes import FaultCode
from tests.deliver.contract.bench import Bench
from tests.deliver.exports import Export
from tests.deliver.proxy import Fault, Request, status
from tests.deliver.sites.hub import SITE

FILES = {"pytorch/config.json": b"{}", "pytorch/model.safetensors": 5 * SITE.chunk - 9}


def _is_part(request: Request) -> bool:
    return request.method == "PUT" and bool(re.search(r"/store/\w+/\d+", request.path))


def _stopped(bench: Bench, parts: int) -> tuple[Export, dict[str, object]]:
    """A delivery that was killed after so many parts, and what it noted."""
    export, started = bench.export(files=FILES), []

    def kill(request: Request) -> None:
        started[0].process.kill()

    bench.proxy.plan(Fault(before=kill), when=_is_part, first=parts + 1)
    started.append(bench.start(export))
    assert started[0].wait().killed
    bench.proxy.clear()
    return export, started[0].notes


def test_parts_that_arrived_are_not_sent_again(bench: Bench, site: SITE) -> None:
    export, notes = _stopped(bench, 3)
    assert "X-Amz-Signature" not in json.dumps(notes), "the journal would hold a right to write"
    assert bench.deliver(export, resume=notes).receipt.moved
    assert sum(map(_is_part, bench.proxy.seen)) <= 2 + 1
    bench.assert_whole(export)


@pytest.mark.parametrize("ended", ["expired", "unknown"])
def test_an_upload_that_ended_begins_anew_by_itself(bench: Bench, site: SITE, ended: str) -> None:
    export, notes = _stopped(bench, 3)
    if ended == "expired":
        site.service.signature = "another"
    else:
        site.service.store.uploads.clear()
    assert bench.deliver(export, resume=notes).receipt.moved
    bench.assert_whole(export)


def test_notes_that_another_token_sealed_are_none(bench: Bench, site: SITE) -> None:
    export, notes = _stopped(bench, 3)
    site.secret = "hf_" + "another" * 5
    site.service.tokens = {site.secret}
    assert bench.deliver(export, resume=notes).receipt.moved
    bench.assert_whole(export)


def test_an_object_that_can_not_be_verified_is_sent_again(bench: Bench, site: SITE) -> None:
    site.service.fails_to_verify = 1
    export = bench.export()
    assert bench.deliver(export).receipt.moved
    bench.assert_whole(export)


def test_an_object_that_is_never_verified_makes_nothing_visible(bench: Bench, site: SITE) -> None:
    site.service.fails_to_verify = 1000
    export = bench.export()
    end = bench.deliver(export).end
    assert end.fault and end.fault.code == FaultCode.DELIVERY_FAR_END and "can't be verified" in end.fault.sentence()
    assert not site.visible("run-a") and site.current("run-a") is None


def test_a_commit_that_holds_another_digest_gets_no_name(bench: Bench, site: SITE) -> None:
    """By the Hub's own list of files; nothing is read back."""
    export = bench.export()
    digest = export.digests["pytorch/model.safetensors"]
    bench.proxy.plan(
        Fault(corrupt=lambda body: body.replace(digest.encode(), digest[::-1].encode())), when=lambda request: "/tree/" in request.path,
        times=None,
    )  # fmt: skip
    end = bench.deliver(export, read_back=False).end
    assert end.fault and end.fault.code == FaultCode.DELIVERY_MISMATCH and "model.safetensors" in end.fault.sentence()
    assert not site.visible("run-a") and site.current("run-a") is None


def test_main_that_moves_later_costs_no_contents(bench: Bench, site: SITE) -> None:
    export = bench.export()
    version = bench.deliver(export, move="keep").receipt.version
    bench.proxy.clear()
    receipt = bench.deliver(export).receipt
    assert receipt.moved and receipt.sent == 0 and bench.proxy.sent <= site.slack
    assert site.current("run-a") == version, "main's files are those of the version, kept in the same way"
    repo = site.service.store.repo("me/run-a")
    main, named = repo.at("main").files, repo.at(repo.tags[version]).files
    assert {path: (file.oid, file.sha256) for path, file in main.items()} == {path: (file.oid, file.sha256) for path, file in named.items()}


def test_small_files_are_asked_for_together_and_those_that_fail_alone(bench: Bench, site: SITE) -> None:
    export = bench.export(files={f"pytorch/{number}.bin": b"\0%d" % number for number in range(20)})
    bench.proxy.plan(status(503), when=lambda request: "/store/" in request.path and request.method == "PUT", first=3)
    assert bench.deliver(export).receipt.moved
    asked = [request for request in bench.proxy.seen if request.path.endswith("/objects/batch")]
    assert len(asked) == 2, "once for all of them, and once more for the one that failed"
    bench.assert_whole(export)
