"""Trainers that people use, each in a process of its own beside one running daemon: nothing is missed, and what is exported is right."""

from __future__ import annotations

import itertools
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.cases import CASES, FAILED, REFUSED, TAKEN, Case
from tests.trainers.conftest import Ran, Training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
TOLERANCE = 1e-3
"""Of the root mean square of what the live model answered: the bases are float32, so that nothing but the order of sums differs."""
WEIGHTS = re.compile(r".*\.(safetensors|bin|pt|pth|ckpt|distcp)|lit_model\.pth.*")
STATE = re.compile(r"optimizer.*|scheduler\.pt|scaler\.pt|rng_state.*|training_args\.bin|recipe_state\.pt|data\.pt")
"""Files of these names hold no weights of the model."""


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    """What the page tells; TRAINERS_TEST_RESULTS names a file to which it is added."""
    told: dict[str, Any] = {}
    yield told
    file = os.environ.get("TRAINERS_TEST_RESULTS")
    if file:
        path = Path(file)
        before = json.loads(path.read_text()) if path.is_file() else {}
        names = [case.name for case in CASES]
        merged = {**before, **told}
        path.write_text(json.dumps({name: merged[name] for name in names if name in merged}, indent=1) + "\n")


def jobs_of(ran: Ran, training: Training) -> dict[str, dict[str, Any]]:
    """Checkpoint's place below the training's directory → its job. No place has two."""
    jobs = [job for job in ran.status["jobs"] if Path(job["checkpoint"]).is_relative_to(training.folder)]
    found = {Path(job["checkpoint"]).relative_to(training.folder).as_posix(): job for job in jobs}
    assert len(found) == len(jobs), f"exported twice: {sorted(job['checkpoint'] for job in jobs)}"
    return found


def told_of(ran: Ran, training: Training) -> dict[str, str]:
    """Place below the training's directory → why it is not taken."""
    passed = ran.status["passed_over"].items()
    return {Path(path).relative_to(training.folder).as_posix(): why for path, why in passed if Path(path).is_relative_to(training.folder)}


def stray_weights(training: Training, places: set[str]) -> list[str]:
    """Files that may hold weights and lie in none of the places."""
    files = [path.relative_to(training.folder) for path in training.folder.rglob("*") if path.is_file()]
    return [
        str(file) for file in files
        if WEIGHTS.fullmatch(file.name) and not STATE.fullmatch(file.name) and not any(str(above) in places for above in file.parents[:-1])
        and not (len(file.parts) == 1 and "." in places)
    ]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_checkpoint_of_a_trainer_is_exported_once_or_told_of_and_its_own_loader_reads_what_the_live_model_knew(
    ran: Ran, case: Case, results: dict[str, Any], tmp_path: Path
) -> None:
    training = ran.trainings[case.name]
    assert not training.failed, training.failed
    assert set(training.saved) == {place.path for place in case.places}, "the table tells what the trainer writes"
    assert stray_weights(training, {*(place.path for place in case.places), *case.beside}) == [], (
        "weights lie where the table knows of nothing"
    )

    jobs, told = jobs_of(ran, training), told_of(ran, training)
    taken = {place.path: place for place in case.places if place.outcome == TAKEN}
    refused = {place.path: place for place in case.places if place.outcome == REFUSED}
    failed = {place.path: place for place in case.places if place.outcome == FAILED}
    wanted = {**dict.fromkeys(taken, "succeeded"), **dict.fromkeys(failed, "failed")}
    assert {place: job["state"] for place, job in jobs.items()} == wanted, [(job["error"], job["artifacts"]) for job in jobs.values()]
    assert all(place.reason in jobs[path]["error"] for path, place in failed.items()), [job["error"] for job in jobs.values()]
    assert not any(list(Path(jobs[path]["target"]).rglob("*.safetensors")) for path in failed), "nothing wrong is published"
    exports = {place: Path(jobs[place]["target"]).relative_to(ran.service.exports).as_posix() for place in taken}
    assert exports == {place.path: place.export for place in taken.values()}
    assert set(told) == set(refused), told
    assert all(place.reason in told[place.path] for place in refused.values()), told
    assert [row for row in ran.status["incomplete"] if Path(row["path"]).is_relative_to(training.folder)] == []
    assert [row for row in ran.status["lost"] if Path(row["path"]).is_relative_to(training.folder)] == []

    error = None
    if case.loader:
        pairs = [(ran.service.exports / exports[place] / "pytorch", training.records / training.saved[place]["answer"]) for place in taken]
        answer = tmp_path / "answer.json"
        words = json.dumps([(str(folder), str(file)) for folder, file in pairs])
        done = ran.environments.run(case.environment, "tests.trainers.scripts.load", case.loader, words, answer)
        assert done.returncode == 0, done.stderr[-3000:]
        errors = json.loads(answer.read_text())
        assert max(errors) < TOLERANCE, dict(zip(taken, errors, strict=True))
        error = max(errors)
    results[case.name] = {"versions": training.versions, "error": error, "outcomes": {place.path: place.outcome for place in case.places},
                          "warnings": sorted({warning for job in jobs.values() for warning in job["warnings"]})}  # fmt: skip


def test_the_trainings_leave_answers_that_tell_their_checkpoints_apart(ran: Ran) -> None:
    import numpy as np

    for training in ran.trainings.values():
        taken = [training.saved[place.path] for place in training.case.places if place.outcome == TAKEN and not training.failed]
        answers = [np.load(training.records / row["answer"]) for row in taken if not row["same"]]
        for first, second in itertools.pairwise(answers):
            assert np.abs(first - second).max() > 20 * TOLERANCE * np.sqrt(np.mean(first**2)), training.case.name
