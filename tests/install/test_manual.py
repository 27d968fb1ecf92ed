"""The man page is what the help says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from daemon.cli.manual import page
from tests.cli.test_every_verb import VERBS

PAGE = Path(__file__).parents[2] / "docs" / "ckptd.1"


def test_the_page_is_what_the_help_says() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `python -m daemon.cli.manual > docs/ckptd.1`"


def test_every_verb_and_every_option_is_on_the_page() -> None:
    text = page().replace("\\-", "-")
    for words, command in VERBS.items():
        assert f".SS ckptd {' '.join(words)}" in text
        section = text.partition(f".SS ckptd {' '.join(words)}")[2].partition(".SS")[0]
        assert all(f"\\fB{name}\\fR" in section for one in command.params for name in one.opts if name.startswith("--") and not one.hidden)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed here")
def test_groff_finds_nothing_to_warn_about() -> None:
    done = subprocess.run(["groff", "-man", "-ww", "-Tutf8", str(PAGE)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "ckptd status" in done.stdout
