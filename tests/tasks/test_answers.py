"""A task's answer is taken as it is meant, and each mistake in it is said in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
