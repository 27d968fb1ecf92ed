"""Every line that the daemon logs has an id of the list, and docs/events.md is the list."""

from __future__ import annotations

from daemon.contract.faults.events import Event
from tests.layers import events


def test_every_call_that_logs_names_its_event() -> None:
    found = list(events.calls())
    assert len(found) > 80
    nameless = [call.where for call in found if call.event not in Event.__members__ and call.event != "event_id"]
    assert nameless == [], "give event_id=Event.…, or the helper that says it once an Event"


def test_every_event_is_logged_and_written_down() -> None:
    named = {name for group in events.meanings().values() for name in group}
    assert named == set(Event.__members__)
    assert set(Event.__members__) - events.uses().keys() == {"LIBRARY"}, "which is for lines that are not the daemon's own"


def test_no_field_takes_the_place_of_one_that_every_line_has() -> None:
    assert [call for call in events.calls() if events.ALWAYS & set(call.fields)] == []


def test_the_page_is_that_of_the_list_and_the_calls() -> None:
    assert events.PAGE.read_text("utf-8") == events.page(), "python -m tests.layers.events"
