"""The trainings of several tools below one root: each checkpoint exported once, under a name of its own, and `latest` by training's order.

`CKPTD_SIMULATION_SEED=N` plays that box alone.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
import structlog

from daemon.publishing import links, publication
from daemon.watching import tracker
from daemon.watching.scan import ScanRules
from daemon.watching.taking import places
from tests.simulation.play import RAM
from tests.simulation.runs import Box
from tests.simulation.test_simulation import seeds


def play(numbers: Iterable[int]) -> dict[int, list[str]]:
    """Seed → what was violated, of those in which something was."""
    found = {}
    silent = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False)
    try:
        for seed in numbers:
            box = Box(seed, Path(tempfile.mkdtemp(prefix="ckptd-runs-", dir=RAM if RAM.is_dir() else None)))
            try:
                if said := box.run():
                    found[seed] = said
            finally:
                box.close()
    finally:
        structlog.configure(**silent)
    return found


def test_the_checkpoints_of_every_tool_are_exported_once_each_in_a_place_of_its_own() -> None:  # R1.1 R6.1
    assert play(seeds(0, 8)) == {}


@pytest.mark.slow
def test_hundreds_of_boxes_break_no_invariant() -> None:  # R1.1 R6.1
    assert play(seeds(200_000, 400)) == {}


def violations(numbers: Iterable[int]) -> str:
    return "\n".join(line for said in play(numbers).values() for line in said)


def test_a_limit_of_the_depth_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker, "rules_of", lambda settings, state: ScanRules(4, settings.models, frozenset({str(state)})))
    assert "was missed" in violations(range(3))


def test_a_final_adapter_that_takes_the_place_of_the_step_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = places.target_of
    monkeypatch.setattr(
        places, "target_of", lambda s, p, reference, run="": plain(s, p, reference.model_copy(update={"ending": False}), run)
    )
    monkeypatch.setattr(places.Places, "_taken", lambda *_: None)
    monkeypatch.setattr(publication, "_refuse_anothers", lambda *_: None)
    assert "checkpoints share" in violations(range(3))


def test_a_latest_that_follows_the_order_of_finishing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_place_in_training", lambda manifest: (-1, False, ""))
    assert "came last" in violations(range(3))
