"""What goes to systemd's journal by standard error has its priority in front of every line."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.system.journald import ERROR, JournalStream, prefixed
from tests.service import Service

SCRIPT = """
import logging, sys
from pathlib import Path
from daemon.config.settings import LogSettings
from daemon.operating.log import logs
from daemon.system import journald
import structlog
journald.set_up()
logs.set_up(LogSettings(format=sys.argv[1], level="debug"), None)
log = structlog.get_logger("x")
log.debug("a detail"); log.info("news\\nin two lines"); log.warning("careful"); log.error("it failed"); log.critical("the end")
logging.getLogger("library").warning("from a library")
log.info("long " + "x" * 100_000)
sys.stderr.write("half "); sys.stderr.write("a line\\n<6>pretends to be news\\n")
raise RuntimeError("nobody caught this")
"""


def said(script: str, *arguments: str, folder: Path, journal: bool = True) -> list[str]:
    """Lines that a program writes to standard error where that is the journal."""
    file = folder / "stderr"
    with file.open("wb") as stream:
        status = os.fstat(stream.fileno())
        named = f"{status.st_dev}:{status.st_ino}" if journal else "1:1"
        environment = {**os.environ, "JOURNAL_STREAM": named, "NO_COLOR": "1"}
        subprocess.run([sys.executable, "-c", script, *arguments], stderr=stream, env=environment, check=False, timeout=60)
    return file.read_text().splitlines()


@pytest.mark.parametrize("form", ["auto", pytest.param("console", marks=pytest.mark.slow)])
def test_each_line_in_the_journal_has_the_priority_of_its_record(form: str, tmp_path: Path) -> None:
    lines = said(SCRIPT, form, folder=tmp_path)
    assert all(re.match(r"<[0-7]>", line) for line in lines), lines
    assert all(len(line) < 48 * 1024 for line in lines)
    wanted = {
        "a detail": 7,
        "in two lines": 6,
        "careful": 4,
        "it failed": 3,
        "the end": 2,
        "from a library": 4,
        "long x": 6,
        "half a line": 3,
    }
    for text, priority in wanted.items():
        assert [line[:3] for line in lines if text in line] == [f"<{priority}>"], text
    assert {line[:3] for line in lines if "xxxx" in line} == {"<6>"}
    # A traceback that nobody caught is an error, and so is each of its lines; nothing in a text takes the place of the priority.
    assert {line[:3] for line in lines if "Traceback" in line or "nobody caught this" in line} == {"<3>"}
    assert "<3><6>pretends to be news" in lines


def test_elsewhere_nothing_is_put_in_front(tmp_path: Path) -> None:
    lines = said(SCRIPT, "auto", folder=tmp_path, journal=False)
    assert "half a line" in lines
    assert not any(line.startswith("<") and not line.startswith("<6>pretends") for line in lines)


def test_a_refused_configuration_is_an_error_in_each_of_its_lines(make_service: Callable[..., Service], tmp_path: Path) -> None:
    service = make_service()
    service.config.write_text(service.config.read_text().replace("rescan_seconds = 2", "rescan_seconds = -2"))
    script = "import sys; from daemon.cli.main import main; sys.argv = ['ckptd', *sys.argv[1:]]; sys.exit(main())"
    lines = said(script, "run", "--config", str(service.config), folder=tmp_path)
    assert len(lines) > 1
    assert {line[:3] for line in lines} == {"<3>"}
    assert lines[0].startswith("<3>ckptd: Could not use the configuration")


@given(st.lists(st.text(max_size=20), max_size=6))
def test_whatever_is_written_in_whatever_pieces_each_line_has_one_priority(pieces: list[str]) -> None:
    raw = io.StringIO(newline="")
    stream = JournalStream(raw)
    for piece in pieces:
        assert stream.write(piece) == len(piece)
    text = "".join(pieces)
    lines = text.split("\n")
    wanted = [f"<{ERROR}>{line}" for line in lines[:-1]] + ([f"<{ERROR}>{lines[-1]}"] if lines[-1] else [])
    assert [line for line in raw.getvalue().split("\n") if line] == wanted


@given(st.text(max_size=200_000), st.integers(0, 7))
def test_no_entry_is_left_without_a_priority(text: str, priority: int) -> None:
    lines = prefixed(text, priority).split("\n")
    assert all(line.startswith(f"<{priority}>") and len(line.encode(errors="surrogateescape")) < 48 * 1024 for line in lines)
    assert "".join(line.removeprefix(f"<{priority}>") for line in lines) == text.replace("\n", "")
