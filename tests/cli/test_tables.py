"""What `ckptd export` prints at its end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

import daemon.cli.views
from daemon.cli.views.markup import escape
from daemon.cli.views.tables import artifact_table
from daemon.contract.jobs.plan import variant_names

CONTROLLED = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=60)
WIDE = {"error_max": 4.2e-07, "agreement": 0.9746, "tokens_per_second": 142523.4, "speed_over_pytorch": 5.5545}


def printed(report: dict[str, object]) -> list[str]:
    console = Console(width=80, record=True, force_terminal=False)
    with console.capture() as capture:
        console.print(artifact_table(report))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_every_variant_fits_into_80_columns_with_nothing_cut() -> None:
    artifacts = [
        {"variant": name, "verdict": "unverified", "size_bytes": 1023 * 1024, "size_ratio": 10.05, "figures": WIDE}
        for name in variant_names()
    ]
    lines = printed({"artifacts": artifacts})
    assert len(lines) == 1 + len(variant_names())
    assert not [line for line in lines if "…" in line]
    assert lines[0].split() == ["artifact", "verdict", "size", "×", "base", "error", "agree", "tok/s", "speed"]
    assert [line.split()[0] for line in lines[1:]] == list(variant_names())
    assert lines[1].split()[-4:] == ["%", "142,523", "5.6", "×"]


def test_what_was_not_measured_is_a_dash() -> None:
    (_, row) = printed({"artifacts": [{"variant": "onnx", "verdict": "failed", "size_bytes": None, "size_ratio": None}]})
    assert row.split() == ["onnx", "failed", "–", "–", "–", "–", "–", "–"]


@pytest.mark.parametrize(("text", "said"), [
    ("run\x1b[31m", "run" + r"\x1b[31m"),
    ("a\rb", "a\\rb"), ("\u202eab", "\\u202eab"), ("\udcff", "\\udcff"), ("поезд\tдва\nтри", "поезд\\tдва\\nтри"),
    ("a\u2028b\x85", "a\\u2028b\\x85"), ("größe.v2 東京 (1)", "größe.v2 東京 (1)"),
])  # fmt: skip
def test_a_name_cannot_move_the_cursor_end_a_line_or_change_colours(text: str, said: str) -> None:
    assert escape(text) == said


@pytest.mark.parametrize("count", range(7))
def test_a_name_that_ends_in_backslashes_does_not_take_the_tag_after_it_for_text(count: int) -> None:
    name = "a" + "\\" * count
    shown = Text.from_markup(f"[red]{escape(name)}[/red]b")
    assert shown.plain.startswith("a" + "\\" * (count // 2)) and shown.plain.endswith("b") and "[" not in shown.plain


def test_every_verb_prints_by_the_one_way_to_the_terminal() -> None:
    (views,) = daemon.cli.views.__path__
    files = [path for folder in (Path(views).parent, Path(views)) for path in folder.glob("*.py") if path.name != "markup.py"]
    assert len(files) > 15 and {"main.py", "status.py"} <= {path.name for path in files}
    assert [path.name for path in files if re.search(r"from rich.markup|(?<![\w.])(?:print|Console|echo)\(", path.read_text())] == []


def test_an_error_about_a_name_with_controls_shows_them(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "daemon", "explain", tmp_path / "a\x1b[2Jb"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "\x1b" not in done.stderr and "a\\x1b[2Jb" in done.stderr
