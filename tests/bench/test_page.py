"""The page of a measurement: what it shows, and that it loads nothing and breaks nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from daemon.contract.jobs.processes.benchmark import Bench
from handlers.report.pages.bench_page import render, shown_places
from tests.bench.made import BENCH, SENTENCE
from tests.report.test_in_a_browser import BROWSER, FRAME, browse


class Texts(HTMLParser):
    """The texts of a page, and the names of its elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_it_holds_what_the_terminal_shows() -> None:
    text = " ".join(Texts(render(BENCH)).texts)
    for part in (SENTENCE, *BENCH.notes, *BENCH.cut, "2.5 ×", "30,862", "49.4 ms", "1.21 GiB", "The model has 4096 positions."):
        assert part in text, part
    assert text.count("PyTorch, measured in turns with it") == 2 * len(shown_places(BENCH))
    assert shown_places(BENCH) == [(1, 1, 16), (1, 1, 4096), (1, 64, 4096), (16, 1, 4096)]  # 8192 tokens are too many


def test_it_loads_nothing() -> None:
    page = render(BENCH)
    assert not Texts(page).tags & {"script", "img", "link", "iframe", "object"} and "url(" not in page
    assert "default-src 'none'" in page


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=30)
@given(name=st.text(min_size=1, max_size=20), kind=st.sampled_from(["causal", "seq2seq", "encoder", None]), some=st.integers(0, 3))
def test_names_are_shown_and_not_obeyed(name: str, kind: str | None, some: int) -> None:
    told = name.encode("utf-8", "backslashreplace").decode()
    value = BENCH.model_copy(update={"run": f"<b>{told}", "kind": kind, "variants": BENCH.variants[:some], "no_pytorch": f"<i>{told}"})
    page = Texts(render(Bench.model_validate_json(value.model_dump_json())))
    assert not page.tags & {"b", "i"} - {"b" if value.cut else ""}


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="there is no browser here")
def test_nothing_is_to_be_scrolled_sideways(tmp_path: Path) -> None:
    page, frame = tmp_path / "bench.html", tmp_path / "frame.html"
    page.write_text(render(BENCH), encoding="utf-8")
    for width in (320, 390, 760, 1200):
        frame.write_text(FRAME.format(page=page.as_uri(), width=width), encoding="utf-8")
        dom = browse(tmp_path, "--allow-file-access-from-files", "--virtual-time-budget=3000", "--dump-dom", frame.as_uri())
        assert re.search(r'id="said">wide (\d+)<', dom)[1] == "0", width  # type: ignore[index]
