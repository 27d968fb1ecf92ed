"""What the daemon logs: JSON lines that say which job, run, step, stage and attempt they are about."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from daemon.config.settings import LogSettings
from daemon.contract.faults.events import Event
from daemon.operating.log import logs
from daemon.operating.log.log_line import log_line

BOUND = {"job": "run-4-abc", "run": "team/run", "step": 4, "stage": "onnx", "attempt": 2}
SetUp = Callable[..., Path]


@pytest.fixture
def set_up(tmp_path: Path) -> Iterator[SetUp]:
    """Sends logs to a file; afterwards logging is as it was."""
    root = logging.getLogger()
    before, level, configured = root.handlers[:], root.level, structlog.get_config()
    for handler in before:
        root.removeHandler(handler)

    def function(**options: Any) -> Path:
        file = tmp_path / "ckptd.log"
        logs.set_up(LogSettings(**options), file, stderr=False)
        return file

    yield function
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        handler.close()
    for handler in before:
        root.addHandler(handler)
    root.setLevel(level)
    structlog.configure(**configured)
    structlog.contextvars.clear_contextvars()


def records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_line_carries_what_is_bound_and_says_when_and_how_grave(set_up: SetUp) -> None:  # R6.4
    file = set_up()
    log = structlog.get_logger("runner")
    with structlog.contextvars.bound_contextvars(**BOUND):
        log.warning("the stage failed", event_id=Event.STAGE_FAILED, code="disk-full")
    log.info("afterwards")
    inside, outside = records(file)
    assert {key: inside[key] for key in BOUND} == BOUND
    assert [inside[key] for key in ("event", "message", "level", "logger", "code")] == [
        "stage.failed", "the stage failed", "warning", "runner", "disk-full",
    ]  # fmt: skip
    assert datetime.fromisoformat(inside["timestamp"]).utcoffset() is not None
    assert not set(BOUND) & set(outside)


def test_what_libraries_log_comes_out_in_the_same_form(set_up: SetUp) -> None:
    file = set_up()
    with structlog.contextvars.bound_contextvars(job="j"):
        logging.getLogger("watchdog.observers").warning("an overflow of %d events", 7)
    (record,) = records(file)
    assert (record["event"], record["message"], record["level"], record["logger"], record["job"]) == (
        "library.message", "an overflow of 7 events", "warning", "watchdog.observers", "j",
    )  # fmt: skip


def test_the_level_leaves_out_what_is_below_it(set_up: SetUp) -> None:
    file = set_up(level="warning")
    structlog.get_logger("x").info("not this")
    structlog.get_logger("x").warning("this")
    assert [record["message"] for record in records(file)] == ["this"]


@pytest.mark.parametrize("text", ["two\nlines", "ünï\u2028côde", "\udcff of a path", "\x1b[31mescape\x00"])
def test_one_event_is_one_line_whatever_is_in_it(set_up: SetUp, text: str) -> None:
    file = set_up()
    structlog.get_logger("x").info(text, path=text)
    assert len(file.read_bytes().splitlines()) == 1
    (record,) = records(file)
    assert (record["message"], record["path"]) == (text, text)


def test_a_traceback_is_bounded_and_keeps_its_end(set_up: SetUp) -> None:  # R6.4
    file = set_up()
    error: Exception | None = None
    for number in range(60):
        try:
            raise ValueError(f"error {number}") from error
        except ValueError as caught:
            error = caught
    assert error is not None
    structlog.get_logger("x").error("it failed", exc_info=error)
    (record,) = records(file)
    assert logs.TRACEBACK_LIMIT / 2 < len(record["exception"]) <= logs.TRACEBACK_LIMIT + 1
    assert record["exception"].rstrip().endswith("ValueError: error 59")


def test_the_file_is_rotated_by_size_and_only_so_many_old_ones_are_kept(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 1 << 16)
    monkeypatch.setattr(logs, "OLD_FILES", 2)
    file = set_up()
    log = structlog.get_logger("x")
    for number in range(3000):
        log.info("a line", number=number)
    assert sorted(path.name for path in file.parent.iterdir()) == ["ckptd.log", "ckptd.log.1", "ckptd.log.2"]
    assert all(path.stat().st_size <= 1 << 16 for path in file.parent.iterdir())
    assert all(path.stat().st_mode & 0o077 == 0 for path in file.parent.iterdir()), "its owner's alone"
    assert records(file)[-1]["number"] == 2999


def test_setting_up_again_replaces_what_was_set_up_before(set_up: SetUp) -> None:
    set_up()
    file = set_up()
    structlog.get_logger("x").info("once")
    assert len(records(file)) == 1


def shown(record: dict[str, Any]) -> str:
    """The line as a terminal shows it, without colours."""
    return log_line(record).plain


def test_a_line_for_people_says_when_how_grave_what_and_where() -> None:  # R6.1
    line = shown(
        {
            **BOUND,
            "timestamp": "2026-05-01T12:34:56.789Z",
            "level": "error",
            "event": "stage.failed",
            "message": "it failed",
            "code": "disk-full",
            "none": None,
        }
    )
    assert line == "2026-05-01 12:34:56 UTC error   it failed run=team/run step=4 stage=onnx attempt=2 code=disk-full"


@pytest.mark.parametrize("text", ["[red]not red[/red]", "[/dim]", "C:\\path\\x", "[link=x]", "\\[bold]", "tensor[0]"])
def test_markup_in_a_record_is_shown_as_it_is(text: str) -> None:
    line = shown(
        {
            "timestamp": "2026-05-01T12:34:56Z",
            "level": "info",
            "event": "x.y",
            "message": text,
            "run": text,
            "path": text,
            "exception": text,
        }
    )
    assert line == f"2026-05-01 12:34:56 UTC info    {text} run={text} path={text}\n{text}"


def test_a_record_without_anything_known_is_still_a_line() -> None:
    assert "half a li" in shown({"event": "half a li"})
    assert log_line({}).plain


def test_a_console_gets_readable_lines_and_a_pipe_json(set_up: SetUp, monkeypatch: pytest.MonkeyPatch) -> None:
    for form, is_json in (("console", False), ("json", True), ("auto", True)):
        stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        logs.set_up(LogSettings(format=form), None)
        structlog.get_logger("x").info("hello", run="r")
        line = stream.getvalue()
        assert "hello" in line
        assert line.startswith("{") is is_json


ON_A_FULL_DISK = """
import structlog
from pathlib import Path
from daemon.cli.views.markup import set_up_outputs
from daemon.config.settings import LogSettings
from daemon.operating.log import logs
from daemon.contract.faults.events import Event
set_up_outputs()
logs.set_up(LogSettings(), Path("/dev/full"))
try:
    raise ValueError("a traceback is longer than a line")
except ValueError:
    structlog.get_logger("daemon").exception("failed", event_id=Event.ROUND_FAILED)
structlog.get_logger("daemon").info("stopping", event_id=Event.DAEMON_STOPPING)
print("goes on")
"""


def test_who_logs_goes_on_where_neither_file_nor_stderr_can_be_written() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", ON_A_FULL_DISK], stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "goes on\n")
