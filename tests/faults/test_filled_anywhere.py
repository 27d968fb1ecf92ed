"""A disk that is full at every write there is: the daemon lives on, loses nothing, publishes nothing half, and counts no attempt."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from tests.faults.fills import Tally, sweep

ERRORS = (errno.ENOSPC, errno.EDQUOT)
MOST = int(os.environ["FILL_CASES"]) if "FILL_CASES" in os.environ else None
"""Cases of either kind in the slow set; all without it."""


def assert_clean(tally: Tally) -> None:
    assert tally.problems == [], "\n".join(tally.problems)[:8000]
    assert (tally.lost, tally.twice, tally.half, tally.blocked, tally.counted, tally.ended, tally.unsaid) == (0,) * 7
    assert tally.failed_calls > 0, "nothing was made to fail"


@pytest.mark.slow
def test_full_at_some_writes_it_ends_with_the_same_artifacts(tmp_path: Path, pico_checkpoint: Path) -> None:  # R6.2 R6.5
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    assert_clean(sweep(tmp_path, pico_checkpoint, random.Random(seed).choice(ERRORS), once=1, lasting=1, seed=seed))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_full_at_every_write_it_ends_with_the_same_artifacts(tmp_path: Path, pico_checkpoint: Path, number: int) -> None:  # R6.2 R6.5
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    assert_clean(sweep(tmp_path, pico_checkpoint, number, once=MOST, lasting=MOST, seed=seed))
