"""What two real ranks saved in pieces becomes the very files that save_pretrained writes of the same weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from daemon.checkpoints.inspection import inspect
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from tests.consolidate.helpers import consolidate, pinned
from tests.models import read_json

pytestmark = pytest.mark.slow
"""Two processes load torch and transformers; `test_pieces` has the same in one process."""


@pytest.mark.parametrize("name", ["titan/step-4", "trainer/checkpoint-4", "columns/step-4"])
def test_a_full_model_of_two_ranks_is_the_file_that_save_pretrained_writes(
    saved: Path, pico_base: Path, name: str, tmp_path: Path
) -> None:  # fmt: skip
    found = inspect(saved / name)
    assert (found.complete, found.method, found.step, found.refusal) == (True, "full", 4, None)
    folder, output = consolidate(pinned(saved / name, tmp_path / "pin"), pico_base, tmp_path / "work")
    assert (folder / "model.safetensors").read_bytes() == (saved / "full" / "model.safetensors").read_bytes()
    assert read_json(folder / "config.json")["dtype"] == "float32", "the base is in bfloat16"
    assert (folder / "tokenizer.json").read_bytes() == (pico_base / "tokenizer.json").read_bytes()
    assert [one.removeprefix("model.").removeprefix("_orig_mod.") for one in output.figures["left_out"]] == ["lm_head.weight"], "it is tied"


@pytest.mark.parametrize("name", ["peft/checkpoint-4", "whole/step-4"])
def test_an_adapter_of_two_ranks_is_the_file_that_peft_writes(
    saved: Path, adapter: Path, pico_base: Path, name: str, tmp_path: Path
) -> None:  # fmt: skip
    run = tmp_path / "run"
    shutil.copytree((saved / name).parent, run)
    shutil.copy(adapter / "adapter_config.json", run)
    found = inspect(run / Path(name).name)
    assert (found.complete, found.method, found.base_name) == (True, "LORA", str(pico_base))
    folder, _ = consolidate(pinned(found.path, tmp_path / "pin"), pico_base, tmp_path / "work")
    assert (folder / "adapter_model.safetensors").read_bytes() == (adapter / "adapter_model.safetensors").read_bytes()
    assert (folder / "adapter_config.json").read_bytes() == (adapter / "adapter_config.json").read_bytes()


def test_a_model_without_a_base_goes_by_the_config_of_its_run(saved: Path, pico_base: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(saved / "trainer", run)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(pico_base / name, run)
    folder, _ = consolidate(pinned(run / "checkpoint-4", tmp_path / "pin"), None, tmp_path / "work")
    assert (folder / "model.safetensors").read_bytes() == (saved / "full" / "model.safetensors").read_bytes()
    assert (folder / "config.json").read_bytes() == (pico_base / "config.json").read_bytes()
    assert (folder / "tokenizer.json").is_file()


def test_a_model_of_which_nothing_says_what_it_is_is_refused_with_what_to_do(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(Permanent) as error:
        consolidate(pinned(saved / "titan" / "step-4", tmp_path / "pin"), None, tmp_path / "work")
    assert error.value.fault.code == FaultCode.BASE_NOT_FOUND
    assert "--base" in error.value.fault.remedy


def test_an_adapter_without_its_config_is_refused_until_one_lies_in_the_run(saved: Path, adapter: Path, tmp_path: Path) -> None:
    from daemon.checkpoints.files import fingerprint

    run = tmp_path / "run"
    shutil.copytree(saved / "peft" / "checkpoint-4", run / "checkpoint-4")
    found, before = inspect(run / "checkpoint-4"), fingerprint(run / "checkpoint-4")
    assert found.complete and found.refusal is not None
    assert found.refusal.code == FaultCode.FSDP_SHARDED
    assert "adapter_config.json" in found.refusal.cause and str(run) in found.refusal.remedy
    shutil.copy(adapter / "adapter_config.json", run)
    assert inspect(run / "checkpoint-4").refusal is None
    assert fingerprint(run / "checkpoint-4") != before, "so that the daemon looks again"
    for place in (run, run / "checkpoint-4"):
        (place / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "org/x"}))
        assert inspect(run / "checkpoint-4").base_name == "org/x"
