"""`select.best_by = "quality"`: the link `best` and `retention.keep_best` follow the artifacts' own figures, through every restart."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runner.conftest import Toy, read_json
from tests.sampling import some

QUALITY = {"2": 8.4, "4": 8.1, "6": 8.9}
"""Perplexity by step: the best is step 4."""
LINK = ["publish.before-link", "publish.link-made", "publish.linked", "publish.link-durable"]


def start(make_toy: Callable[..., Toy], by: str = "quality", text: str = "a prompt", more: str = "") -> Toy:
    toy = make_toy(extra=f'[select]\nbest_by = "{by}"\n{more}')
    toy.environment |= {"TOY_PERPLEXITY": json.dumps(QUALITY), "TOY_TEXT": text}
    return toy


def export(toy: Toy, add: Callable[..., Path], *steps: int) -> Path:
    """The run's folder after its checkpoints were exported, one after the other."""
    before = len(toy.status()["jobs"])
    for number, step in enumerate(steps, before + 1):
        add(toy, step=step)
        toy.wait_ended(number)
    return toy.exports / "run"


def events(toy: Toy, *names: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (toy.state / "ckptd.log").read_text().splitlines()]
    return [line for line in lines if line["event"] in names]


def test_best_follows_the_quality_and_the_log_says_when_it_moves(make_toy: Callable[..., Toy], add: Callable[..., Path]) -> None:
    toy = start(make_toy, more="[retention]\nkeep_best = 1\nkeep_last = 1\n")
    toy.start()
    run = export(toy, add, 2, 4, 6)
    assert toy.run_verb("quality", "run") == 0 and "8.1" in toy.said
    assert toy.run_verb("quality", "ru") == 0 and "8.1" in toy.said, "a part of the name is enough where it means one run"
    assert toy.stop() == 0
    assert (os.readlink(run / "best"), os.readlink(run / "latest")) == ("step-4", "step-6")
    assert sorted(path.name for path in run.glob("step-*")) == ["step-4", "step-6"], "step 2 is neither the best nor the newest"
    moved = events(toy, "best.moved")
    assert [(one["step"], one.get("instead_of"), one["value"], one["metric"]) for one in moved] == [
        (2, None, "8.4", "perplexity"), (4, 2, "8.1", "perplexity"),
    ]  # fmt: skip
    so_far = read_json(run / "step-6" / "report.json")["run_so_far"]
    assert [(one["step"], one["kept"]) for one in so_far["points"]] == [(2, False), (4, True), (6, True)]
    assert (so_far["best_step"], so_far["variant"], so_far["metric"]) == (4, "pytorch", "perplexity")
    assert "step 4" in so_far["sentence"] and so_far["sentence"] in (run / "step-6" / "report.html").read_text().replace("&#39;", "'")


@pytest.mark.slow
@pytest.mark.parametrize("place", some(LINK, 4))
def test_a_daemon_killed_while_best_moves_moves_it_when_it_comes_back(
    make_toy: Callable[..., Toy], add: Callable[..., Path], place: str
) -> None:  # R6.5
    toy = start(make_toy)
    toy.start()
    run = export(toy, add, 6)
    assert toy.stop() == 0
    toy.start(fault=place)
    add(toy, step=2)  # an earlier step, so that `best` is the only link that moves
    assert toy.wait_dead() == -signal.SIGKILL
    assert os.readlink(run / "best") in ("step-6", "step-2"), "readers always find a whole export there"
    toy.start()
    toy.wait_ended(2)
    assert toy.stop() == 0
    assert (os.readlink(run / "best"), os.readlink(run / "latest")) == ("step-2", "step-6")
    assert sorted(path.name for path in run.iterdir() if path.is_symlink()) == ["best", "latest"]


@pytest.mark.slow
def test_new_texts_do_not_move_best_to_an_export_that_nothing_is_compared_with(
    make_toy: Callable[..., Toy], add: Callable[..., Path]
) -> None:
    toy = start(make_toy)
    toy.start()
    run = export(toy, add, 4)
    assert toy.stop() == 0
    toy.environment["TOY_TEXT"] = "another prompt"
    toy.start()
    export(toy, add, 6)
    assert os.readlink(run / "best") == "step-4"
    assert "no other export has figures that can be compared" in events(toy, "best.unknown")[-1]["reason"]
    export(toy, add, 2)
    assert toy.stop() == 0
    assert os.readlink(run / "best") == "step-2", "of the two with the same texts"


def test_without_a_figure_of_the_artifact_itself_best_stays_and_says_so(make_toy: Callable[..., Toy], add: Callable[..., Path]) -> None:
    toy = start(make_toy)
    toy.environment["TOY_PERPLEXITY"] = "{}"
    toy.start()
    run = export(toy, add, 2)
    assert toy.stop() == 0
    assert not os.path.lexists(run / "best")
    assert "says nothing about the checkpoint" in events(toy, "best.unknown")[-1]["reason"]


@pytest.mark.slow
def test_by_default_quality_moves_nothing(make_toy: Callable[..., Toy], add: Callable[..., Path]) -> None:
    toy = start(make_toy, by="trainer")
    toy.start()
    run = export(toy, add, 2, 4)
    assert toy.stop() == 0
    assert not os.path.lexists(run / "best") and events(toy, "best.moved", "best.unknown") == []
    assert read_json(run / "step-4" / "report.json")["run_so_far"]["best_step"] == 4, "the report tells it all the same"
