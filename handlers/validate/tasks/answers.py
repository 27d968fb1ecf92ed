"""What a task says of a model: a score for each item. How it is read from JSON that others wrote, and kept for later stages.

Called by `command`, `harness` and `stage`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.advice import quoted

MOST_ITEMS = 100_000
MOST_METRICS = 100
LONGEST = 200
"""Characters of an item's id and of a metric's name."""
LARGEST = 1e50
"""Of scores, weights and their inverses: sums of squares of products of them are numbers too."""
Better = Literal["higher", "lower"]


CORRECT = "correct the task in [[validate.tasks]], or what it runs"
RETRY = "correct what the reason names, then run `ckptd queue retry` with the export's id"


class Unanswered(Exception):
    """A task that gave no figure; the text is a clause that says why, `remedy` what to do."""

    def __init__(self, cause: str, remedy: str = CORRECT):
        super().__init__(cause)
        self.remedy = remedy


@dataclass(frozen=True)
class Item:
    """One question, text or conversation that was scored."""

    id: str
    score: float
    weight: float = 1.0


@dataclass(frozen=True)
class Answer:
    """A task's answer for one model."""

    items: tuple[Item, ...]
    """In the order of their ids."""
    metric: str
    better: Better
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """Mean of the scores, by the items' weights."""
        return math.fsum(item.score * item.weight for item in self.items) / math.fsum(item.weight for item in self.items)

    @property
    def rows(self) -> tuple[tuple[float, float], ...]:
        """(sum, weight) of each item, as `daemon.contract.advice.paired` takes them."""
        return tuple((item.score * item.weight, item.weight) for item in self.items)

    @property
    def digest(self) -> str:
        """Of the items' ids."""
        return hashlib.sha256(json.dumps([item.id for item in self.items]).encode()).hexdigest()

    def write(self, path: Path) -> None:
        """Keep it; `read_answer` gives it back."""
        items = [{"id": item.id, "score": item.score, "weight": item.weight} for item in self.items]
        text = json.dumps({"metric": self.metric, "better": self.better, "metrics": dict(self.metrics), "items": items}, allow_nan=False)
        write_atomic(path, text + "\n")


def read_answer(path: Path) -> Answer | None:
    """The answer that was kept; None where none was."""
    try:
        value = json.loads(path.read_bytes())
        return answer_of(value, str(value["metric"]), value["better"])
    except (OSError, ValueError, KeyError, TypeError, Unanswered):
        return None


def answer_in(text: bytes, metric: str, better: Better) -> Answer:
    """The answer that a command printed: all of it, or its last line, is JSON. Raises Unanswered."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise Unanswered("it printed nothing on standard output, where its answer is expected as JSON")
    for part in dict.fromkeys((text, lines[-1])):
        try:
            value = json.loads(part)
        except (ValueError, RecursionError):
            continue
        return answer_of(value, metric, better)
    raise Unanswered(f"the last line that it printed is no JSON: {quoted(lines[-1].decode(errors='replace')[:LONGEST])}")


def answer_of(value: Any, metric: str, better: Better) -> Answer:
    """The answer in a JSON value. Raises Unanswered with the first mistake."""
    if not isinstance(value, dict):
        raise Unanswered('its answer is no JSON object; write {"items": [{"id": …, "score": …}, …]}')
    given = value.get("items")
    if not isinstance(given, list) or not given:
        raise Unanswered('its answer has no items: a list "items" with {"id": …, "score": …} for each is needed')
    if len(given) > MOST_ITEMS:
        raise Unanswered(f"its answer has {len(given):,} items, and at most {MOST_ITEMS:,} are taken")
    items = sorted((_item(item, number) for number, item in enumerate(given, 1)), key=lambda item: item.id)
    for before, item in itertools.pairwise(items):
        if before.id == item.id:
            raise Unanswered(f"its answer has the id {quoted(item.id)} twice")
    if not math.fsum(item.weight for item in items):
        raise Unanswered("all items of its answer have the weight 0")
    return Answer(tuple(items), metric or "score", better, _metrics(value.get("metrics", {})))


def _item(value: Any, number: int) -> Item:
    if not isinstance(value, dict):
        raise Unanswered(f'item {number} of its answer is no object with "id" and "score"')
    name = value.get("id")
    if isinstance(name, bool) or not isinstance(name, str | int) or not 0 < len(str(name)) <= LONGEST:
        raise Unanswered(f"item {number} of its answer has no id: a text or whole number of at most {LONGEST} characters")
    score, weight = _number(value.get("score")), _number(value.get("weight", 1.0))
    if score is None or abs(score) > LARGEST:
        given = json.dumps(value.get("score"))[:LONGEST]
        raise Unanswered(f"the score of item {quoted(str(name))} is no finite number, or beyond {LARGEST:g}: {given}")
    if weight is None or not (weight == 0 or 1 / LARGEST <= weight <= LARGEST):
        raise Unanswered(f"the weight of item {quoted(str(name))} is no number of at least 0, or beyond {LARGEST:g}")
    return Item(str(name), score, weight)


def _metrics(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or len(value) > MOST_METRICS:
        raise Unanswered(f'"metrics" of its answer is no object of at most {MOST_METRICS} numbers')
    metrics = {}
    for name, given in value.items():
        number = _number(given)
        if not 0 < len(name) <= LONGEST or not name.isprintable():
            raise Unanswered(f"the name of the metric {quoted(name[:LONGEST])} is no text of at most {LONGEST} printable characters")
        if number is None:
            raise Unanswered(f"the metric {quoted(name)} of its answer is no finite number")
        metrics[name] = number
    return metrics


def _number(value: Any) -> float | None:
    """A finite number, also true and false; None for all else."""
    if not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
