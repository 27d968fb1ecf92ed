"""What streaming does not know goes to PEFT, says so, and still answers like the live adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from daemon.contract.faults.errors import Permanent
from handlers.merge import merge_adapter
from tests import models
from tests.merge import helpers

IDS = torch.arange(2, 34)[None]


@pytest.fixture(scope="module")
def base32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make_base(tmp_path_factory.mktemp("bases") / "fp32", dtype="float32")


def merge(adapter: Path, base: Path, output: Path) -> Any:
    output.mkdir()
    return merge_adapter(adapter, base, output)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"init_lora_weights": "pissa"}, "initializer pissa"), ({"init_lora_weights": "olora"}, "initializer olora")],
    ids=["pissa", "olora"],
)
def test_other_kinds_of_adapter_match_the_live_model_and_name_the_fallback(
    base32: Path, tmp_path: Path, options: dict[str, Any], reason: str
) -> None:  # R1.2 R1.5
    adapter = helpers.make_adapter(base32, tmp_path / "adapter", **options)
    report = merge(adapter, base32, tmp_path / "out")
    assert report.strategy == "peft"
    assert [(one.wanted, one.taken) for one in report.fallbacks] == [("streaming", "peft")]
    assert reason in report.fallbacks[0].reason
    live = helpers.live_logits(base32, adapter, IDS)
    assert (helpers.logits(tmp_path / "out", IDS) - live).abs().max() < 2e-4
    assert (helpers.logits(base32, IDS) - live).abs().max() > 0.01
    assert report.figures.changed_parameters > 0
    assert (tmp_path / "out/config.json").read_bytes() == (base32 / "config.json").read_bytes()
    assert helpers.stored(tmp_path / "out").keys() == helpers.stored(base32).keys()


def test_another_method_than_lora_is_merged_by_peft(base32: Path, tmp_path: Path) -> None:
    from peft import LoHaConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_pretrained(base32, dtype=torch.float32)
    get_peft_model(model, LoHaConfig(r=3, target_modules=["q_proj"], init_weights=False)).save_pretrained(tmp_path / "adapter")
    report = merge(tmp_path / "adapter", base32, tmp_path / "out")
    assert [one.reason for one in report.fallbacks] == ["the method is LOHA, not LoRA"]
    live = helpers.live_logits(base32, tmp_path / "adapter", IDS)
    assert (helpers.logits(tmp_path / "out", IDS) - live).abs().max() < 2e-4


def pickled(base: Path, folder: Path) -> Path:
    """The base with its weights as torch saves them."""
    folder.mkdir()
    for name in ("config.json", "generation_config.json"):
        (folder / name).write_bytes((base / name).read_bytes())
    torch.save(helpers.stored(base), folder / "pytorch_model.bin")
    return folder


def test_what_peft_refuses_to_merge_is_refused_with_its_reason(base32: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(base32, tmp_path / "adapter", lora_bias=True)
    with pytest.raises(Permanent, match=r"can't merge LORA into this base \(.*because the base layer has no bias"):
        merge(adapter, pickled(base32, tmp_path / "base"), tmp_path / "out")


def test_a_pickled_base_is_merged_and_written_as_safetensors(base32: Path, tmp_path: Path) -> None:
    base = pickled(base32, tmp_path / "base")
    adapter = helpers.make_adapter(base32, tmp_path / "adapter")
    report = merge(adapter, base, tmp_path / "out")
    assert "pickled" in report.fallbacks[0].reason
    expected = helpers.reference(base32, adapter, "float32")
    written = helpers.stored(tmp_path / "out")
    assert written.keys() == helpers.stored(base32).keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in written.items())
