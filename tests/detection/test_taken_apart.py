"""What follows where a checkpoint was taken apart from the thread that watches, and that comes back to it later."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon.checkpoints.layouts import PATIENCE_SECONDS
from daemon.watching.apart import AtOnce, Pending
from daemon.watching.tracker import Tracker
from tests.detection.bench import Bench, open_bench
from tests.detection.conftest import Stations
from tests.detection.helpers import WRITTEN_LAST, change_weights, copy_of, set_state


class Later(AtOnce):
    """Work that is done when it is asked for, and answered to who asks once more."""

    def __init__(self) -> None:
        self.answers: dict[tuple[Path, Hashable], Any] = {}

    def do(self, root: Path, path: Path, state: Hashable, work: Callable[[int], Any], *, large: bool = False) -> Any:
        """As `Apart.do`."""
        if (path, state) in self.answers:
            return self.answers.pop((path, state))
        self.answers[path, state] = work(0)
        raise Pending


@pytest.fixture
def late(tmp_path: Path) -> Iterator[Bench]:
    """A bench whose tracker is answered later."""
    with open_bench(tmp_path) as made:
        made.tracker = Tracker(made.tracker._settings, made.tracker._intake, lambda: None, apart=Later())
        yield made


def test_one_that_is_written_again_before_its_taking_was_noted_waits_for_the_state(late: Bench, pico_checkpoint: Path) -> None:  # R1.5
    checkpoint = copy_of(pico_checkpoint, late.root / "run" / "checkpoint-4")
    os.utime(checkpoint / WRITTEN_LAST)
    late.tracker.hint(str(checkpoint), 0.0)
    late.tracker.look(checkpoint, 0.0)
    late.tracker.look(checkpoint, 2.0)
    (first,) = late.jobs()
    change_weights(checkpoint, 0.5, state=False)
    for moment in (2.1, 4.2, 4.3, PATIENCE_SECONDS):
        late.tracker.look(checkpoint, moment)
    assert [job.id for job in late.jobs()] == [first.id], "the resumed run is still writing this step again"
    change_weights(checkpoint, 0.25)
    for moment in (40.0, 42.1, 42.2):
        late.tracker.look(checkpoint, moment)
    (second,) = late.jobs()
    assert second.id != first.id


def test_the_journal_is_asked_once_for_a_directory_that_it_does_not_know(
    late: Bench, pico_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, real = list[str](), late.journal.sightings.fingerprint
    monkeypatch.setattr(late.journal.sightings, "fingerprint", lambda path: asked.append(path) or real(path))  # type: ignore[func-returns-value]
    checkpoint = copy_of(pico_checkpoint, late.root / "run" / "checkpoint-4")
    late.tracker.hint(str(checkpoint), 0.0)
    for moment in (0.0, 0.5, 2.0, 2.1):
        late.tracker.look(checkpoint, moment)
    assert len(late.jobs()) == 1 and asked == [str(checkpoint)]
    late.tracker.look(checkpoint, 3.0)
    assert asked == [str(checkpoint)] * 2, "it has been decided upon, so the journal knows it"


def test_one_that_is_the_best_now_is_taken_without_waiting_for_a_scan(station: Stations, pico_checkpoint: Path) -> None:  # R1.1
    here = station(watch={"rescan_seconds": 3600.0}, select={"policy": "best", "final": False})
    early = copy_of(pico_checkpoint, here.root / "run" / "checkpoint-3", step=3)
    here.wait(lambda: here.journal.sightings.fingerprint(str(early)) is not None, "it is skipped")
    newer = copy_of(pico_checkpoint, here.root / "later", step=4, weights=4.0)
    set_state(newer, best_model_checkpoint=str(early), best_metric=0.25)
    newer.rename(here.root / "run" / "checkpoint-4")
    (job,) = here.wait_for_jobs(1)
    assert job.checkpoint.step == 3
