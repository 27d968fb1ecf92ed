"""Links of pages, and names of pages and of their sections in the code, lead somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.words.written import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
SOURCES = ("daemon", "handlers", "tests", "benchmarks", "systemd")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?<![\w/.-])docs/([\w-]+\.md)(?! of ggml)(?:#([\w-]+)|, \"([^\"]+)\")?")
"""A page in a comment, a docstring or a message: `docs/PAGE.md`, with an anchor or a heading in quotes; ggml has pages of its own."""


def headings(page: Path) -> list[str]:
    return re.findall(r"^#+ (.+)$", FENCED.sub("", page.read_text("utf-8")), re.MULTILINE)


def anchors(page: Path) -> list[str]:
    """Return the anchors of a page, as GitHub makes them of its headings."""
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_our_own_files_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        file, _, place = link.partition("#")
        if ":" not in link:
            target = page.parent / file if file else page
            assert target.exists(), link
            assert not place or place in anchors(target), link


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != ROOT], ids=lambda page: page.name)
def test_no_two_sections_of_a_page_have_the_same_anchor(page: Path) -> None:
    assert len(set(anchors(page))) == len(anchors(page))


def named_in_code() -> Iterator[tuple[str, str, str, str]]:
    """Yield every place that names a page of ours: file, page, anchor or "", heading or ""."""
    files = [ROOT / "config.toml", *(path for room in SOURCES for path in sorted((ROOT / room).rglob("*")))]
    for path in files:
        if path.suffix in (".py", ".toml", ".service", ".conf", ".md", ".html") and path != Path(__file__):
            text = re.sub(r"\n\s*(?:# ?)?", " ", path.read_text("utf-8"))
            for page, anchor, heading in NAMED.findall(text):
                yield str(path.relative_to(ROOT)), page, anchor, heading


def test_pages_and_sections_that_the_code_names_exist() -> None:
    places = list(named_in_code())
    assert len(places) > 40
    for file, page, anchor, heading in places:
        path = ROOT / "docs" / page
        assert path.exists(), f"{file} names docs/{page}"
        assert not anchor or anchor in anchors(path), f"{file} names docs/{page}#{anchor}"
        assert not heading or heading in headings(path), f'{file} names docs/{page}, "{heading}"'
