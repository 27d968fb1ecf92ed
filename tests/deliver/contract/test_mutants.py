"""The checks find each mistake that is planted in the reference target."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deliver.contract.bench import Bench
from tests.deliver.contract.checks import CHECKS
from tests.deliver.sites.reference import SITE

MUTANTS = {
    "shows half": "a_reader_sees_whole_versions_or_none",
    "moves first": "a_reader_sees_whole_versions_or_none",
    "trusts the far end": "a_far_end_that_lies_is_caught",
    "trusts the source": "a_source_that_changed_makes_nothing_visible",
    "sends again what is there": "a_second_delivery_sends_nothing_again",
    "moves always": "an_older_step_is_delivered_and_not_followed",
    "moves without a fence": "what_a_person_moves_at_the_end_stays_moved",
    "tries again what is refused": "what_is_refused_waits_for_a_person",
    "does not wait as long as asked": "a_wish_for_a_pause_is_kept",
    "leaks the secret": "what_is_refused_waits_for_a_person",
    "joins runs": "hostile_names_of_runs_stay_apart",
    "leaves something at a look": "a_look_changes_nothing",
    "lists what is foreign": "the_list_names_what_was_brought_oldest_first",
    "lists the newest first": "the_list_names_what_was_brought_oldest_first",
    "removes what is foreign": "what_is_not_ours_stays",
    "removes what is followed": "the_followed_version_is_not_taken_away",
    "removes shared contents": "contents_that_another_version_needs_stay",
    "removes nothing of the contents": "contents_that_nobody_needs_go",
}
"""The check that must fail, by the mistake."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_planted_mistake_is_seen(mutant: str, tmp_path: Path) -> None:
    check = next(check for check in CHECKS if check.name == MUTANTS[mutant])
    (folder := tmp_path / "far end").mkdir()
    with SITE(folder) as site:
        site.mutant = mutant
        with pytest.raises(AssertionError):
            check.call(Bench(site, tmp_path))
