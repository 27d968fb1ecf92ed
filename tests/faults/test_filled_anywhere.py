"""A disk that is full at every write there is: the daemon lives on, loses nothing, publishes nothing half, and counts no attempt.

`FILL_SEED=N` draws as an earlier sweep did, `FILL_EVERY=1` fills at every call in the place of one of each place, `FILL_EXPORTS=N` takes a
sample of N exports of each phase, `FILL_PHASES="lasting once"` goes through these alone, `FILL_JSON=FILE` writes down what was tried and
found.
"""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path

import pytest

from tests.faults.fill_places import FillingDisk, Place, Point, combs, ends, one_of_each
from tests.faults.fills import BAD, PHASES, Tally, sweep

SEED = int(os.environ.get("FILL_SEED", random.randrange(10**6)))
MOST = int(os.environ["FILL_EXPORTS"]) if "FILL_EXPORTS" in os.environ else None

EVERY = "FILL_EVERY" in os.environ
WANTED = os.environ.get("FILL_PHASES", " ".join(PHASES)).split()


def report(tally: Tally) -> None:
    """Print what was tried, and write it down where that is wanted."""
    figures = {"seed": SEED, **tally.figures()}
    print(json.dumps(figures, indent=1))
    if file := os.environ.get("FILL_JSON"):
        Path(file).write_text(json.dumps(figures, indent=1) + "\n")


def assert_clean(tally: Tally) -> None:
    report(tally)
    assert tally.problems == [], "\n".join(tally.problems)[:8000]
    assert {name: getattr(tally, name) for name in BAD} == dict.fromkeys(BAD, 0)
    assert tally.refused > 0, "nothing was made to fail"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_full_at_some_writes_it_ends_with_the_same_artifacts(tmp_path: Path, pico_checkpoint: Path) -> None:  # R6.2 R6.5
    print(f"seed {SEED}")
    assert_clean(sweep(tmp_path, pico_checkpoint, SEED, most=1))


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_full_at_every_write_it_ends_with_the_same_artifacts(tmp_path: Path, pico_checkpoint: Path) -> None:  # R6.2 R6.5
    print(f"seed {SEED}")
    tally = sweep(tmp_path, pico_checkpoint, SEED, most=MOST, every=EVERY, phases=WANTED, say=print)
    assert_clean(tally)
    if MOST is None and len(WANTED) == len(PHASES):
        figures = tally.figures()
        assert len(figures["never_filled"]) <= figures["places"] // 50, "a few are there at some moments alone, as a backup's"
        assert {"pin", "journal", "staging", "publication", "report", "manifest", "log", "state"} <= set(figures["places_by_file"])


# The disk of the sweep, without a daemon


def test_the_disk_is_full_at_the_wanted_points_once_or_until_it_is_freed() -> None:
    disk, journal, manifest = (
        FillingDisk(Path("/f")),
        "/f/state/journal.sqlite3",
        "/f/exports/.staging/ab/run-3-4-0f/publish/.MANIFEST.json.7.tmp",
    )
    wanted = [Point(Place("write", "state/journal.sqlite3"), 2), Point(Place("open-to-write", MANIFEST), 1)]
    disk.begin(wanted, errno.EDQUOT)
    assert [disk(("write",), (journal,)) for _ in range(3)] == [None, errno.EDQUOT, None]
    assert disk(("open", "open-to-write"), (manifest,)) == errno.EDQUOT and disk.met == wanted and disk.full is None
    assert disk(("open",), (manifest,)) is None and disk(("write",), ("/f/runs/x",)) is None, "for neither room is needed here"
    disk.begin(wanted, errno.ENOSPC, lasting=True)
    assert [disk(("write",), (journal,)) for _ in range(3)] == [None, errno.ENOSPC, errno.ENOSPC] and disk.full == "state"
    assert disk(("mkdir",), ("/f/exports/run-3",)) is None and disk(("write",), ("/f/state/live.json",)) is None
    disk.free()
    assert disk(("write",), (journal,)) is None
    assert disk(("open", "open-to-write"), (manifest,)) == errno.ENOSPC and disk.met == wanted


MANIFEST = "exports/.staging/INSTANCE/JOB/publish/.MANIFEST.json.TMP"


def test_points_are_told_apart_by_what_they_are_for() -> None:
    names = {
        MANIFEST: "manifest", "state/pins/.incoming/tokenizer.json": "pin", "state/journal.sqlite3-journal": "journal", "state": "state",
        "exports/.staging/INSTANCE/JOB/report.N/report.html": "report", "exports/.staging/INSTANCE/JOB/merge.N": "staging",
        "exports/RUN/.latest.TMP": "publication", "state/jobs/JOB/merge.N/log.txt": "log", "state/jobs/JOB/merge.N": "job folder",
    }  # fmt: skip
    assert {name: Place("write", name).file_kind for name in names} == names
    points = [Point(Place("write", name), nth) for nth in (1, 2, 3) for name in "ab"]
    assert ends(points) == [points[0], points[1], points[4], points[5]]
    assert [point.place.what for point in one_of_each(points, random.Random(1))] == ["a", "b"]
    assert combs(points, 4) == [points[0::2], points[1::2]] and combs([], 4) == []
