"""The page about models says what the last run told, and what it says of refusals is what a job would do now."""

from __future__ import annotations

import json

from daemon.contract.jobs.options import Work
from daemon.contract.jobs.plan import plan
from daemon.running.rules.suitable import unsuited
from tests.families.measuring import RESULTS, VARIANTS
from tests.families.page import END, MEDIA_END, PAGE, page, refused
from tests.families.table import DECODER, FAMILIES, MASKED, PAIR
from tests.media import measuring as media

TABLE, MEDIA = (json.loads(file.read_text()) for file in (RESULTS, media.RESULTS))


def test_the_page_is_what_the_committed_results_give() -> None:
    text = PAGE.read_text("utf-8")
    assert END in text and MEDIA_END in text and page(text, TABLE, MEDIA) == text, "python -m tests.families.page"


def test_there_are_sixty_families_and_more_of_each_kind() -> None:
    assert len(TABLE) >= 60 and {*TABLE} <= {*FAMILIES}
    assert sum(family.endswith("/decoder") for family in TABLE) >= 60
    assert {family.partition("/")[2] for family in TABLE} >= {DECODER, PAIR, MASKED}


def named(outcome: str, family: str) -> list[str]:
    """The variants of a family with this outcome."""
    return [name for name in VARIANTS if TABLE[family]["variants"][name]["outcome"] == outcome]


def test_what_is_refused_by_config_json_alone_is_what_was_refused_and_all_else_was_not() -> None:
    now = {family: refused(result["config"], VARIANTS) for family, result in TABLE.items()}
    assert now == {family: {*named("refused", family)} for family in TABLE}


def test_the_sentence_names_as_possible_exactly_what_was_published_equal() -> None:
    for family in (family for family in TABLE if not named("failed", family)):
        rest = f"of what was asked for, {' and '.join(equal)} can be made" if (equal := named("equal", family)) else ""
        for fault in unsuited(plan(VARIANTS), TABLE[family]["config"], Work.recovered("{}"), VARIANTS).values():
            assert fault.remedy.endswith(rest) if equal else "can be made" not in str(fault.remedy), (family, fault.remedy)
