"""`[select]`: which checkpoints of a run are exported."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.checkpoints.selection import best_step, choose, is_final
from daemon.config.settings import SelectSettings
from tests.selection.conftest import Desks, trainer_state

Add = Callable[..., Path]


def test_all_takes_everything_and_latest_too_when_they_come_one_by_one(desk: Desks, add: Add) -> None:  # R1.1
    for policy in ("all", "latest"):
        here = desk(select={"policy": policy})
        for step in (2, 3):
            add(here, step)
        here.look()
        assert here.steps() == ([2, 3] if policy == "all" else [3])


def test_every_takes_the_steps_that_its_number_divides_and_the_last_one_of_the_training(desk: Desks, add: Add) -> None:  # R1.1
    here = desk(select={"policy": "every", "every": 4})
    for step in (2, 4, 6, 8, 9):
        add(here, step, max_steps=9)
    here.look()
    assert here.steps() == [4, 8, 9]
    assert sorted(record["reason"] for record in here.told("checkpoint skipped")) == [
        "select.every = 4 does not divide step 2", "select.every = 4 does not divide step 6",
    ]  # fmt: skip


def test_without_the_final_rule_the_last_one_is_a_step_like_every_other(desk: Desks, add: Add) -> None:
    here = desk(select={"policy": "every", "every": 4, "final": False})
    add(here, 8, max_steps=9)
    add(here, 9, max_steps=9)
    here.look()
    assert here.steps() == [8]


def test_the_real_trainer_marks_its_last_checkpoint_so_that_the_final_rule_sees_it(pico_run: Path) -> None:
    assert [is_final(step, trainer_state(pico_run / f"checkpoint-{step}")) for step in (2, 4)] == [False, True]


def test_best_takes_what_the_trainer_names_and_the_last_one(desk: Desks, add: Add) -> None:  # R1.1
    here = desk(select={"policy": "best"})
    for step in (2, 3, 4, 5):
        add(here, step, best_model_checkpoint="/where/it/was/trained/run/checkpoint-3", max_steps=5)
    here.look()
    assert here.steps() == [3, 5]


def test_a_checkpoint_that_a_later_one_names_as_the_best_is_taken_although_it_was_skipped(desk: Desks, add: Add) -> None:  # R1.1
    here = desk(select={"policy": "best", "final": False})
    early = add(here, 2)
    here.look()
    assert (here.steps(), here.seen_as(early)) == ([], "skipped")
    add(here, 4, best_model_checkpoint=f"{early}", best_metric=0.25)
    here.look()
    here.look()
    (job,) = here.jobs()
    assert job.checkpoint.path == str(early)
    assert job.checkpoint.metadata["best_model_checkpoint"] == str(early), "so that the link `best` goes there"
    here.look()
    assert len(here.jobs()) == 1


def test_a_best_one_that_is_gone_or_was_taken_is_not_asked_for_again(desk: Desks, add: Add) -> None:
    here = desk(select={"policy": "best", "final": False})
    early = add(here, 2)
    here.look()
    shutil.rmtree(early)
    add(here, 4, best_model_checkpoint=str(early))
    here.look()
    assert here.steps() == []
    assert here.told("deleted") == []


def test_what_names_no_best_selects_none_and_says_what_to_do() -> None:
    choice = choose(4, {"best_metric": 0.5, "log_history": [{"eval_loss": 1.0}]}, SelectSettings(policy="best"))
    assert (choice.wanted, "metric_for_best_model" in choice.reason) == (False, True)


@pytest.mark.parametrize(
    ("state", "step"),
    [
        ({"best_model_checkpoint": "out/checkpoint-40/"}, 40), ({"best_model_checkpoint": r"C:\out\checkpoint-40"}, 40),
        ({"best_model_checkpoint": None, "best_global_step": 40}, 40), ({"best_model_checkpoint": "out/final"}, None),
        ({"best_global_step": True}, None), ({"best_model_checkpoint": ["x"]}, None), ({}, None),
    ],
)  # fmt: skip
def test_the_best_step_is_read_from_what_trainers_write_and_from_nothing_else(state: dict[str, object], step: int | None) -> None:
    assert best_step(state) == step


def test_the_directory_written_at_the_end_of_training_is_final_whatever_its_step() -> None:
    assert choose(7, {}, SelectSettings(policy="every", every=4), ending=True).wanted
    assert not choose(7, {}, SelectSettings(policy="every", every=4, final=False), ending=True).wanted
