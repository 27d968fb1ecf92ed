"""Exports by hand in `status`, `list` and `show`: beside the daemon's own job of the same checkpoint, and after they have ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from daemon.cli.main import app
from daemon.cli.views.details import print_job
from daemon.cli.views.status import print_status
from daemon.config.places.paths import LOG_FILE, Paths, foreground_state, prepare
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.journal.attempts import Intent
from daemon.journal.journal import Journal
from daemon.journal.rows import AttemptId
from daemon.operating.monitoring.live import LiveFile, write_live
from daemon.operating.monitoring.meant import find_job
from daemon.operating.monitoring.status import find, rows, snapshot
from daemon.system.lock import locked
from tests.journal.entries import enter, reference

ID = "r-20-cf8aebb1c951"


@pytest.fixture
def by_hand(tmp_path: Path) -> Paths:
    """The state directory of an export by hand, with its job."""
    mine = prepare(foreground_state(tmp_path / "state", Path("/runs/r/checkpoint-20")), tmp_path / "out")
    journal = Journal(mine.journal)
    enter(journal, ID, reference(20))
    journal.jobs.start(ID, None)
    journal.close()
    return mine


@contextmanager
def both_open(tmp_path: Path, by_hand: Paths) -> Iterator[Path]:
    """The daemon, with the job in its queue, while a command makes it and waits for a moment between two stages."""
    state = tmp_path / "state"
    daemon = prepare(state, tmp_path / "out")
    journal = Journal(daemon.journal)
    enter(journal, ID, reference(20))
    enter(journal, "another", reference(30))
    journal.close()
    with locked(daemon.lock), locked(by_hand.lock):
        turn = {"waiting": {ID: "The stage merge waits: x"}, "waiting_codes": {ID: str(FaultCode.TURN)}}
        write_live(by_hand.live, LiveFile(pid=2, **turn))  # type: ignore[arg-type]
        write_live(daemon.live, LiveFile(pid=1, healthy=True, **turn))  # type: ignore[arg-type]
        yield state


def test_an_export_by_hand_is_shown_once_beside_the_daemons_job_that_waits(
    tmp_path: Path, by_hand: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    with both_open(tmp_path, by_hand) as state:
        value = snapshot(state)
        assert [(job.id, job.activity, job.foreground) for job in rows(value)] == [("another", "waiting", False), (ID, "running", True)]
        assert find_job(state, ID, by_hand=True).activity == "running"
        print_status(value)
    said = capsys.readouterr().out
    assert "1 running, 1 waiting" in said and "by hand" in said and "waits for its turn" not in said


def test_show_finds_an_export_by_hand_by_id_step_and_folder(by_hand: Paths, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state"
    (job,) = find(by_hand.state, ID)
    for wanted in (ID, "cf8aebb1", f"{job.run}/20", job.target):
        found = find_job(state, wanted, by_hand=True)
        assert (found.id, found.foreground, found.activity) == (ID, True, "stopped")
    assert "the same command goes on with it" in str(found.waiting_for)
    with pytest.raises(UsageError, match="no daemon has run"):
        find_job(state, ID)
    with pytest.raises(UsageError):
        find_job(state, "r/21", by_hand=True)


def test_show_names_the_command_that_made_a_failed_export_by_hand(
    by_hand: Paths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(by_hand.journal)
    journal.jobs.finish(ID, "failed", None, reason="x")
    journal.close()
    job = find_job(tmp_path / "state", ID, by_hand=True)
    print_job(replace(job, checkpoint_gone=False))
    said = capsys.readouterr().out
    assert "ckptd queue retry" not in said and f"ckptd export {job.checkpoint}" in said


def test_logs_shows_what_an_export_by_hand_and_its_stage_print_where_no_daemon_has_run(
    by_hand: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = AttemptId(ID, "merge", 1)
    folder = by_hand.attempt(ID, "merge", 1)
    folder.mkdir(parents=True)
    (folder / LOG_FILE).write_text("printed by the merge\n")
    by_hand.log.write_text(json.dumps({"event": "e", "message": "of the export", "job": ID, "timestamp": "2026-05-01T12:34:56Z"}) + "\n")
    journal = Journal(by_hand.journal)
    assert journal.attempts.claim(Intent(attempt, folder, tmp_path / "staging", 1))
    journal.close()
    monkeypatch.setenv("CKPTD_STATE__DIRECTORY", str(tmp_path / "state"))
    app(["logs", "--job", "run/20", "--stage", "merge"], standalone_mode=False)
    assert capsys.readouterr().out == "printed by the merge\n"
    for wanted in ("run/20", "cf8aebb1"):
        app(["logs", "--job", wanted], standalone_mode=False)
        assert "of the export" in capsys.readouterr().out
    with pytest.raises(UsageError, match="no daemon has run"):
        app(["logs", "--job", "nope"], standalone_mode=False)
