"""The page about trainers says what the last run of the slow tests told, of every case."""

from __future__ import annotations

import json
import re

from tests.environments import TRAINERS
from tests.trainers.cases import CASES
from tests.trainers.page import END, PAGE, RESULTS, page


def test_the_page_is_what_the_committed_results_give() -> None:
    text = PAGE.read_text("utf-8")
    assert END in text and page(text, json.loads(RESULTS.read_text())) == text, "python -m tests.trainers.page tests/trainers/results.json"


def test_every_case_has_a_result_with_the_outcomes_that_are_expected_now() -> None:
    results = json.loads(RESULTS.read_text())
    assert list(results) == [case.name for case in CASES]
    for case in CASES:
        assert results[case.name]["outcomes"] == {place.path: place.outcome for place in case.places}
        assert (results[case.name]["error"] is None) == (not case.loader)


def test_every_case_has_a_row_with_its_trainer_and_the_pinned_version() -> None:
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in PAGE.read_text().splitlines() if line.startswith("| ")}
    for case in CASES:
        pinned = re.search(rf"^{case.library}==(.+)$", (TRAINERS / f"{case.environment}.txt").read_text(), re.MULTILINE)
        assert f"{case.library} {pinned[1] if pinned else ''}" in rows[case.trainer]
