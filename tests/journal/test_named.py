"""A job is meant by a part of its id, by run and step, or by a folder; of several the superseded are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.journal.journal import Journal
from daemon.operating.monitoring.status import ids
from tests.journal.entries import enter, reference


@pytest.fixture
def state(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "journal.sqlite3")
    enter(journal, "run-1-abcdef10", reference(1))
    enter(journal, "run-2-fedcba20", reference(2))
    journal.close()
    return tmp_path


def test_a_job_is_named_by_id_by_run_and_step_or_by_folder(state: Path) -> None:
    run, path = reference(1).run, reference(1).path
    for wanted in ("run-1", "abcdef10", f"{run}/1", f"{run}/step-1", f"{run}/checkpoint-0001", path):
        assert ids(state, wanted) == ["run-1-abcdef10"], wanted
    assert ids(state, "run-") == ["run-1-abcdef10", "run-2-fedcba20"]
    for wanted in (f"{run}/3", f"{run}/final", "other/1", f"{path}/x", "/", ""):
        assert ids(state, wanted) == [], wanted
