"""A whole model beside an adapter: what it says about the merge, and what it can't say."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from daemon.checkpoints.files import fingerprint
from daemon.checkpoints.pinning.pins import make_pin
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import BESIDE
from handlers.merge import stage
from handlers.models import left_out
from tests.merge import helpers


@pytest.fixture
def folder(pico_base: Path, tmp_path: Path) -> Path:
    """An adapter with small deltas, as a trainer saves it."""
    return helpers.make_adapter(pico_base, tmp_path / "run" / "epoch_0", std=0.01)


def put_model_beside(base: Path, folder: Path, dtype: torch.dtype, *, saved_as: torch.dtype | None = None) -> None:
    """PEFT's own merge, made in `dtype`, into the adapter's folder."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=dtype), folder).merge_and_unload()
    model.to(saved_as or dtype).save_pretrained(folder)


def merge(base: Path, folder: Path, tmp_path: Path) -> list[str]:
    """Pin the folder, merge from the pin; gives the warnings."""
    make_pin(folder, tmp_path / "pin", fingerprint(folder))
    context = helpers.context(tmp_path / "merge", tmp_path / "pin", base)
    reference = context.checkpoint.model_copy(update={"path": str(folder)})
    return stage.run(context.model_copy(update={"checkpoint": reference}), helpers.reporter()).warnings


def test_the_pin_s_own_folder_is_not_told_as_left_out(pico_base: Path, folder: Path, tmp_path: Path) -> None:
    put_model_beside(pico_base, folder, torch.float32)
    make_pin(folder, tmp_path / "pin", fingerprint(folder))
    told = left_out.of_checkpoint(tmp_path / "pin", [])
    assert "model.safetensors" in told and f"{BESIDE}/" not in told


def swap_rows_of_queries(folder: Path) -> None:
    """What torchtune makes of the queries of a model that it should have left alone."""

    def permute(table: dict[str, torch.Tensor]) -> None:
        for key in [key for key in table if "q_proj.lora_B" in key]:
            table[key] = table[key].view(-1, 8, 2, table[key].shape[1]).transpose(1, 2).reshape(table[key].shape).contiguous()

    helpers.rewrite(folder / "adapter_model.safetensors", permute)


@pytest.mark.parametrize(
    ("dtype", "saved_as"), [(torch.bfloat16, None), (torch.float32, None), (torch.float32, torch.float16), (torch.float32, torch.bfloat16)]
)
def test_a_merge_that_is_the_model_beside_the_adapter_is_made_without_a_word(
    pico_base: Path, folder: Path, tmp_path: Path, dtype: torch.dtype, saved_as: torch.dtype | None
) -> None:
    put_model_beside(pico_base, folder, dtype, saved_as=saved_as)
    assert merge(pico_base, folder, tmp_path) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_adapter_that_is_not_the_model_beside_it_is_refused_with_the_weight_and_what_to_do(
    pico_base: Path, folder: Path, tmp_path: Path, dtype: torch.dtype
) -> None:
    put_model_beside(pico_base, folder, dtype)
    swap_rows_of_queries(folder)
    with pytest.raises(Permanent) as caught:
        merge(pico_base, folder, tmp_path)
    fault = caught.value.fault
    assert fault.code == FaultCode.MERGED_WEIGHTS_DIFFER
    assert fault.path == str(folder)
    assert "q_proj.weight, by" in fault.cause and "2 of 14 weights" in fault.cause
    assert "into a separate directory" in fault.remedy


def test_a_model_of_another_scale_is_another_model(pico_base: Path, folder: Path, tmp_path: Path) -> None:
    put_model_beside(pico_base, folder, torch.float32)
    helpers.edit_config(folder, lora_alpha=15)
    with pytest.raises(Permanent, match="is not equal to the whole model in the adapter's directory"):
        merge(pico_base, folder, tmp_path)


def test_the_base_itself_beside_its_adapter_says_nothing(pico_base: Path, folder: Path, tmp_path: Path) -> None:
    shutil.copy(pico_base / "model.safetensors", folder)
    assert merge(pico_base, folder, tmp_path) == []


@pytest.mark.parametrize("case", ["removed", "rewritten", "pickled", "cut off", "other names"])
def test_a_model_that_can_t_be_compared_is_said(pico_base: Path, folder: Path, tmp_path: Path, case: str) -> None:
    put_model_beside(pico_base, folder, torch.float32)
    swap_rows_of_queries(folder)
    file = folder / "model.safetensors"
    if case == "pickled":
        file.rename(folder / "pytorch_model.bin")
    elif case == "cut off":
        os.truncate(file, file.stat().st_size - 100)
    elif case == "other names":
        helpers.rewrite(file, lambda table: [table.update({f"net.{key}": table.pop(key)}) for key in list(table)])
    make_pin(folder, tmp_path / "pin", fingerprint(folder))
    if case == "removed":
        file.unlink()
        (tmp_path / "pin" / BESIDE / file.name).unlink()  # as where the pin lies on another file system
    elif case == "rewritten":
        file.write_bytes(file.read_bytes()[:-4] + b"abcd")
    context = helpers.context(tmp_path / "merge", tmp_path / "pin", pico_base)
    reference = context.checkpoint.model_copy(update={"path": str(folder)})
    [warning] = stage.run(context.model_copy(update={"checkpoint": reference}), helpers.reporter()).warnings
    assert "Base + adapter was not compared with it" in warning
    assert {"removed": "removed or rewritten", "rewritten": "removed or rewritten", "pickled": "is a pickle", "cut off": "can't be read",
            "other names": "with the same name"}[case] in warning  # fmt: skip


def test_what_lies_beside_is_compared_after_rotation_and_from_its_own_place_where_the_pin_has_no_link(
    pico_base: Path, folder: Path, tmp_path: Path
) -> None:
    put_model_beside(pico_base, folder, torch.float32)
    swap_rows_of_queries(folder)
    make_pin(folder, tmp_path / "linked", fingerprint(folder))
    make_pin(folder, tmp_path / "elsewhere", fingerprint(folder))
    (tmp_path / "elsewhere" / BESIDE / "model.safetensors").unlink()
    for pin in ("elsewhere", "linked"):
        context = helpers.context(tmp_path / f"merge-{pin}", tmp_path / pin, pico_base)
        reference = context.checkpoint.model_copy(update={"path": str(folder)})
        with pytest.raises(Permanent, match="is not equal to the whole model"):
            stage.run(context.model_copy(update={"checkpoint": reference}), helpers.reporter())
        shutil.rmtree(folder, ignore_errors=True)
