"""What can be asked of a merge: several adapters at once, other values of the base, another dtype, other files, a closer check."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from daemon.contract.faults.errors import Permanent
from handlers.merge import MergeOptions, merge_adapter
from tests import models
from tests.merge import helpers

IDS = torch.arange(2, 34)[None]


def merge(adapter: Path, base: Path, output: Path, /, adapters: Any = (), **options: Any) -> Any:
    output.mkdir()
    return merge_adapter(adapter, base, output, *helpers.settings(**options), adapters=adapters)


def config(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def test_several_adapters_are_added_with_their_weights_and_rounded_once(tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = models.make_base(tmp_path / "base", dtype="float32")
    first = helpers.make_adapter(base, tmp_path / "first", seed=3)
    second = helpers.make_adapter(base, tmp_path / "second", seed=4, r=2, target_modules=["q_proj", "down_proj"])
    report = merge(first, base, tmp_path / "out", adapters=[(second, 0.5)])
    assert report.strategy == "streaming"
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), first, adapter_name="first")
    model.load_adapter(second, adapter_name="second")
    model.base_model.set_adapter(["first", "second"])
    for module in model.modules():
        if hasattr(module, "set_scale") and "second" in getattr(module, "scaling", {}):
            module.set_scale("second", 0.5)
    with torch.no_grad():
        live = model.eval()(input_ids=IDS).logits
    assert (helpers.logits(tmp_path / "out", IDS) - live).abs().max() < 2e-4
    assert (helpers.live_logits(base, first, IDS) - live).abs().max() > 0.01


def test_several_adapters_of_which_one_replaces_something_are_refused(pico_base: Path, tmp_path: Path) -> None:
    first = helpers.make_adapter(pico_base, tmp_path / "first")
    second = helpers.make_adapter(pico_base, tmp_path / "second", use_dora=True)
    (tmp_path / "out").mkdir()
    with pytest.raises(Permanent, match="only plain LoRA adapters can be combined"):
        merge_adapter(first, pico_base, tmp_path / "out", adapters=[(second, 1.0)])


def test_resuming_tells_another_second_adapter_from_the_first(pico_base: Path, tmp_path: Path) -> None:
    first = helpers.make_adapter(pico_base, tmp_path / "first")
    second = helpers.make_adapter(pico_base, tmp_path / "second", seed=4)
    merge(first, pico_base, tmp_path / "one", adapters=[(second, 1.0)])
    merge(first, pico_base, tmp_path / "two", adapters=[(second, 0.5)], resume=True)
    assert (tmp_path / "one/model.safetensors").read_bytes() != (tmp_path / "two/model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "two")


@pytest.mark.parametrize("bits", ["load_in_4bit", "load_in_8bit"])
def test_a_base_quantized_by_bitsandbytes_is_unpacked_and_says_so(bits: str, pico_base: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    base = tmp_path / "base"
    load = AutoModelForCausalLM.from_pretrained
    load(pico_base, dtype=torch.bfloat16, quantization_config=BitsAndBytesConfig(**{bits: True})).save_pretrained(base)
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", target_modules=[*helpers.ALL_LINEAR, "embed_tokens"])
    report = merge(adapter, base, tmp_path / "out")
    assert report.strategy == "streaming"
    assert "quantization_config" not in config(tmp_path / "out")
    assert any("dequantized to bfloat16" in warning for warning in report.warnings)
    unpacked = load(base).dequantize()
    expected = PeftModel.from_pretrained(unpacked, adapter).merge_and_unload().state_dict()
    got = {name: tensor for name, tensor in helpers.stored(tmp_path / "out").items() if name != "lm_head.weight"}
    if bits == "load_in_4bit":
        assert all(torch.equal(tensor, expected[name]) for name, tensor in got.items())
    # Values of eight bits are not rounded to bf16 before the sum, as transformers rounds them.
    assert all((tensor.float() - expected[name].float()).abs().max() <= 2**-6 * expected[name].abs().max() for name, tensor in got.items())


@pytest.mark.parametrize("copies", [False, True], ids=["", "copies"])
@pytest.mark.parametrize(("base_dtype", "dtype"), [("bfloat16", "float32"), ("bfloat16", "float16"), ("float32", "bfloat16")])
def test_another_dtype_is_rounded_once_from_the_exact_sum(base_dtype: str, dtype: str, copies: bool, tmp_path: Path) -> None:
    """Also of an embedding, whose delta PEFT rounds on its own, and where the adapter has a copy of it in fp32."""
    base = models.make_base(tmp_path / "base", dtype=base_dtype)
    targets = ["q_proj", "embed_tokens"]
    adapter = helpers.make_adapter(base, tmp_path / "adapter", target_modules=targets, modules_to_save=["norm"], copies=copies)
    merge(adapter, base, tmp_path / "out", dtype=dtype)
    wide = shutil.copytree(base, tmp_path / "wide")
    helpers.rewrite(wide / "model.safetensors", lambda table: table.update({name: value.float() for name, value in table.items()}))
    merge(adapter, wide, tmp_path / "exact")
    expected = helpers.stored(tmp_path / "exact")
    got = helpers.stored(tmp_path / "out")
    assert all(torch.equal(tensor, expected[name].to(getattr(torch, dtype))) for name, tensor in got.items())
    assert config(tmp_path / "out") == {**config(base), "tie_word_embeddings": False, "dtype": dtype}


def test_another_size_of_files_gives_the_same_tensors(pico_base: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", target_modules=["q_proj", "lm_head"])
    merge(adapter, pico_base, tmp_path / "one")
    merge(adapter, pico_base, tmp_path / "many", max_shard_size=1 << 16)
    merge(adapter, tmp_path / "many", tmp_path / "back", max_shard_size=1 << 30)
    names = sorted(path.name for path in (tmp_path / "many").glob("*.safetensors"))
    assert len(names) > 3 and names[0] == f"model-00001-of-{len(names):05}.safetensors"
    one, many = helpers.stored(tmp_path / "one"), helpers.stored(tmp_path / "many")
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)
    assert [path.name for path in (tmp_path / "back").glob("model*")] == ["model.safetensors"]
    assert torch.equal(helpers.logits(tmp_path / "one", IDS), helpers.logits(tmp_path / "many", IDS))


def test_what_only_streaming_can_do_is_refused_for_an_adapter_that_needs_peft(pico_base: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", init_lora_weights="olora")
    (tmp_path / "out").mkdir()
    with pytest.raises(Permanent, match="a merge by PEFT writes the base's own values"):
        merge_adapter(adapter, pico_base, tmp_path / "out", MergeOptions(dtype="float32"))


def test_the_base_as_a_qlora_training_saw_it_can_be_what_is_merged_into(pico_base: Path, tmp_path: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter")
    report = merge(adapter, pico_base, tmp_path / "out", base="dequantized")
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    packed = AutoModelForCausalLM.from_pretrained(pico_base, dtype=torch.bfloat16, quantization_config=settings).dequantize()
    expected = PeftModel.from_pretrained(packed, adapter).merge_and_unload().state_dict()
    got = helpers.stored(tmp_path / "out")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in got.items())
    assert any("quantized to nf4 and back" in warning for warning in report.warnings)
    assert report.figures.changed_modules == 14


@pytest.mark.parametrize("how", ["sample", "full"])
def test_a_written_file_that_does_not_hold_base_and_adapter_is_noticed(
    how: Any, pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter")
    helpers.miscompute(monkeypatch)
    (tmp_path / "out").mkdir()
    with pytest.raises(Permanent, match="is not base") as caught:
        merge_adapter(adapter, pico_base, tmp_path / "out", MergeOptions(verify=how))
    assert caught.value.fault.code == "merge-not-exact"
