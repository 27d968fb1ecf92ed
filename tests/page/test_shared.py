"""What readers of a page share: what is made for one of them within a second serves all, and none is shown what was before a change."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.settings import Settings
from daemon.page import reader
from daemon.page.controls import SAID
from daemon.page.reader import Reader
from tests.page.conftest import Site
from tests.page.test_events import next_block, stream

Make = Callable[..., Site]
JOB = "run-01-1-00000001"


def made_at(site: Site, path: str = "/", **headers: str) -> str:
    """When a page was made, as it says."""
    answer = site.ask(path, Accept="text/html", **headers)
    said = re.findall(r'<time datetime="([^"]+)"', answer.body.decode().rpartition('<footer id="foot"')[2])
    assert len(said) == 1, answer.status
    return str(said[0])


@pytest.fixture
def for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets answers be kept for a minute."""
    monkeypatch.setattr(reader, "FRESH_SECONDS", 60.0)


def test_readers_of_a_page_share_it_each_in_their_language(make_site: Make, for_long: None) -> None:
    site = make_site(jobs=3)
    first = made_at(site)
    time.sleep(1.1)
    assert made_at(site) == first
    assert made_at(site, Accept_Language="zh-CN") != first
    chinese = site.ask("/", Accept="text/html", Accept_Language="zh-CN")
    assert b'lang="zh-CN"' in chinese.body and chinese.headers["content-language"] == "zh-CN"
    assert b'lang="en"' in site.ask("/", Accept="text/html").body
    assert site.ask("//", Accept="text/html").status == 404, "nor is another address taken for it"
    assert site.ask("/", Accept="text/html", Connection="close", Content_Length="0").status == 200
    assert "connection" not in site.ask("/", Accept="text/html").headers, "nor what one answer alone has"


def test_what_a_button_said_is_shown_to_who_pressed_it_alone(make_site: Make, for_long: None) -> None:
    site = make_site(jobs=3)
    pressed = site.ask("/", Accept="text/html", Cookie=f"{SAID}=it%20is%20next")
    assert b"it is next" in pressed.body and "set-cookie" in pressed.headers
    other = site.ask("/", Accept="text/html")
    assert b"it is next" not in other.body and "set-cookie" not in other.headers


def test_a_large_page_is_not_kept(make_site: Make, for_long: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_BYTES", 100)
    site = make_site(jobs=3)
    first = made_at(site)
    time.sleep(1.1)
    assert made_at(site) != first


def test_who_looks_again_after_a_change_was_told_is_shown_it(make_site: Make, for_long: None) -> None:
    site = make_site(jobs=3)
    with stream(site) as answer:
        next_block(answer)
        time.sleep(1.5)  # until its first look
        assert site.ask("/api/v1/status").json["paused"] is None
        site.journal.controls.pause_all(True)
        assert "event: changed" in next_block(answer)
        assert site.ask("/api/v1/status").json["paused"] is not None


def test_what_was_being_read_at_a_change_is_not_kept(tmp_path: Path) -> None:
    reads = Reader(lambda: Settings.model_validate({"state": {"directory": tmp_path}}))

    def read(value: int) -> int:
        if value == 1:
            reads.forget()  # somebody else's, meanwhile
        return value

    assert [reads.once(("x",), lambda value=value: read(value)) for value in (1, 2, 3)] == [1, 2, 2]  # type: ignore[misc]


@pytest.mark.parametrize("path", [f"/jobs/{JOB}/trace.json", "/reports/x/report.html", f"/jobs/{JOB}"])
def test_a_journal_that_can_not_be_read_is_said_to_people_on_a_page_and_to_programs_as_json(make_site: Make, path: str) -> None:
    site = make_site(jobs=3)
    (site.folder / "state" / "journal.sqlite3").write_bytes(b"no journal" * 1000)
    page = site.ask(path, Accept="text/html,*/*;q=0.8", Accept_Language="zh-CN")
    assert page.status == 503 and page.headers["content-type"].startswith("text/html") and b'lang="zh-CN"' in page.body
    program = site.ask(f"/api/v1/jobs/{JOB}", Accept="text/html")
    assert program.status == 503 and program.headers["content-type"] == "application/json" and program.json["error"]
    if not path.endswith(JOB):
        assert site.ask(path).json["remedy"]
