"""What the journal answers to the intake: which jobs a checkpoint may be the same as, and what has been given away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.jobs.options import Work
from daemon.journal.jobs import Around, NewJob
from daemon.journal.journal import Journal

WORK = Work.recovered("{}")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal.sqlite3")
    yield made
    made.close()


def reference(name: str, root: str, step: int, digest: str) -> CheckpointRef:
    return CheckpointRef(
        root=root, run=name, step=step, path=f"{root}/{name}/checkpoint-{step}", layout="trainer-adapter", digest=digest, method="LORA",
        metadata={"said": "a" * 64},
    )  # fmt: skip


def enter(journal: Journal, name: str, root: str, step: int, digest: str) -> None:
    made = NewJob(name, reference(name, root, step, digest), WORK, ["merge"], Path("/pins", name), Path("/exports", name), name)
    assert journal.jobs.add(made)


def around(journal: Journal, job: str, root: str, step: int, digest: str) -> Around:
    return journal.jobs.around(job, reference(job, root, step, digest))


def test_the_same_content_counts_with_its_step_or_below_its_root_and_the_id_wherever(journal: Journal) -> None:
    a, b = "a" * 64, "b" * 64
    enter(journal, "here", "/one", 4, a)
    enter(journal, "elsewhere", "/two", 4, a)
    enter(journal, "other-step", "/one", 8, a)
    enter(journal, "other-step-elsewhere", "/two", 8, a)
    enter(journal, "other-content", "/one", 4, b)
    enter(journal, "named", "/three", 12, b)
    assert {job.id for job in around(journal, "named", "/one", 4, a).alike} == {"here", "elsewhere", "other-step", "named"}
    assert around(journal, "none", "/one", 4, "c" * 64).alike == []


def test_the_jobs_of_its_directory_are_those_that_it_was_last_decided_upon_with(journal: Journal) -> None:
    enter(journal, "here", "/one", 4, "a" * 64)
    assert around(journal, "here", "/one", 4, "b" * 64).here == ["here"]
    journal.sightings.remember("/one/here/checkpoint-4", "x", "skipped")
    assert around(journal, "here", "/one", 4, "b" * 64).here == []


def test_what_is_given_away_is_said_of_all_jobs_the_earliest_first(journal: Journal) -> None:
    enter(journal, 'one "ö"', "/one", 4, "a" * 64)
    enter(journal, "later", "/one", 4, "b" * 64)
    journal.jobs.supersede('one "ö"', "superseded by later")
    given = [
        ("one \"ö\"", "one \"ö\"", "/exports/one \"ö\"", "superseded"), ("later", "later", "/exports/later", "pending"),
    ]  # fmt: skip
    for places in (journal.jobs.places(), around(journal, "new", "/two", 1, "c" * 64).places):
        assert [(place.job, place.run, place.target, place.state) for place in places] == given


def test_rows_of_one_configuration_hold_one_text_of_it(journal: Journal) -> None:
    enter(journal, "first", "/one", 4, "a" * 64)
    enter(journal, "second", "/one", 4, "b" * 64)
    first, second = journal.jobs.get("first"), journal.jobs.get("second")
    assert first is not None and second is not None
    assert first.options is second.options and first.work is second.work
