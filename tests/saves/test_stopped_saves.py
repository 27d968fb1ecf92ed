"""Saves of three dozen layouts stopped anywhere: nothing is taken early, nothing whole is missed, and nothing lies there without a line."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from daemon.checkpoints.inspection import inspect, is_run_alone
from daemon.checkpoints.names import run_of
from daemon.watching.scan import Scanner
from tests.saves import layouts, libraries
from tests.saves.saves import REFUSED, TAKEN, Save, Write, play

LAYOUTS = layouts.LAYOUTS | libraries.LAYOUTS
POINTS = 2000
IN_RUN = {"lightning_logs": "lightning_logs/version_0/checkpoints", "adapters": "adapters"}
"""Folder in which a run's directory is its checkpoint → that directory."""


def looked_at(root: Path) -> dict[str, str]:
    """Path below the root → what the daemon makes of it when nothing there changes any more."""
    seen = {}
    for path, passed_over in Scanner().find(root, lambda error: None):
        name = path.relative_to(root / "run").as_posix()
        if passed_over:
            seen[name] = "passed over"
            continue
        inspection = inspect(path)
        seen[name] = "incomplete" if inspection.missing else REFUSED if inspection.refusal else TAKEN
        if is_run_alone(inspection):
            del seen[name]
    return seen


def mistakes(saved: Save, seen: dict[str, str], count: int, part: float = 0.0) -> list[str]:
    """What is wrong with what was seen after `count` operations and the part `part` of the next."""
    wrong = []
    following = saved.operations[count] if part and count < len(saved.operations) else None
    if isinstance(following, Write) and seen.get(following.breaks) == TAKEN:
        wrong.append(f"in the middle of {following.path}: {following.breaks}")
    for path, state in seen.items():
        if state in (TAKEN, REFUSED) and path not in saved.outcome:
            wrong.append(f"{state}, but no checkpoint: {path}")
        elif state == TAKEN and saved.outcome[path] == REFUSED:
            wrong.append(f"taken, though only its own tool reads it: {path}")
        elif state == TAKEN and count < saved.whole_after[path]:
            wrong.append(f"early: {path}")
        elif state == REFUSED and saved.outcome[path] == REFUSED and count + bool(part) < saved.whole_after[path]:
            wrong.append(f"refused early: {path}")
    begun = any(operation.path == saved.weights for operation in saved.operations[:count])
    if begun and not seen:
        wrong.append("silent")
    waits = saved.waits if count < len(saved.operations) else ""
    for path, outcome in saved.outcome.items() if not part else ():
        expected = count >= saved.whole_after[path] and path != waits and not _follows(saved, path, count)
        if expected and seen.get(path) != outcome:
            wrong.append(f"missed: {path}")
    if count == len(saved.operations):
        wrong += [f"silent: {path}" for path in saved.listed if path not in seen]
    return wrong


def _follows(saved: Save, path: str, count: int) -> bool:
    """Whether a later form of the same step stands for this one."""
    return any(other.startswith(f"{path}/") and count >= saved.whole_after[other] for other in saved.outcome)


@pytest.fixture(scope="module")
def saves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Save]:
    """Every layout's save."""
    return {name: make(tmp_path_factory.mktemp("scratch")) for name, make in LAYOUTS.items()}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_save_that_ended_is_taken_or_refused_once_and_belongs_to_its_run_and_step(
    saves: dict[str, Save], tmp_path: Path, name: str
) -> None:
    saved = saves[name]
    play(saved, tmp_path / "run", len(saved.operations))
    seen = looked_at(tmp_path)
    assert mistakes(saved, seen, len(saved.operations)) == [], seen
    for path in saved.outcome:
        if path in seen and name != "MaxText":
            inspection = inspect(tmp_path / "run" / path)
            assert inspection.step in (10, 20) and inspection.ending == (path == ".")
            container = path.split("/")[0] if path.startswith(("weights/", "checkpoints/", "checkpoint/", "v0/")) else ""
            container = IN_RUN.get(path.split("/")[0], container)
            assert run_of(tmp_path / "run" / path) == tmp_path / "run" / container
            if inspection.refusal:
                assert any(word in inspection.refusal.remedy for word in ("OUTPUT", "ONNX_FOLDER", "adapter_config.json"))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_save_that_was_stopped_after_any_operation_is_not_taken_early_and_not_silent(
    saves: dict[str, Save], tmp_path: Path, name: str
) -> None:
    saved = saves[name]
    for count in range(len(saved.operations) + 1):
        root = tmp_path / str(count)
        play(saved, root / "run", count)
        (root / "run").mkdir(parents=True, exist_ok=True)
        assert mistakes(saved, looked_at(root), count) == [], (count, saved.operations[count - 1].path)
        shutil.rmtree(root)


@pytest.mark.slow
def test_of_two_thousand_saves_stopped_anywhere_none_is_taken_early_missed_or_silent(saves: dict[str, Save], tmp_path: Path) -> None:
    random_source, wrong, states = random.Random(20261128), Counter[str](), Counter[str]()
    for point in range(POINTS):
        name = random_source.choice(list(saves))
        saved = saves[name]
        count, part = random_source.randint(0, len(saved.operations)), random_source.choice([0.0, random_source.random(), 0.999])
        root = tmp_path / str(point)
        (root / "run").mkdir(parents=True)
        play(saved, root / "run", count, part)
        seen = looked_at(root)
        states.update(seen.values())
        wrong.update(f"{name}: {mistake}" for mistake in mistakes(saved, seen, count, part))
        shutil.rmtree(root)
    assert not wrong, wrong
    assert min(states[state] for state in (TAKEN, REFUSED, "incomplete")) > 50, states
