"""No check of the gate can be taken out without that an exhibit slips through: the checks are listed from the gate's code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.jobs.messages import Verdict
from tests.museum.checks import checks, gone
from tests.museum.conftest import Open
from tests.museum.exhibit import collected
from tests.museum.measuring import RESULTS
from tests.museum.test_exhibits import seen

APART = {
    "pictures and sound": "no published bug of a processor is rebuilt",
    "threshold: perplexity": "no published bug makes the texts' own tokens alone less likely",
}
"""Checks that have no exhibit, and why."""


def _measured() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
    return recorded


def test_all_exhibits_were_measured_and_each_is_caught_by_the_check_that_it_names() -> None:
    exhibits, recorded = collected(), _measured()
    assert len(exhibits) >= 30 and list(recorded) == list(exhibits), "run `python -m tests.museum.measuring FOLDER`"
    assert {exhibit.check for exhibit in exhibits.values()} <= checks().keys()
    assert [place for place, exhibit in exhibits.items() if exhibit.check not in recorded[place]["enough"]] == []


@pytest.mark.parametrize("name", checks())
def test_each_check_has_an_exhibit_that_nothing_else_catches(name: str) -> None:
    slipping = [place for place, result in _measured().items() if name in result["slips"]]
    assert bool(slipping) is (name not in APART), slipping or f"nothing in the museum needs {name!r}: add an exhibit"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in checks() if name not in APART])
def test_without_a_check_an_exhibit_slips(name: str, halls: Open, tmp_path: Path) -> None:
    slipping = (place for place, result in _measured().items() if name in result["slips"])
    place = min(slipping, key=lambda place: place.startswith("gguf/"))  # which takes llama.cpp
    mutant = seen(collected()[place], halls, tmp_path / "exhibit")
    assert mutant.judged().verdict is Verdict.FAILED
    assert mutant.judged(without=gone(name)).verdict is not Verdict.FAILED, mutant.judged(without=gone(name)).reasons
