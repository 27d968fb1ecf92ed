"""The token, which nobody but the Hub may see."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.deliver.contract.bench import Bench, Delivery
from tests.deliver.hub.service import TOKEN
from tests.deliver.proxy import Answer, Fault, Request
from tests.deliver.sites.hub import SITE


def test_it_is_in_no_list_of_processes_and_no_file(bench: Bench, site: SITE, tmp_path: Path) -> None:
    """At each request of a delivery whose token came by the order."""
    seen, started = list[bytes](), list[Delivery]()

    def look(request: Request) -> None:
        process = Path("/proc") / str(started[0].process.pid)
        seen.append((process / "cmdline").read_bytes() + (process / "environ").read_bytes())
        seen.extend(path.read_bytes() for path in (tmp_path / "scratch").rglob("*") if path.is_file())

    site.own_interpreter = True
    bench.proxy.plan(Fault(before=look), times=None)
    started.append(bench.start(bench.export()))
    assert started[0].receipt.moved
    assert len(seen) > 20 and not any(TOKEN.encode() in text for text in seen)
    assert not any(TOKEN in request.path for request in bench.proxy.seen)


@pytest.mark.parametrize("where", ["header", "body", "json"])
def test_a_service_that_repeats_it_does_not_make_us_say_it(bench: Bench, site: SITE, where: str) -> None:
    words = f"the token {TOKEN} may not write here"
    answer = {
        "header": Answer(403, {"X-Error-Message": words}, b""), "body": Answer(403, {}, words.encode()),
        "json": Answer(403, {}, json.dumps({"error": words}).encode()),
    }[where]  # fmt: skip
    bench.proxy.plan(Fault(answer=answer), times=None)
    delivery = bench.deliver(bench.export())  # which looks for it in all that is said
    end = delivery.end
    assert end.fault and "may not write here" in end.fault.sentence() and "***" in end.fault.sentence()


def test_it_goes_to_the_hubs_own_address_alone(bench: Bench, site: SITE) -> None:
    """The store of large files refuses who shows it."""
    bench.deliver(bench.export())
    for request in bench.proxy.seen:
        assert ("authorization" in request.headers) is not request.path.startswith(("/store/", "/cdn/")), request.path


@pytest.mark.parametrize("name", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_it_may_come_by_the_usual_variables(bench: Bench, site: SITE, name: str) -> None:
    site.variables, site.secret = {name: f" {TOKEN}\n"}, ""
    assert bench.deliver(bench.export()).receipt.moved


@pytest.mark.parametrize(("token", "words"), [("", "there is none"), ("hf_ä", "no token has"), ("hf_a\nb", "no token has")])
def test_none_and_a_wrong_one_are_said(bench: Bench, site: SITE, token: str, words: str) -> None:
    site.variables, site.secret = {"HF_TOKEN": "", "HUGGING_FACE_HUB_TOKEN": ""}, token
    end = bench.deliver(bench.export()).end
    assert end.permanent and end.fault and words in end.fault.sentence()
    assert not bench.proxy.seen
