"""Matches the expressions of an adapter's configuration, in a process of its own (`handlers.child.bounded`).

Run by `handlers.merge.adapters.patterns`. A question is a list of parts, each [[[place, expression], …], whole, names, limits]: `whole`
says whether an expression must match all of a name, `limits` for each name the place from which on no expression is asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from handlers.child.bounded import serve

Part = tuple[list[tuple[int, str]], bool, list[str], list[int]]
LONGEST = 200
"""Characters of what the library says about an expression."""


class _Refused(Exception):
    """Place of an expression that is none, and why."""


def answer(question: Sequence[Part]) -> dict[str, Any]:
    """{"answers": for each part position of a name → place of the first expression that matches it}, or {"wrong": place of an expression
    that is none, "why": what the library says, "question": position of its part}."""
    answers = list[dict[int, int]]()
    try:
        for part in question:
            answers.append(_matched(*part))
    except _Refused as error:
        place, why = error.args
        return {"wrong": place, "why": why, "question": len(answers)}
    return {"answers": answers}


def _matched(expressions: list[tuple[int, str]], whole: bool, names: list[str], limits: list[int]) -> dict[int, int]:
    """An expression is only compiled when there is a name left to match, as PEFT does."""
    matched, left = dict[int, int](), list(range(len(names)))
    for place, expression in expressions:
        asked = [number for number in left if place < limits[number]]
        if not asked:
            continue
        try:
            compiled = re.compile(expression)
            match = compiled.fullmatch if whole else compiled.match
            matched.update((number, place) for number in asked if match(names[number]))
        except (re.error, OverflowError, RecursionError, ValueError) as error:
            raise _Refused(place, str(error)[:LONGEST]) from None
        left = [number for number in left if number not in matched]
    return matched


if __name__ == "__main__":
    serve(answer)
