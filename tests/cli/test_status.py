"""`ckptd status`: what the running daemon wrote about itself, whichever version of it runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from daemon.cli.tables import print_status
from daemon.journal.overview import JournalCare
from daemon.operating.live import ConfigLoad, IncompleteState, LiveFile, RootState, StageProgress, read_live, write_live
from daemon.operating.status import snapshot
from daemon.system.lock import locked

FULL = LiveFile(
    pid=4711,
    started="then",
    time="now",
    healthy=False,
    configuration=ConfigLoad("then", "limits.jobs: must be at least 1"),
    journal=JournalCare(checked="then", backed_up=None, problem="Could not back the journal up.", rebuilt={"from": "disk", "at": "then"}),
    roots=(RootState("/runs", "inotify", False),),
    incomplete=(IncompleteState("/runs/a/checkpoint-4", ("trainer_state.json is not there yet",), 12),),
    progress={"job": {"merge": StageProgress(1, 0.25, "tensors", 3.5, "local:1:2", 1 << 30)}},
    waiting={"job": "It waits."},
)


def test_what_the_daemon_wrote_is_read_again_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_live(tmp_path / "live.json", FULL)
    assert read_live(tmp_path / "live.json") == FULL
    assert json.loads((tmp_path / "live.json").read_bytes()) == json.loads(json.dumps(asdict(FULL)))
    with locked(tmp_path / "lock"):
        value = snapshot(tmp_path)
    assert (value.daemon.running, value.daemon.pid, value.daemon.journal, value.roots) == (True, 4711, FULL.journal, FULL.roots)
    print_status(value)
    shown = capsys.readouterr().out
    for part in ("pid 4711", "the last reload was refused", "Could not back the journal up", "does not exist yet", "checkpoint-4 for 12 s"):
        assert part in shown.replace("\n", " ")


def test_nothing_of_a_daemon_that_has_ended_is_shown(tmp_path: Path) -> None:
    write_live(tmp_path / "live.json", FULL)
    value = snapshot(tmp_path)
    assert (value.daemon.running, value.daemon.pid, value.roots, value.incomplete) == (False, None, (), ())


def test_the_live_file_of_another_version_is_read_as_far_as_its_names_are_known(tmp_path: Path) -> None:
    (tmp_path / "live.json").write_text(
        '{"pid": 7, "later": {"name": 1}, "roots": [{"path": "/r", "backend": "poll", "exists": true, "more": 2}]}'
    )
    assert read_live(tmp_path / "live.json") == LiveFile(pid=7, roots=(RootState("/r", "poll", True),))


def test_a_live_file_that_can_not_be_read_is_as_good_as_none(tmp_path: Path) -> None:
    for text in ("", "{", "[]", '{"pid": "seven"}'):
        (tmp_path / "live.json").write_text(text)
        assert read_live(tmp_path / "live.json") == LiveFile()
    assert read_live(tmp_path / "gone.json") == LiveFile()
