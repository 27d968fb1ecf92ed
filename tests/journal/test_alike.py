"""What the journal answers to the intake: which jobs a checkpoint may be the same as, and what has been given away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.jobs.options import Work
from daemon.journal.jobs import NewJob
from daemon.journal.journal import Journal

WORK = Work.recovered("{}")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal.sqlite3")
    yield made
    made.close()


def enter(journal: Journal, name: str, root: str, step: int, digest: str) -> None:
    reference = CheckpointRef(
        root=root, run=name, step=step, path=f"{root}/{name}/checkpoint-{step}", layout="trainer-adapter", digest=digest, method="LORA",
        metadata={"said": "a" * 64},
    )  # fmt: skip
    assert journal.jobs.add(NewJob(name, reference, WORK, ["merge"], Path("/pins", name), Path("/exports", name), name))


def test_the_same_content_counts_with_its_step_or_below_its_root_and_the_id_wherever(journal: Journal) -> None:
    a, b = "a" * 64, "b" * 64
    enter(journal, "here", "/one", 4, a)
    enter(journal, "elsewhere", "/two", 4, a)
    enter(journal, "other-step", "/one", 8, a)
    enter(journal, "other-step-elsewhere", "/two", 8, a)
    enter(journal, "other-content", "/one", 4, b)
    enter(journal, "named", "/three", 12, b)
    alike = {job.id for job in journal.jobs.alike("named", "/one", 4, a)}
    assert alike == {"here", "elsewhere", "other-step", "named"}
    assert [job.id for job in journal.jobs.alike("none", "/one", 4, "c" * 64)] == []


def test_what_is_given_away_is_said_of_all_jobs_the_earliest_first(journal: Journal) -> None:
    enter(journal, "first", "/one", 4, "a" * 64)
    enter(journal, "second", "/one", 4, "b" * 64)
    journal.jobs.supersede("first", "superseded by second")
    places = journal.jobs.places()
    assert [(place.job, place.run, place.target, place.state) for place in places] == [
        ("first", "first", "/exports/first", "superseded"), ("second", "second", "/exports/second", "pending"),
    ]  # fmt: skip


def test_rows_of_one_configuration_hold_one_text_of_it(journal: Journal) -> None:
    enter(journal, "first", "/one", 4, "a" * 64)
    enter(journal, "second", "/one", 4, "b" * 64)
    first, second = journal.jobs.get("first"), journal.jobs.get("second")
    assert first is not None and second is not None
    assert first.options is second.options and first.work is second.work
