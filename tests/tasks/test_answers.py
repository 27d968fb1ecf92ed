"""A task's answer is taken as it is meant, and each mistake in it is said in one sentence."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from daemon.contract.jobs.options import Task
from handlers.validate.tasks import comparing
from handlers.validate.tasks.answers import Answer, Item, Unanswered, answer_in, read_answer


def test_items_are_put_in_the_order_of_their_ids_and_weighed() -> None:
    answer = answer_in(
        b'{"items": [{"id": "b", "score": true}, {"id": "a", "score": 0.5, "weight": 3}], "metrics": {"x": 2}}', "f", "higher"
    )
    assert answer.items == (Item("a", 0.5, 3.0), Item("b", 1.0))
    assert answer.value == pytest.approx(2.5 / 4)
    assert answer.rows == ((1.5, 3.0), (1.0, 1.0))
    assert answer.metrics == {"x": 2.0}


def test_the_last_line_may_follow_what_libraries_print() -> None:
    assert answer_in(b'loading\n{"progress": 1}\n{"items": [{"id": 7, "score": 1}]}\n', "", "lower").items == (Item("7", 1.0),)
    assert answer_in(b'{\n"items": [\n{"id": 7, "score": 1}]\n}\n', "", "lower").metric == "score"


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("", "printed nothing"),
        ("done", "no JSON"),
        ("[1]", "no JSON object"),
        ('{"metrics": {"accuracy": 0.5}}', "no items"),
        ('{"items": []}', "no items"),
        ('{"items": [3]}', "item 1"),
        ('{"items": [{"score": 1}]}', "has no id"),
        ('{"items": [{"id": true, "score": 1}]}', "has no id"),
        ('{"items": [{"id": "a"}]}', "score of item 'a'"),
        ('{"items": [{"id": "a", "score": NaN}]}', "no finite number"),
        ('{"items": [{"id": "a", "score": 1e999}]}', "no finite number"),
        ('{"items": [{"id": "a", "score": "1"}]}', "no finite number"),
        ('{"items": [{"id": "a", "score": 1, "weight": -1}]}', "weight of item 'a'"),
        ('{"items": [{"id": "a", "score": 1, "weight": 0}]}', "weight 0"),
        ('{"items": [{"id": "a", "score": 1}, {"id": "a", "score": 0}]}', "'a' twice"),
        ('{"items": [{"id": "a", "score": 1}], "metrics": [1]}', "metrics"),
        ('{"items": [{"id": "a", "score": 1}], "metrics": {"x": null}}', "metric 'x'"),
        ('{"items": [{"id": "a", "score": 1}], "metrics": {"": 1}}', "name of the metric"),
        ('{"items": [{"id": "a", "score": 1}], "metrics": {"\\ud800": 1}}', "name of the metric"),
        ('{"items": [{"id": "a", "score": 1}], "metrics": {"\\u001b[31m": 1}}', "name of the metric"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_mistake_is_named(printed: str, says: str) -> None:
    with pytest.raises(Unanswered) as refused:
        answer_in(printed.encode(), "accuracy", "higher")
    text = str(refused.value).replace('"', "'")
    assert says in text
    assert "\n" not in text


def test_an_answer_that_is_kept_is_the_same_and_a_broken_file_is_none(tmp_path: Path) -> None:
    answer = Answer((Item("a", 0.25, 2.0), Item("b", -1.0)), "f1", "lower", {"x": 1.0})
    answer.write(tmp_path / "a.json")
    assert read_answer(tmp_path / "a.json") == answer
    (tmp_path / "b.json").write_text(json.dumps({"metric": "f1", "better": "lower", "items": [{"id": "a"}]}))
    assert read_answer(tmp_path / "b.json") is None
    assert read_answer(tmp_path / "c.json") is None


EXTREMES = (0.0, 1.0, -1.0, 1e308, -1e308, 1e50, 1.1e50, 1e-308, 1e-50, 5e-324)


@pytest.mark.parametrize("count", [1, 3])
def test_numbers_of_any_size_give_finite_figures_or_a_sentence(count: int) -> None:
    """All pairs of a score of the artifact's and the live model's, with all weights; the other items are ordinary."""
    judged = 0
    for mine, theirs, weight in itertools.product(EXTREMES, repeat=3):
        rows = [
            [{"id": 0, "score": score, "weight": weight}, *({"id": n, "score": 0.5} for n in range(1, count))] for score in (mine, theirs)
        ]
        try:
            answers = [answer_in(json.dumps({"items": items}).encode(), "", "higher") for items in rows]
        except Unanswered as refused:
            assert "beyond 1e+50" in str(refused) or "weight 0" in str(refused)
            continue
        judged += 1
        task = Task(name="mine", command=("true",), drop=0.0)
        figures = comparing.compared(task, *answers)
        assert all(map(math.isfinite, (figures.value, figures.live, figures.difference, *(figures.interval or ())))), (mine, theirs, weight)
        assert comparing.judged("onnx", {"mine": figures}, []).verdict in ("passed", "failed")
    assert judged > 100
