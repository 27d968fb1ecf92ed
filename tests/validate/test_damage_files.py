"""Damages of the files beside the weights are caught, each with the reason that fits; what changes nothing for users passes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from filelock import FileLock

from daemon.contract.jobs.messages import Verdict
from handlers.validate.files import expected
from tests.sampling import some
from tests.sharing import shared
from tests.validate import damage_files
from tests.validate.bench import Bench
from tests.validate.damage_files import ALL, CAUSAL, COMPRESSED, Bank, Case

KINDS = (*CAUSAL, "classifier", "translator", "sentences")


@pytest.fixture(scope="session")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """The models and their sound artifacts; each is made when it is asked for."""
    return shared(tmp_path_factory, "damage-files", Bank)


@pytest.fixture(scope="session")
def benches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bench]:
    """Kind → its live model, measured once in this process."""
    return {}


def _bench(kind: str, bank: Bank, benches: dict[str, Bench], factory: pytest.TempPathFactory) -> Bench:
    place = "causal" if kind in (*CAUSAL, *COMPRESSED) else kind
    with FileLock(bank.folder / "lock"):
        bank.sound(kind)
        if place not in benches:
            benches[place] = bank.bench(kind, factory.mktemp("bench") / "scratch")
    return benches[place]


@pytest.mark.parametrize("kind", some(KINDS, of=4))
def test_sound_files_pass(kind: str, bank: Bank, benches: dict[str, Bench], tmp_path_factory: pytest.TempPathFactory) -> None:
    bench = _bench(kind, bank, benches, tmp_path_factory)
    check = bank.check(kind, bench, bank.sound(kind)[1])
    assert check.verdict is Verdict.PASSED, check.reasons


@pytest.mark.parametrize(("case", "kind"), some(ALL, of=74), ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_damage_is_caught_by_its_words_or_changes_nothing(
    case: Case, kind: str, bank: Bank, benches: dict[str, Bench], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check = damage_files.checked(bank, _bench(kind, bank, benches, tmp_path_factory), case, kind, tmp_path)
    if case.words is None:
        assert check.verdict is Verdict.PASSED, check.reasons
    else:
        assert check.verdict is Verdict.FAILED and not check.of_precision
        assert re.search(case.words, " | ".join(check.reasons)), check.reasons


def test_without_what_the_reference_wrote_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    assert expected.read(None) is None and expected.read(tmp_path) is None
