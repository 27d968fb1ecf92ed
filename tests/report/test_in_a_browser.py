"""The page in a browser, where there is one: nothing to scroll sideways on a telephone, and a few pages of paper."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.report import facts
from tests.report.test_page import page_of

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="there is no browser here")]
FRAME = """<body><iframe id="page" src="{page}" style="width:{width}px;height:900px;border:0"></iframe><p id="said"></p><script>
page.onload = () => {{
  const root = page.contentDocument.documentElement;
  said.textContent = `wide ${{root.scrollWidth - root.clientWidth}}`;
}};
</script></body>"""
"""A frame, since a browser's own window has a least width."""


def browse(folder: Path, *arguments: str) -> str:
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.mark.parametrize("case", [facts.succeeded, facts.rejected_int8, facts.failed_merge], ids=lambda case: case.__name__)
def test_nothing_is_to_be_scrolled_sideways_and_it_prints_on_a_few_pages(case: Any, tmp_path: Path) -> None:
    page, frame, paper = tmp_path / "report.html", tmp_path / "frame.html", tmp_path / "report.pdf"
    page.write_text(page_of(case(), tmp_path / "work"), encoding="utf-8")
    for width in (320, 390, 760):
        frame.write_text(FRAME.format(page=page.as_uri(), width=width), encoding="utf-8")
        dom = browse(tmp_path, "--allow-file-access-from-files", "--virtual-time-budget=3000", "--dump-dom", frame.as_uri())
        assert re.search(r'id="said">wide (\d+)<', dom)[1] == "0", width  # type: ignore[index]
    browse(tmp_path, f"--print-to-pdf={paper}", "--no-pdf-header-footer", page.as_uri())
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper.read_bytes())) <= 4


def test_nothing_is_cut_off_on_paper(tmp_path: Path) -> None:
    """The rules for paper, applied to a frame as wide as A4 between its margins (186 mm)."""
    page, frame = tmp_path / "report.html", tmp_path / "frame.html"
    text = page_of(facts.succeeded(), tmp_path / "work")
    page.write_text(text.replace("@media print", "@media all").replace("@media screen", "@media speech"), encoding="utf-8")
    frame.write_text(FRAME.format(page=page.as_uri(), width=703), encoding="utf-8")
    dom = browse(tmp_path, "--allow-file-access-from-files", "--virtual-time-budget=3000", "--dump-dom", frame.as_uri())
    assert re.search(r'id="said">wide (\d+)<', dom)[1] == "0"  # type: ignore[index]
