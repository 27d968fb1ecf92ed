"""Several ckptd over one output: nothing is replaced that another one owns, nothing is lost, and who is refused ends.

`CKPTD_SIMULATION_SEED=N` plays that output alone.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import pytest
import structlog

from daemon.publishing import publication
from daemon.publishing.exchange import ours, owners, swap
from daemon.publishing.exchange.ours import Looked, marks_below
from tests.simulation.owners import Output
from tests.simulation.play import RAM
from tests.simulation.test_simulation import SEED, seeds

COUNTED = ("refused", "deaths", "published", "turns")


def play(numbers: Iterable[int], counts: Counter[str] | None = None) -> dict[int, list[str]]:
    """Seed → what was violated, of those in which something was."""
    found = {}
    silent, patience = structlog.get_config(), owners.PATIENCE_SECONDS
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False)
    owners.PATIENCE_SECONDS = 0.0
    try:
        for seed in numbers:
            world = Output(seed, Path(tempfile.mkdtemp(prefix="ckptd-owners-", dir=RAM if RAM.is_dir() else None)))
            try:
                if said := world.play():
                    found[seed] = said[:5]
                for name in COUNTED if counts is not None else ():
                    counts[name] += getattr(world, name)
            finally:
                world.close()
    finally:
        owners.PATIENCE_SECONDS = patience
        structlog.configure(**silent)
    return found


def test_of_several_daemons_with_one_output_none_replaces_what_another_one_owns_and_nothing_is_lost() -> None:
    counts = Counter[str]()
    assert play(seeds(0, 3), counts) == {}
    assert SEED or min(counts[name] for name in COUNTED) > 3, f"the histories hold too little to be a test: {counts}"


@pytest.mark.slow
def test_many_more_histories_break_no_invariant() -> None:
    assert play(seeds(50_000, 30)) == {}


def found(words: str, first: int = 0, count: int = 6) -> bool:
    """Whether one of a few histories finds it."""
    return any(words in line for seed in range(first, first + count) for said in play([seed]).values() for line in said)


def test_an_output_without_owners_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "owned", lambda *_: nullcontext())
    assert found("had published")


@pytest.mark.slow
def test_a_publication_that_deletes_whatever_was_there_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap, "retire", lambda folder, known, target: swap.remove_any(folder))
    assert found("notes are left")


@pytest.mark.slow
def test_a_publication_that_takes_all_for_its_own_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publication, "look", lambda place, name, records: _all_is_ours(place))
    assert found("notes are left")


def _all_is_ours(place: Path) -> Looked | None:
    found = ours.look(place, place, None)
    return found and Looked(found.inode, marks_below(place))
