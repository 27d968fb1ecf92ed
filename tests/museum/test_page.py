"""docs/museum.md is what its module makes of the exhibits and of what was measured."""

from __future__ import annotations

import json

from tests.museum.exhibit import collected
from tests.museum.measuring import RESULTS
from tests.museum.page import PAGE, ROOMS, page


def test_the_page_is_current() -> None:
    exhibits, results = collected(), json.loads(RESULTS.read_text("utf-8"))
    assert {place.partition("/")[0] for place in exhibits} == ROOMS.keys()
    assert PAGE.read_text("utf-8") == page(exhibits, results), "run `python -m tests.museum.page`"


def test_each_exhibit_names_its_bug_once_in_the_room() -> None:
    places = [(exhibit.bug, exhibit.name) for exhibit in collected().values()]
    assert len(set(places)) == len(places)
    assert all(exhibit.bug.count("/") == 1 and exhibit.bug.partition("#")[2].isdigit() for exhibit in collected().values())
