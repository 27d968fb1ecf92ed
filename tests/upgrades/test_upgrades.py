"""Every state that a release has left is opened by the code of today, which goes on from where that release was killed.

A new release adds its own (`python -m tests.upgrades.make VERSION`); none is taken away. What a resume key says is made of more than our
versions, so that a finished stage may be made again here; an export that was published may not.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.places.paths import StatePaths
from daemon.journal.file.opening import reading
from daemon.journal.overview import measured_by_stage
from daemon.operating.integrity.fsck import examine
from daemon.operating.monitoring.status import find
from daemon.publishing.exchange import ours
from daemon.publishing.lending import is_as_lent, lent_in
from daemon.publishing.verification import verify
from tests.runner.conftest import ALL, Toy
from tests.upgrades.frozen import STATES, thaw

RELEASES = sorted(path.name.removesuffix(".tar.gz") for path in STATES.glob("*.tar.gz"))
BEFORE = {"done": "succeeded", "failed": "failed", "half": "running", "waits": "pending"}


@pytest.fixture(params=RELEASES)
def left(request: pytest.FixtureRequest, tmp_path: Path, make_toy: Callable[..., Toy]) -> Toy:
    """The daemon of today on a state that a release has left."""
    toy = make_toy(variants=ALL)
    shutil.rmtree(toy.folder)
    thaw(STATES / f"{request.param}.tar.gz", toy.folder)
    return toy


def states(toy: Toy) -> dict[str, str]:
    """Run → state of its job."""
    return {job["run"]: job["state"] for job in toy.status()["jobs"]}


def published(toy: Toy) -> dict[str, bytes]:
    """Every export's manifest, in full."""
    return {str(path.relative_to(toy.exports)): path.read_bytes() for path in toy.exports.glob("*/*/MANIFEST.json")}


def test_there_is_a_state_of_the_first_release() -> None:
    assert "1.0.0" in RELEASES


def test_what_a_release_left_can_be_looked_at_before_the_daemon_was_started_on_it(left: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    assert states(left) == BEFORE
    (done,) = find(left.state, "done")
    assert [attempt.outcome for attempt in done.attempts] == ["succeeded"] * 9 and sorted(done.artifacts) == sorted(ALL)
    with reading(StatePaths(left.state).journal) as connection:
        assert "merge" in measured_by_stage(connection)
    export = left.exports / "done" / "step-4"
    assert verify(export).sound
    monkeypatch.setattr(ours, "verify", None)
    assert ours.known_files(export, export, StatePaths(left.state).published), "the state remembers what it published"
    lent = [path.parent for path in left.exports.glob(".kept/*/*/lent.json")]
    assert lent and all(lent_in(entry) and is_as_lent(entry / "files") for entry in lent), "each refers to what was published"
    for words in (("status",), ("fsck",)):
        assert left.run_verb(*words) == 0, left.said


@pytest.mark.slow
def test_the_daemon_of_today_goes_on_from_what_a_release_left(left: Toy) -> None:
    before, backups = published(left), sorted((left.state / "backups").iterdir())
    left.start()
    left.wait_ended(4)
    assert states(left) == {**BEFORE, "half": "succeeded", "waits": "succeeded"}
    assert {name: published(left)[name] for name in before} == before, "nothing is published twice"
    assert {job for job, _, _ in left.begun()} == {job["id"] for job in left.status()["jobs"] if job["run"] in ("half", "waits")}
    assert max(Counter(left.begun()).values()) == 1
    assert left.status()["outbox"]["pending"] >= 2, "what nobody took still waits"
    assert left.status()["journal"] is None, "it was not rebuilt"
    assert left.stop() == 0
    assert left.run_verb("queue", "retry", "failed") == 0, left.said
    left.start()
    left.wait_ended(4)
    assert set(states(left).values()) == {"succeeded"}
    assert left.stop() == 0
    assert examine(left.state, left.exports, quiescent=True, deep=True).findings == ()
    assert set(backups) <= set((left.state / "backups").iterdir())


@pytest.mark.slow
def test_a_journal_that_is_lost_is_rebuilt_from_what_a_release_left_beside_it(left: Toy) -> None:
    StatePaths(left.state).journal.unlink()
    shutil.rmtree(left.state / "backups")
    left.start()
    left.wait_ended(4)
    assert states(left) == {**BEFORE, "half": "succeeded", "waits": "succeeded"}
    assert left.status()["journal"]["from"] == "disk"
    assert left.stop() == 0
