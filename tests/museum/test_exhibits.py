"""Each published bug, rebuilt on a small artifact, is caught with the reason that fits; what it was made of passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from tests.museum import gate
from tests.museum.checks import checks
from tests.museum.conftest import Open
from tests.museum.exhibit import Exhibit, collected

EXHIBITS = collected()
PLACES = [pytest.param(place, marks=() if exhibit.quick else pytest.mark.slow, id=place) for place, exhibit in EXHIBITS.items()]


def seen(exhibit: Exhibit, halls: Open, scratch: Path) -> gate.Seen:
    """What the gate sees of an exhibit's mutant."""
    hall = halls(exhibit.hall)
    with FileLock(hall.folder / "lock"):
        hall.made("sound", exhibit.variant)
        assert hall.bench.merged.is_dir()
    return gate.seen(hall, exhibit, scratch)


@pytest.mark.parametrize("place", PLACES)
def test_a_published_bug_is_caught_with_its_reason_and_what_it_was_made_of_passes(
    place: str, halls: Open, sound: Callable[[Exhibit], ArtifactCheck], tmp_path: Path
) -> None:
    exhibit = EXHIBITS[place]
    mutant = seen(exhibit, halls, tmp_path / "exhibit")
    check = mutant.judged()
    assert check.verdict is Verdict.FAILED, check
    assert re.search(exhibit.words, " | ".join(check.reasons)), check.reasons
    alone = mutant.judged(without=checks().keys() - {exhibit.check})
    assert alone.verdict is Verdict.FAILED, f"{exhibit.check} alone does not catch it"
    assert sound(exhibit).verdict is Verdict.PASSED, sound(exhibit).reasons
