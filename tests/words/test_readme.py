"""README.md and README.zh-CN.md say the same: sections, commands, code, figures and links are held together."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.words.test_chinese import ENGLISH as IN_CHINESE
from tests.words.written import BLOCK, ROOT, blocks, commands, spans

ENGLISH, CHINESE = ((ROOT / name).read_text("utf-8") for name in ("README.md", "README.zh-CN.md"))
_TRANSLATED = re.compile(r"\s+#(?! +\[).*|  +.*|（.*?）|\(.*?\)")
"""Within a block of code: a comment, a second column, what stands in brackets."""
_SHOWN = {
    "产物": "artifact", "onnx-int8 通过 1.03 MiB": "onnx-int8 passed",
    "成功：/home/me/exports/my-run/step-150": "succeeded: /home/me/exports/my-run/step-150",
    "部署 onnx：速度为 PyTorch 的 3.4 倍，与实时模型的一致率 100%，…；原因见 report.html。":
        "Deploy onnx: 3.4 × as fast as PyTorch , 100 % agreement with the live model, …; report.html says why.",
}  # fmt: skip
"""What a terminal prints in Chinese → in English."""


def parts(text: str) -> list[tuple[int, int, int, int]]:
    """Of each section: the level of its heading, and how many blocks of code, rows of tables and items of lists it has."""
    found = re.split(r"^(?=#+ )", BLOCK.sub(lambda block: f"\n{'BLOCK' if block[0].strip() else ''}\n", text), flags=re.MULTILINE)[1:]
    count = [(one.count("BLOCK"), len(re.findall(r"^\|", one, re.MULTILINE)), len(re.findall(r"^- ", one, re.MULTILINE))) for one in found]
    return [(len(one.split(" ")[0]), *counted) for one, counted in zip(found, count, strict=True)]


def test_both_have_the_same_sections_tables_lists_and_blocks() -> None:
    assert parts(ENGLISH) == parts(CHINESE)
    assert len(parts(ENGLISH)) >= 6


def test_both_have_the_same_commands_and_names() -> None:
    assert commands(ENGLISH) == commands(CHINESE)
    assert Counter(spans(ENGLISH)) == Counter(spans(CHINESE))


def test_both_have_the_same_code_but_for_what_explains_it() -> None:
    said = [[_TRANSLATED.sub("", line.strip()) for block in blocks(text) for line in block.splitlines()] for text in (ENGLISH, CHINESE)]
    assert said[0] == [_SHOWN.get(line, line) for line in said[1]]


def test_both_have_the_same_figures() -> None:
    figures = [Counter(re.findall(r"\d[\d.,]*\d|\d", "\n".join(re.findall(r"^\|.*", text, re.MULTILINE)))) for text in (ENGLISH, CHINESE)]
    assert figures[0] == figures[1] and figures[0].total() > 8


def test_the_page_is_read_in_three_minutes() -> None:
    assert len(ENGLISH.partition("\n## Read on")[0].split()) <= 700


def test_both_lead_to_the_same_pages_and_to_each_other() -> None:
    english, chinese = (re.findall(r"\]\(([^)]+)\)", text) for text in (ENGLISH, CHINESE))
    assert "README.zh-CN.md" in english and "README.md" in chinese
    chinese = [link.replace(".zh-CN.png", ".png") for link in chinese]
    assert all((ROOT / link).is_file() for link in re.findall(r"!\[[^]]*\]\(([^)]+)\)", ENGLISH + CHINESE)), "each has its picture"
    in_both = {f"docs/{page}" for page in IN_CHINESE.values()}
    english = [link.partition("#")[0] if link.partition("#")[0] in in_both else link for link in english]
    chinese = [
        f"docs/{IN_CHINESE[page.name]}" if (page := Path(link.partition("#")[0])).parent.name == "zh-CN" else link for link in chinese
    ]
    assert in_both <= set(english)
    assert Counter(english) - Counter(["README.zh-CN.md"]) == Counter(chinese) - Counter(["README.md"])


def test_every_page_of_the_documentation_is_reached_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)\)", ENGLISH))
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").iterdir() if page.is_file() and page.suffix != ".1"}
    assert pages <= linked
