"""The journal on a disk that fails: every transaction is there or it is not, and what was reported is there."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.journal.journal import Journal
from tests.faults import journal_work
from tests.faults.forks import Ending, Forks
from tests.faults.layer import Faults, Rule

KINDS = ("write", "fsync", "unlink", "open")
ERRORS = (errno.EIO, errno.ENOSPC)
SOME = 8
"""Calls of a kind that are tried where not all are: spread evenly, the first and the last among them."""
thoroughly = pytest.mark.parametrize("most", [SOME, pytest.param(10**9, marks=pytest.mark.slow)], ids=["some", "each"])


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    with Faults(kinds=KINDS) as layer:
        yield layer


@pytest.fixture(scope="module")
def forks(faults: Faults) -> Forks:
    return Forks(faults, "tests.faults.journal_work")


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What the journal holds before the first step and after each, undisturbed."""
    file = tmp_path_factory.mktemp("undisturbed") / "journal.sqlite3"
    journal = Journal(file)
    found = [journal_work.state(file)]
    for _, step in journal_work.STEPS:
        step(journal)
        found.append(journal_work.state(file))
    journal.close()
    assert all(one != next_one for one, next_one in itertools.pairwise(found)), "each step can be told from the one before"
    return found


def count(faults: Faults, forks: Forks, folder: Path, kind: str, function: str) -> int:
    """How many calls of a kind the undisturbed work makes."""
    folder.mkdir()
    if function == "life":
        journal_work.prepare(str(folder / "journal.sqlite3"))
    assert forks.call(function, str(folder / "journal.sqlite3"), 1, rules=(Rule(kind, below=folder),)).good
    return faults.seen


def spread(total: int, most: int) -> list[int]:
    """Up to `most` numbers from 1 to `total`."""
    assert total > 0
    return sorted({1 + round(at * (total - 1) / (most - 1)) for at in range(most)}) if total > most else list(range(1, total + 1))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a fresh journal, to be copied."""
    folder = tmp_path_factory.mktemp("prepared")
    journal_work.prepare(str(folder / "journal.sqlite3"))
    return folder


def refused(ending: Ending) -> list[dict[str, str]]:
    return [row for row in ending.told if isinstance(row, dict)]


def done(ending: Ending) -> int:
    return sum(isinstance(row, str) for row in ending.told)


@thoroughly
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_fails_once_costs_at_most_one_try(
    faults: Faults, forks: Forks, states: list[Any], prepared: Path, tmp_path: Path, kind: str, number: int, most: int
) -> None:  # R6.5
    """The transaction is refused or done; tried again, it is done; in the end nothing is missing and nothing there twice."""
    total = count(faults, forks, tmp_path / "count", kind, "life")
    for nth in spread(total, most):
        folder = shutil.copytree(prepared, tmp_path / "now")
        file = folder / "journal.sqlite3"
        ending = forks.call("life", str(file), 2, rules=(Rule(kind, number, nth=nth, below=folder),))
        told = f"{kind} {nth} of {total} failed on {faults.failed}: {ending}"
        if ending.error is not None:  # while it was opened
            assert "CkptdError" in ending.error["kinds"], told
            assert journal_work.state(file) == states[0], told
        else:
            assert ending.good, told
            assert done(ending) == len(journal_work.STEPS), told
            assert len(refused(ending)) <= 1, told
            assert all(row["code"] == "journal-unavailable" for row in refused(ending)), told
            assert journal_work.state(file) == states[-1], told
        shutil.rmtree(folder)


@thoroughly
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", KINDS)
def test_where_a_disk_fails_for_good_each_transaction_is_wholly_there_or_wholly_not(
    faults: Faults, forks: Forks, states: list[Any], prepared: Path, tmp_path: Path, kind: str, number: int, most: int
) -> None:  # R6.5
    total = count(faults, forks, tmp_path / "count", kind, "life")
    for nth in spread(total, most):
        folder = shutil.copytree(prepared, tmp_path / "now")
        file = folder / "journal.sqlite3"
        ending = forks.call("life", str(file), 1, rules=(Rule(kind, number, nth=nth, calls=None, below=folder),))
        told = f"from {kind} {nth} of {total} on: {ending}"
        if ending.error is not None:
            assert "CkptdError" in ending.error["kinds"], told
        reported = done(ending)
        assert journal_work.state(file) in states[reported : reported + 2], told
        Journal(file).close()
        assert journal_work.state(file) in states[reported : reported + 2], f"after it was opened again; {told}"
        shutil.rmtree(folder)


@thoroughly
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", KINDS)
def test_a_journal_that_could_not_be_made_is_made_by_the_next_try(
    faults: Faults, forks: Forks, states: list[Any], tmp_path: Path, kind: str, number: int, most: int
) -> None:
    """Migrations are transactions too; a failing disk is never taken for a damaged journal."""
    total = count(faults, forks, tmp_path / "count", kind, "opening")
    for nth in spread(total, most):
        folder = tmp_path / "now"
        folder.mkdir()
        file = folder / "journal.sqlite3"
        ending = forks.call("opening", str(file), 2, rules=(Rule(kind, number, nth=nth, below=folder),))
        told = f"{kind} {nth} of {total} failed on {faults.failed}: {ending}"
        assert ending.good and done(ending) == 1, told
        assert [row["code"] for row in refused(ending)] in ([], ["journal-unavailable"]), told
        assert journal_work.state(file) == states[0], told
        shutil.rmtree(folder)
