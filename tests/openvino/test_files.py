"""Damages of what lies beside the weights of OpenVINO's folders are caught, each with its reason; what changes nothing for users passes."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from filelock import FileLock

from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from handlers.validate.verdict import unrunnable
from handlers.validate.workers.client import WorkerFailed
from tests.openvino import forms
from tests.openvino.damage_files import ALL, VARIANTS, Case
from tests.sampling import some
from tests.sharing import shared
from tests.validate.bench import Bench
from tests.validate.damage_files import Bank

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]


@pytest.fixture(scope="session")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Bank:
    """A language model with a chat template and settings of generation."""
    return shared(tmp_path_factory, "openvino-files", Bank)


@pytest.fixture(scope="session")
def benches() -> list[Bench]:
    """Its live model, measured once in this process."""
    return []


def sound(bank: Bank, variant: str) -> Path:
    """An artifact of it. Read only."""
    with FileLock(bank.folder / "openvino-lock"):
        bank.sound("onnx")
        lab, place = bank.lab(), bank.folder / "openvino"
        for name in dict.fromkeys(("openvino", variant)):
            if not (place / name).is_dir():
                forms.make(name, lab.made("sound", "onnx") if name == "openvino" else place / "openvino" / "staging", place / name)
        return place / variant / "staging"


def checked(variant: str, folder: Path, bank: Bank, benches: list[Bench], factory: pytest.TempPathFactory) -> ArtifactCheck:
    with FileLock(bank.folder / "openvino-lock"):
        bank.sound("onnx")
        benches += [] if benches else [bank.bench("onnx", factory.mktemp("bench") / "scratch")]
    try:
        return benches[0].check(variant, folder)
    except WorkerFailed as error:
        return unrunnable(variant, error)


@pytest.mark.parametrize("variant", VARIANTS)
def test_sound_files_pass(variant: str, bank: Bank, benches: list[Bench], tmp_path_factory: pytest.TempPathFactory) -> None:
    check = checked(variant, sound(bank, variant), bank, benches, tmp_path_factory)
    assert check.verdict is Verdict.PASSED, check.reasons
    assert any("its runtime knows no suppress_tokens" in note for note in check.figures["notes"])


@pytest.mark.parametrize(("case", "variant"), some(ALL, of=16), ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_damage_is_caught_by_its_words_or_changes_nothing(
    case: Case, variant: str, bank: Bank, benches: list[Bench], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path / "artifact"
    shutil.copytree(sound(bank, variant), folder)  # before anything opens the copy, since OpenVINO maps what it has opened
    case.damage(folder)
    check = checked(variant, folder, bank, benches, tmp_path_factory)
    if case.words is None:
        assert check.verdict is Verdict.PASSED, check.reasons
    else:
        assert check.verdict is Verdict.FAILED and not check.of_precision
        assert re.search(case.words, " | ".join(check.reasons)), check.reasons
