"""Long lists of cases: a part of them for every run of the tests, all of them in the slow set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(cases: Iterable[Any], of: int) -> list[Any]:
    """Every `of`-th case as it is, the others as slow tests. A case that is a tuple gives several arguments;
    one that is a pytest.param keeps its marks."""
    return [case if place % of == 0 else _slow(case) for place, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    if hasattr(case, "marks"):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.slow], id=case.id)
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
