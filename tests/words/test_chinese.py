"""The Chinese pages say what the English ones say: blocks of code, commands, names and links; and each term has one form."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import apprise
import pytest

from daemon.contract.language.catalog import use_language
from daemon.contract.language.recorded import translated_text
from tests.words.messages import translations
from tests.words.written import BLOCK, ROOT, SEVERAL_MEANINGS, blocks, commands, spans, terms

DOCS = ROOT / "docs"
CHINESE = DOCS / "zh-CN"
ENGLISH = {"quick-starts.md": "trainers.md", "operating.md": "operating.md", "troubleshooting.md": "troubleshooting.md"}
"""The English page of each Chinese one."""
WHOLE = {"quick-starts.md": "\n## What was tested", "troubleshooting.md": "\n## nowhere"}
"""Chinese pages that leave nothing out, and where the part of the English page that they translate ends."""
PAGES = sorted(page.name for page in CHINESE.glob("*.md"))
_EXPLAINS = re.compile(r"(?:^|\s+)#(?! +\[).*|  +.*|（.*?）|\(.*?\)")
"""Within a block of code: a comment, a second column, what stands in brackets."""


def text_of(name: str) -> str:
    return (CHINESE / name).read_text("utf-8")


def english_of(name: str) -> str:
    """The English page; of one that is translated whole, the part that is."""
    text = (DOCS / ENGLISH[name]).read_text("utf-8")
    return text.partition(WHOLE[name])[0] if name in WHOLE else text


def code(text: str) -> list[list[str]]:
    """The lines of each block of code, without what explains them."""
    return [[_EXPLAINS.sub("", line.strip()) for line in block.splitlines()] for block in blocks(text)]


def sections(text: str) -> list[str]:
    """The text below each heading of the second level, with the heading."""
    return re.split(r"^## ", BLOCK.sub("\n\n", text), flags=re.MULTILINE)[1:]


def named(text: str) -> Counter[str]:
    """The code within the lines, but for what has words of a language in it."""
    return Counter(span for span in spans(text) if span.isascii())


def targets(text: str, page: Path) -> Counter[str]:
    """Where links on a page lead. To a page in both languages: the English one, without the place in it."""

    def target(link: str) -> str:
        file, _, place = link.partition("#")
        path = Path(os.path.normpath(page.parent / file)) if file else page
        if ":" in link:
            return link
        if path.parent == CHINESE:
            return ENGLISH[path.name]
        return path.name if path.name in ENGLISH.values() else f"{path.relative_to(ROOT)}#{place}"

    return Counter(target(link) for link in re.findall(r"\]\(([^)\s]+)\)", text))


def without_glossary(name: str) -> str:
    return text_of(name).rpartition("\n## ")[0] if name == "operating.md" else text_of(name)


def test_every_chinese_page_has_an_english_one_and_both_lead_to_each_other() -> None:
    assert sorted(ENGLISH) == PAGES
    for chinese, english in ENGLISH.items():
        assert f"\n**English** · [简体中文](zh-CN/{chinese})\n" in (DOCS / english).read_text("utf-8")
        assert f"\n[English](../{english}) · **简体中文**\n" in text_of(chinese)


@pytest.mark.parametrize("name", PAGES)
def test_blocks_of_code_are_those_of_the_english_page_in_its_order(name: str) -> None:
    english = iter(code(english_of(name)))
    assert [block for block in code(text_of(name)) if block not in english] == []
    if name in WHOLE:
        assert code(text_of(name)) == code(english_of(name))


@pytest.mark.parametrize("name", PAGES)
def test_names_and_commands_on_a_chinese_page_are_those_of_the_english_one(name: str) -> None:
    assert set(named(without_glossary(name))) <= set(named(english_of(name))) | set(named((DOCS / ENGLISH[name]).read_text("utf-8")))
    assert commands(text_of(name))


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_whole_page_has_every_section_with_its_names_steps_and_links(name: str) -> None:
    pairs = list(zip(sections(english_of(name)), sections(text_of(name)), strict=False))
    assert len(pairs) == len(sections(english_of(name)))
    for english, chinese in pairs:
        assert named(english) == named(chinese), english.splitlines()[0]
        assert targets(english, DOCS / ENGLISH[name]) == targets(chinese, CHINESE / name), english.splitlines()[0]
        for mark in (r"^\d+\. ", r"^\| ", r"^- ", r"^### .*"):
            assert len(re.findall(mark, english, re.MULTILINE)) == len(re.findall(mark, chinese, re.MULTILINE)), english.splitlines()[0]


def test_the_operating_page_has_every_command_that_steers() -> None:
    english, chinese = (
        re.search(rf"^## {heading}\n([\s\S]*?)(?=^#)", text, re.MULTILINE)
        for heading, text in (("Steer it", english_of("operating.md")), ("操作", text_of("operating.md")))
    )
    rows = [re.findall(r"^\| (`.*?`) ?[|(（]", part[1] if part else "", re.MULTILINE) for part in (english, chinese)]
    assert rows[0] == rows[1] and len(rows[0]) > 5


READ = [*PAGES, "../../README.zh-CN.md"]


@pytest.mark.parametrize("name", READ)
def test_a_page_has_no_other_form_of_a_term_than_that_of_the_glossary(name: str) -> None:
    text = without_glossary(name)
    assert [(term, word) for term, _, banned in terms() for word in banned if word in text] == []
    assert len(list(terms())) > 15


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_a_section_has_the_chinese_form_of_each_term_that_the_english_one_has(name: str) -> None:
    lacking = []
    for english, chinese in zip(sections(english_of(name)), sections(text_of(name)), strict=False):
        prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", english)
        for term, form, _ in terms():
            if term not in SEVERAL_MEANINGS and re.search(rf"\b{term}s?\b", prose) and form not in chinese:
                lacking.append((english.splitlines()[0], term))
    assert lacking == []


SHOWN = re.compile(r"“([^”]+)”（(?:英文为 ?)?[`\"]([^`\"]+)[`\"]")
"""What the terminal shows in Chinese, with its English."""


@pytest.mark.parametrize(("name", "least"), [("operating.md", 7), ("troubleshooting.md", 12)])
def test_what_a_page_says_the_terminal_shows_is_what_it_shows(name: str, least: int) -> None:
    known = {english.removesuffix(", and what the columns mean"): forms[0] for english, forms in translations().items()}
    pairs = [(english, chinese) for chinese, english in SHOWN.findall(text_of(name)) if english not in ("Fix:", "error")]
    with use_language("zh_CN"):
        shown = [(english, {known.get(english, ""), translated_text(english)}) for english, _ in pairs]
    assert [pair for pair, (_, forms) in zip(pairs, shown, strict=True) if pair[1] not in forms] == []
    assert len(pairs) >= least


def test_urls_of_services_are_some_that_apprise_takes() -> None:
    urls = {span for span in spans(text_of("operating.md")) if "://" in span}
    assert {url.partition(":")[0] for url in urls} == {"dingtalk", "feishu", "lark", "wecombot"}
    assert [url for url in urls if apprise.Apprise.instantiate(url) is None] == []
