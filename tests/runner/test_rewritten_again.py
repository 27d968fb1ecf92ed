"""A trainer that writes one directory again and again, faster than its exports end: it is said, and no longer once one ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.journal.rewrites import OFTEN, REMEDY
from tests.detection.helpers import change_weights
from tests.runner.conftest import Toy

EVENT = "checkpoint.rewritten"


@pytest.mark.slow
def test_every_third_export_in_a_row_that_gives_way_is_said_with_what_to_do_until_one_ends(  # R6.1
    make_toy: Callable[..., Toy], pico_checkpoint: Path
) -> None:
    service = make_toy()
    service.held.touch()
    checkpoint = service.add(pico_checkpoint)
    service.start()
    for round_ in range(OFTEN + 1):
        service.wait_for(lambda v, taken=round_ + 1: len(v["jobs"]) == taken, 30)
        if round_ < OFTEN:
            assert service.status()["rewritten"] == [], "two in a row may be chance"
            change_weights(checkpoint, 0.01)
    (told,) = service.wait_for(lambda v: v["rewritten"] != [], 10)["rewritten"]
    assert (told["path"], told["count"]) == (str(checkpoint), OFTEN)
    assert service.run_verb("status") == 0
    said = "".join(service.said.split())  # a terminal breaks lines anywhere
    assert f"noexportends{checkpoint}waswrittenagain{OFTEN}timesinarow" in said and REMEDY.replace(" ", "") in said
    change_weights(checkpoint, 0.01)
    service.wait_for(lambda v: v["rewritten"][0]["count"] == OFTEN + 1, 30)
    service.held.unlink()
    (*_, last) = service.wait_ended(OFTEN + 2)
    assert last["state"] == "succeeded"
    assert service.status()["rewritten"] == []
    assert service.stop() == 0
    records = [json.loads(line) for line in (service.state / "ckptd.log").read_text().splitlines()]
    (record,) = [record for record in records if record["event"] == EVENT]
    assert (record["count"], record["path"], record["remedy"], record["level"]) == (OFTEN, str(checkpoint), REMEDY, "warning")
