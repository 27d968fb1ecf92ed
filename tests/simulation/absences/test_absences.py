"""What goes away and comes back costs no export and mixes none; what stays away ends with a reason that names it.

`CKPTD_SIMULATION_SEED=N` plays that world alone, as `python -m tests.simulation --absences --seed N --trace` does with all that happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from daemon.contract.disk import away
from daemon.contract.faults.errors import Fault
from daemon.running.resumption import Resumption
from daemon.running.sources import outside
from daemon.system.episodes import Away
from daemon.watching import tracker
from handlers.child.outside import Outside
from tests.simulation.absences.play import play
from tests.simulation.test_simulation import SEED, seeds

COUNTED = ("deaths", "waited", "published", "others", "base", "output", "root", "checkpoint", "addition", "toolchain", "prompts", "data")


def test_what_goes_away_and_comes_back_costs_no_export_and_mixes_none() -> None:  # R1.1 R6.1
    counts = Counter[str]()
    assert play(seeds(0, 8), counts) == {}
    assert SEED or min(counts[name] for name in COUNTED) > 0, f"the worlds hold too little to be a test: {counts}"


@pytest.mark.slow
def test_hundreds_of_worlds_break_no_invariant() -> None:  # R1.1 R6.1
    counts = Counter[str]()
    assert play(seeds(300_000, 300), counts) == {}
    assert SEED or counts["failed"] > 5, "nothing stayed away"


def found(words: str, worlds: int = 60) -> bool:
    """Whether one of some worlds finds it."""
    return any(words in line for seed in range(worlds) for said in play([seed]).values() for line in said)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "instead", "words"),
    [
        (Outside, "fault", lambda self, error: None, "at most"),
        (Resumption, "changed", lambda self, job, now: None, "beside each other"),
        (away, "fault_of_whole", lambda *_: None, "as if something were wrong"),
        (outside.Place, "check", lambda self: None, "written into the empty mount point"),
        (Away, "_put_off", lambda self, job, keys: [self.episodes[key].jobs.pop(job, None) for key in keys], "that was told"),
        (tracker, "problem_of_whole", lambda path: None, "was called lost"),
    ],
    ids=["an error is an error", "a base is mixed", "no publication", "any mount point", "told again", "lost with its root"],
)
def test_a_product_that_takes_absence_for_something_else_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, instead: Callable[..., Fault | None], words: str
) -> None:
    monkeypatch.setattr(owner, name, instead)
    assert found(words)
