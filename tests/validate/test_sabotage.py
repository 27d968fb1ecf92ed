"""Artifacts that are wrong in one way each are caught, each with the reason that fits; sound ones of the same models pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from filelock import FileLock

from daemon.contract.jobs.messages import Verdict
from tests.sampling import some
from tests.sharing import shared
from tests.validate import sabotage
from tests.validate.bench import Bench
from tests.validate.sabotage import CASES, VARIANTS, Lab, Sabotage


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The trained models. Artifacts of other sources are added as they are asked for."""
    return shared(tmp_path_factory, "sabotage", sabotage.make)


@pytest.fixture(scope="session")
def bench(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Their live model, measured."""
    with FileLock(lab.folder / "lock"):
        return lab.bench(tmp_path_factory.mktemp("bench") / "scratch")


@pytest.mark.parametrize("variant", VARIANTS)
def test_sound_artifacts_of_the_models_pass(variant: str, lab: Lab, bench: Bench) -> None:
    with FileLock(lab.folder / "lock"):
        folder, source = lab.made("sound", variant), lab.source(variant)
    check = bench.check(variant, folder, source)
    assert check.verdict is Verdict.PASSED, check.reasons
    low, high = check.figures["fine_tuning_interval"]
    assert 0.9 < low <= high < 1.1
    assert not any("grow" in note or "blind" in note for note in check.figures["notes"]), check.figures["notes"]


@pytest.mark.parametrize(("case", "variant"), some(CASES, of=8), ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_sabotage_is_caught_with_its_reason(case: Sabotage, variant: str, lab: Lab, bench: Bench, tmp_path: Path) -> None:
    with FileLock(lab.folder / "lock"):
        lab.made(case.source, variant), lab.source(variant)
    check = sabotage.checked(lab, bench, case, variant, tmp_path)
    assert check.verdict is Verdict.FAILED
    assert re.search(case.words, " | ".join(check.reasons)), check.reasons
