"""Numbers of JSON that others wrote."""

from __future__ import annotations

import json

import pytest

from daemon.contract.values import number_at


@pytest.mark.parametrize(("text", "found"), [
    ("3", 3.0), ("-0.5", -0.5), ("1" + 400 * "0", None), ("-1" + 400 * "0", None), ("1e400", None), ("NaN", None), ("true", None),
    ('"3"', None), ("null", None), ("[3]", None),
])  # fmt: skip
def test_a_number_is_finite_or_none(text: str, found: float | None) -> None:
    assert number_at({"a": {"b": json.loads(text)}}, "a", "b") == found
