"""Names that break tables: whatever runs and files are called, what a verb prints has one row for each and no control of the terminal."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from daemon.config.settings import LogSettings
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.text import printable
from daemon.operating.log import logs
from daemon.operating.monitoring.live import IncompleteState, LiveFile, write_live
from daemon.operating.monitoring.status import snapshot
from daemon.system.lock import locked
from tests.detection.helpers import copy_of
from tests.selection.conftest import Desk

MAKING = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""All but the line end, by which this test counts."""
NAMES = st.one_of(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=("Cs",)), min_size=1, max_size=12),
    st.text("ab\n\r\t\x1b[31m]\\:\u202e\u2028\x85\x9b", min_size=1, max_size=12),
)
Shown = Callable[..., list[str]]


@pytest.fixture
def here(desk: Callable[..., Desk]) -> Desk:
    return desk()


@pytest.fixture
def shown(here: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Runs a verb on the desk's state in this process; the lines on both outputs, checked for controls."""
    from daemon.cli.main import main

    config = here.home / "shown.toml"
    roots = ", ".join(json.dumps(str(root)) for root in here.settings.watch.roots)
    config.write_text(
        f"[watch]\nroots = [{roots}]\n[output]\ndirectory = {json.dumps(str(here.settings.output.directory))}\n"
        f"[state]\ndirectory = {json.dumps(str(here.home / 'state'))}\n"
    )

    def run(*words: str) -> list[str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["ckptd", *words, "--config", str(config)])
        main()
        said = capsys.readouterr()
        text = said.out + said.err
        assert not CONTROLS.search(text), (words, text)
        return text.rstrip("\n").split("\n")

    return run


def rows(lines: list[str], first: str) -> int:
    return sum(line.startswith(first) for line in lines)


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=MAKING)
@given(name=NAMES, file=NAMES)
def test_a_run_of_any_name_has_one_row_in_every_table(name: str, file: str, here: Desk, shown: Shown, pico_checkpoint: Path) -> None:
    assume(name not in (".", "..") and len(os.fsencode(name)) < 200 and file not in (".", ".."))
    before = {job.id for job in snapshot(here.home / "state").jobs}
    run = here.root / name
    assume(not run.exists())
    checkpoint = copy_of(pico_checkpoint, run / "checkpoint-4")
    if file not in os.listdir(checkpoint):
        (checkpoint / file).write_text("")
    here.look(seconds=100)
    jobs = snapshot(here.home / "state").jobs
    waiting = LiveFile(pid=1, incomplete=(IncompleteState(str(checkpoint), (f"{file} is not there yet",), 12),),
                       passed_over={str(run): f"{name} is odd"})  # fmt: skip
    write_live(here.home / "state" / "live.json", waiting)
    with locked(here.home / "state" / "lock"):
        status = shown("status")
    listed = shown("list")
    assert rows(status, "incomplete ") == rows(status, "seen, not watched ") == 1
    for table in (status, listed):
        header = next(place for place, line in enumerate(table) if line.startswith("job "))
        assert [line.split()[0] for line in table[header + 1 : header + 1 + len(jobs)]] == [job.id for job in jobs]
    for job in jobs:
        if job.id in before:
            continue
        lines = shown("show", job.id)
        assert rows(lines, "run ") == rows(lines, "checkpoint ") == rows(lines, "target ") == 1
        assert rows(lines, "stage ") == 1
    explained = shown("explain", str(checkpoint))
    table = explained[next(place for place, line in enumerate(explained) if line.startswith("file ")) + 1 :]
    assert len(table) == len(os.listdir(checkpoint))
    assert shown("explain", str(run))[0] == printable(str(run))
    fsck = shown("verify", "--journal")
    assert all(line.startswith(("  ", str(here.home))) for line in fsck)
    assert len(shown("verify", str(run))) == 1


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=MAKING)
@given(value=NAMES, key=st.sampled_from(["run", "path", "event", "level", "timestamp", "job"]), undecodable=st.booleans())
def test_a_log_has_one_line_for_each_record_whatever_is_in_it(value: str, key: str, undecodable: bool, here: Desk, shown: Shown) -> None:
    value += "\udcff" if undecodable else ""
    records = [{"event": "one", "level": "info"}, {"event": "two", "level": "info", key: value}, {"event": "three", "level": "info"}]
    (here.home / "state" / "ckptd.log").write_text("".join(json.dumps(one) + "\n" for one in records))
    lines = shown("logs")
    assert len(lines) == 3 and lines[0].strip().endswith("one") and lines[2].strip().endswith("three")
    assert len(shown("logs", "--json")) == 3


@settings(max_examples=100, deadline=None)
@given(parts=st.tuples(NAMES, NAMES, NAMES, NAMES))
def test_the_sentence_of_a_fault_is_one_line_whatever_is_named_in_it(parts: tuple[str, str, str, str]) -> None:
    operation, cause, remedy, path = parts
    sentence = str(Permanent(FaultCode.OS_ERROR, operation, f"{cause} is odd", remedy, path=path))
    assert not CONTROLS.search(sentence) and "\n" not in sentence
    listed = str(Permanent(FaultCode.CONFIG_INVALID, "use it", "2 things are wrong:\n  one\n  two\n", "change those", path=path))
    assert listed.endswith(": 2 things are wrong:\n  one\n  two\nFix: change those.") and listed.count("\n") == 3


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("Please check the target modules and try again.", "Please check the target modules and try again. Fix:"),
        ("an 'adapter'.. ", "an 'adapter'. Fix:"),
        ("there is none; did you mean 'onnx'?", "there is none; did you mean 'onnx'? Fix:"),
        ("it is not below ..", "it is not below ... Fix:"),
        ("a list:\n  one.\n", "a list:\n  one.\nFix:"),
    ],
)
def test_the_sentence_of_a_fault_has_one_full_stop_after_its_cause(cause: str, said: str) -> None:
    error = Permanent(FaultCode.OS_ERROR, "use it", cause, "save it again.")
    assert str(error) == f"Could not use it: {said} save it again."
    assert error.fault.remedy == "save it again"


@pytest.mark.parametrize("form", ["console", "json"])
def test_the_daemons_own_log_on_a_terminal_shows_controls(form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    try:
        logs.set_up(LogSettings(format=form), None)
        log = structlog.get_logger("ckptd")
        log.info("seen a\x1b[2Jb", run="one\x1b[31m\ntwo", path=Path("/a\x1b]0;b"))
        try:
            raise Permanent(FaultCode.OS_ERROR, "read", "it is odd", "look", path="/c\x1b[2J")
        except Permanent:
            log.exception("failed")
    finally:
        logging.captureWarnings(False)
    assert "\x1b" not in stream.getvalue() and "seen a\\" in stream.getvalue() and "failed" in stream.getvalue()
