"""The pages in a real browser: what fits a telephone and a desk, day and night, with scripts and without; what a checker of accessibility
says; and what happens to an open page when the journal changes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from daemon.journal.journal import Journal
from daemon.page import events
from handlers.web.browser import chromium
from tests.page.conftest import wait_until
from tests.page.screens.browsing import Tab, browsing
from tests.page.screens.conftest import HOSTILE, Pages

HAS_BROWSER = any(shutil.which(name) for name in chromium.NAMES)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not HAS_BROWSER, reason="there is no browser here")]
PAGES = ("/", "/jobs", "/runs", "/run?name=done", f"/run?name={quote(HOSTILE)}", "/jobs/done-4-65e2f9d05339", "/jobs/failed-4-41b47ac35339",
         "/jobs/hostile-4-bb/log/merge/1", "/jobs?state=wrong")  # fmt: skip
LOOKS: dict[str, dict[str, Any]] = {
    "telephone": {"width": 390}, "narrow, night": {"width": 320, "dark": True}, "desk": {"width": 1280},
    "desk, night": {"width": 1280, "dark": True}, "Chinese telephone": {"width": 390, "chinese": True},
    "paper": {"width": 703, "paper": True},
}  # fmt: skip
AXE = "axe-core@4.13.0"
LEAST = ("serious", "critical")
WIDE = (
    "[...document.querySelectorAll('main *')].filter(part => part.closest('thead') === null"
    " && part.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length"
)


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browsing() as tab:
        yield tab


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The script of axe-core, from npm."""
    folder = tmp_path_factory.mktemp("axe")
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    command = ["npm", "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", AXE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"npm has no {AXE} here: {done.stderr[-300:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def found_by(axe: str, tab: Tab) -> list[str]:
    """What axe-core finds wrong, of what it calls serious or worse."""
    tab.run("document.querySelectorAll('details').forEach(part => part.open = true)")
    tab.run(f"{axe};0")
    answer = json.loads(tab.run("axe.run(document, {resultTypes: ['violations']}).then(value => JSON.stringify(value.violations))"))
    return [f"{rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in answer if rule["impact"] in LEAST]


@pytest.mark.parametrize("look", LOOKS)
def test_every_page_fits_and_complains_of_nothing(look: str, tab: Tab, pages: Pages, axe: str) -> None:
    tab.look_like(**LOOKS[look])
    for path in PAGES:
        tab.errors.clear()
        tab.open(pages.address + path)
        assert tab.run("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0, path
        assert tab.run(WIDE) == 0, path
        assert found_by(axe, tab) == [], path
        assert [error for error in tab.errors if "status of 40" not in error] == [], path
    assert {re.sub(r"(//[^/]+).*", r"\1", address) for address in tab.asked} == {pages.address}


def test_the_checker_sees_what_is_wrong(tab: Tab, pages: Pages, axe: str) -> None:
    tab.look_like(1280)
    tab.open(pages.address + "/jobs")
    tab.run("document.querySelector('select').closest('label').replaceWith(document.createElement('select'))")
    assert any(finding.startswith("select-name") for finding in found_by(axe, tab))


def test_a_page_is_right_without_scripts_and_says_when_it_was_made(tab: Tab, pages: Pages) -> None:
    tab.look_like(390, script=False)
    tab.open(pages.address + "/")
    document = tab.ask("DOM.getDocument", depth=-1)["root"]["nodeId"]
    text = tab.ask("DOM.getOuterHTML", nodeId=document)["outerHTML"]
    assert "failed · step 4" in re.sub("<[^>]+>", "", text) and "UTC</time>" in text and "Look again" in text
    tab.look_like(1280)


def test_an_open_page_follows_the_journal_and_leaves_what_is_used_as_it_is(tab: Tab, steered: Pages) -> None:
    job = "waits-4-86f000835339"
    tab.look_like(1280)
    tab.open(f"{steered.address}/jobs/{job}")
    tab.wait("document.body.classList.contains('is-live')")
    tab.run("window.marked = 'this document'; document.querySelector('#timeline, main').focus(); scrollTo(0, 120)")
    place = tab.run("scrollY")
    journal = Journal(steered.home / "state" / "journal.sqlite3")
    journal.controls.pause(job, True)
    tab.wait("document.querySelector('#summary .badge').textContent.includes('paused')")
    assert tab.run("window.marked") == "this document" and tab.run("scrollY") == place, "the page was not loaded anew"
    tab.run("document.querySelector('#summary button').focus()")
    before = tab.run("document.querySelector('#summary').textContent")
    journal.controls.pause(job, False)
    tab.wait("document.querySelector('#foot time') !== null")
    tab.run("new Promise(done => setTimeout(done, 3500))")
    assert tab.run("document.activeElement.tagName") == "BUTTON" and tab.run("document.querySelector('#summary').textContent") == before
    tab.run("document.activeElement.blur(); dispatchEvent(new Event('focus'))")
    journal.controls.pause(job, True)
    journal.controls.pause(job, False)
    tab.wait("document.querySelector('#summary .badge').textContent.includes('waiting')")
    journal.close()


def test_a_button_needs_no_script(tab: Tab, steered: Pages, tmp_path: Path) -> None:
    job = "waits-4-86f000835339"
    tab.look_like(390)
    tab.open(f"{steered.address}/jobs/{job}")
    tab.run("document.querySelector('form[action$=pause]').submit()")
    tab.wait("document.querySelector('.said') !== null")
    assert "is paused now" in tab.run("document.querySelector('.said').textContent")
    assert tab.run("location.pathname") == f"/jobs/{job}"


def test_a_page_whose_stream_was_refused_is_kept_up_to_date_once_there_is_one(
    tab: Tab, steered: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_STREAMS", 0)  # each is answered with 503
    job = "waits-4-86f000835339"
    tab.look_like(1280)
    tab.asked.clear()
    tab.open(f"{steered.address}/jobs/{job}")
    tab.wait("document.querySelector('#live').textContent.includes('No connection')")
    with closing(Journal(steered.home / "state" / "journal.sqlite3")) as journal:
        journal.controls.pause(job, True)
    monkeypatch.undo()
    tab.wait("document.querySelector('#summary .badge').textContent.includes('paused')")
    tab.wait("document.body.classList.contains('is-live')")
    assert len([address for address in tab.asked if address.endswith("/events")]) >= 2


def test_a_page_that_nobody_sees_gives_its_connection_back(tab: Tab, steered: Pages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "BEAT_SECONDS", 0.2)  # by which the server sees who is gone
    hide = (
        "Object.defineProperty(document, 'hidden', {value: %s, configurable: true}); document.dispatchEvent(new Event('visibilitychange'))"
    )
    job = "waits-4-86f000835339"
    tab.look_like(1280)
    tab.open(f"{steered.address}/jobs/{job}")
    tab.wait("document.body.classList.contains('is-live')")
    monkeypatch.setattr(events, "MOST_STREAMS", 1)
    assert steered.ask("HEAD", "/events").status == 503
    tab.run(hide % "true")
    wait_until(lambda: steered.ask("HEAD", "/events").status == 200)
    with closing(Journal(steered.home / "state" / "journal.sqlite3")) as journal:
        journal.controls.pause(job, True)
    tab.run(hide % "false")
    tab.wait("document.querySelector('#summary .badge').textContent.includes('paused')")
    assert steered.ask("HEAD", "/events").status == 503
