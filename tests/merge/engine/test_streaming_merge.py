"""Merging by streaming gives, bit for bit, what PEFT's merge_and_unload gives."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.merge import merge_adapter
from handlers.merge.adapters.adapter import Adapter
from tests import models
from tests.merge import helpers

IDS = torch.arange(2, 34)[None]


def merged(adapter: Path, base: Path, output: Path, **options: Any) -> Any:
    output.mkdir()
    return merge_adapter(adapter, base, output, *helpers.settings(**options))


def assert_equal_to_peft(base: Path, adapter: Path, output: Path, dtype: str = "bfloat16") -> None:
    expected = helpers.reference(base, adapter, dtype)
    before = helpers.stored(base)
    written = helpers.stored(output)
    assert written.keys() == before.keys()
    different = [name for name, tensor in written.items() if not torch.equal(tensor, expected[name])]
    assert different == []
    assert any(not torch.equal(written[name], before[name]) for name in before)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_all_linear_layers_are_merged_bit_for_bit_in_every_dtype(tmp_path: Path, dtype: str) -> None:  # R1.2
    base = models.make_base(tmp_path / "base", dtype=dtype)
    adapter = helpers.make_adapter(base, tmp_path / "adapter")
    report = merged(adapter, base, tmp_path / "out")
    assert_equal_to_peft(base, adapter, tmp_path / "out", dtype)
    assert (report.strategy, report.figures.changed_modules, report.figures.output_dtype) == ("streaming", 14, dtype)
    assert report.fallbacks == ()


def test_a_last_row_that_would_be_left_to_itself_is_merged_bit_for_bit(tmp_path: Path) -> None:  # R1.2
    # 341 rows of 768 columns fit into a block, and 1,024 are three times that and one: a product of one row is summed in another order.
    base = models.make_base(tmp_path / "base", dtype="float32", hidden_size=768, intermediate_size=1024, num_hidden_layers=1)
    adapter = helpers.make_adapter(base, tmp_path / "adapter", r=16, lora_alpha=32)
    merged(adapter, base, tmp_path / "out")
    assert_equal_to_peft(base, adapter, tmp_path / "out", "float32")


def test_rslora_and_patterns_scale_each_module_as_peft_does(pico_base: Path, tmp_path: Path) -> None:  # R1.2
    adapter = helpers.make_adapter(
        pico_base, tmp_path / "adapter", use_rslora=True, lora_alpha=5,
        rank_pattern={"q_proj": 3, r"layers\.1\.mlp\..*": 7}, alpha_pattern={"layers.0.self_attn.o_proj": 11, "down_proj": 2},
    )  # fmt: skip
    report = merged(adapter, pico_base, tmp_path / "out")
    assert_equal_to_peft(pico_base, adapter, tmp_path / "out")
    assert report.strategy == "streaming"
    assert report.figures.ranks == (3, 4, 7)
    assert 11 / math.sqrt(4) in report.figures.scales


def test_a_sharded_base_keeps_its_shards_and_its_index(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    single = models.make_base(tmp_path / "single")
    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(single, dtype=torch.bfloat16).save_pretrained(base, max_shard_size="60KB")
    adapter = helpers.make_adapter(base, tmp_path / "adapter")
    merged(adapter, base, tmp_path / "out")
    names = sorted(path.name for path in base.glob("model*"))
    assert len(names) > 3
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([*names, "config.json", "generation_config.json"])
    assert (tmp_path / "out/model.safetensors.index.json").read_bytes() == (base / "model.safetensors.index.json").read_bytes()
    assert_equal_to_peft(base, adapter, tmp_path / "out")


def test_conv1d_weights_of_gpt2_are_merged_transposed_square_ones_too(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    base = tmp_path / "base"
    GPT2LMHeadModel(GPT2Config(n_embd=48, n_layer=2, n_head=4, n_positions=64, vocab_size=320)).to(torch.bfloat16).save_pretrained(base)
    adapter = helpers.make_adapter(base, tmp_path / "adapter", target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    report = merged(adapter, base, tmp_path / "out")
    assert report.strategy == "streaming"
    assert_equal_to_peft(base, adapter, tmp_path / "out")


def test_square_conv1d_weights_are_told_from_the_model_where_the_flag_is_wrong(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    base = tmp_path / "base"
    GPT2LMHeadModel(GPT2Config(n_embd=48, n_layer=1, n_head=4, n_positions=64, vocab_size=320)).save_pretrained(base)
    adapter = helpers.make_adapter(base, tmp_path / "adapter", target_modules=["attn.c_proj"], fan_in_fan_out=True)
    helpers.edit_config(adapter, fan_in_fan_out=False)
    assert merged(adapter, base, tmp_path / "out").strategy == "streaming"
    assert_equal_to_peft(base, adapter, tmp_path / "out", "float32")


def test_the_merged_model_answers_like_the_live_adapter(tmp_path: Path) -> None:  # R1.3 R1.4
    base = models.make_base(tmp_path / "base", dtype="float32")
    adapter = helpers.make_adapter(base, tmp_path / "adapter")
    merged(adapter, base, tmp_path / "out")
    live = helpers.live_logits(base, adapter, IDS)
    assert (helpers.logits(tmp_path / "out", IDS) - live).abs().max() < 1e-4
    assert (helpers.logits(base, IDS) - live).abs().max() > 0.1


def test_what_the_adapter_does_not_touch_stays_bit_for_bit(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    before = (helpers.snapshot(pico_base), helpers.snapshot(pico_checkpoint))
    report = merged(pico_checkpoint, pico_base, tmp_path / "out")
    old, new = helpers.stored(pico_base), helpers.stored(tmp_path / "out")
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed == {name for name in old if name.split(".")[-2] in ("q_proj", "v_proj", "o_proj", "down_proj")}
    assert report.figures.changed_modules == len(changed) == 8
    assert report.figures.changed_parameters == sum(old[name].numel() for name in changed)
    assert (tmp_path / "out/config.json").read_bytes() == (pico_base / "config.json").read_bytes()
    assert (helpers.snapshot(pico_base), helpers.snapshot(pico_checkpoint)) == before


def test_a_base_of_mixed_dtypes_keeps_each_tensor_s_dtype(tmp_path: Path) -> None:
    base = models.make_base(tmp_path / "base")

    def widen(table: dict[str, Any]) -> None:
        for name in table:
            if "norm" in name or "layers.0.self_attn.q_proj" in name:
                table[name] = table[name].float()

    helpers.rewrite(base / "model.safetensors", widen)
    adapter = helpers.make_adapter(base, tmp_path / "adapter")
    assert merged(adapter, base, tmp_path / "out").strategy == "streaming"
    old, new = helpers.stored(base), helpers.stored(tmp_path / "out")
    assert {name: tensor.dtype for name, tensor in new.items()} == {name: tensor.dtype for name, tensor in old.items()}
    narrow, wide = helpers.reference(base, adapter, "bfloat16"), helpers.reference(base, adapter, "float32")
    assert all(torch.equal(tensor, (wide if tensor.dtype == torch.float32 else narrow)[name]) for name, tensor in new.items())


def test_tensors_larger_than_a_block_are_merged_block_by_block(pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from handlers.merge.engine import streaming

    monkeypatch.setattr(streaming, "BLOCK", 64 * 7)
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter")
    seen: list[float] = []
    merged(adapter, pico_base, tmp_path / "out", progress=lambda fraction, message: seen.append(fraction))
    assert_equal_to_peft(pico_base, adapter, tmp_path / "out")
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_copies_go_through_memory_where_the_kernel_refuses(pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    def refuse(*_: Any) -> int:
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter")
    merged(adapter, pico_base, tmp_path / "out")
    assert_equal_to_peft(pico_base, adapter, tmp_path / "out")


def test_a_pickled_adapter_is_read_with_weights_only(pico_base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter")
    torch.save(load_file(adapter / "adapter_model.safetensors"), adapter / "adapter_model.bin")
    (adapter / "adapter_model.safetensors").unlink()
    assert merged(adapter, pico_base, tmp_path / "out").strategy == "streaming"
    assert_equal_to_peft(pico_base, adapter, tmp_path / "out")


def test_a_base_saved_without_its_head_s_prefix_is_recognized(tmp_path: Path) -> None:
    base = models.make_base(tmp_path / "base")

    def strip(table: dict[str, Any]) -> None:
        for name in list(table):
            table[name.removeprefix("model.")] = table.pop(name)

    adapter = helpers.make_adapter(base, tmp_path / "adapter")
    expected = helpers.reference(base, adapter, "bfloat16")
    helpers.rewrite(base / "model.safetensors", strip)
    assert merged(adapter, base, tmp_path / "out").strategy == "streaming"
    assert all(torch.equal(tensor, expected[f"model.{name}"]) for name, tensor in helpers.stored(tmp_path / "out").items())


def test_the_base_s_digest_follows_its_content_and_is_remembered(pico_checkpoint: Path, tmp_path: Path) -> None:
    base = models.make_base(tmp_path / "base")
    first = merged(pico_checkpoint, base, tmp_path / "one", cache=tmp_path / "cache").figures.base_digest
    assert len(json.loads((tmp_path / "cache/digests.json").read_text())) == 2
    assert merged(pico_checkpoint, base, tmp_path / "two", cache=tmp_path / "cache").figures.base_digest == first
    helpers.rewrite(base / "model.safetensors", lambda table: table["model.norm.weight"].mul_(2))
    assert merged(pico_checkpoint, base, tmp_path / "three", cache=tmp_path / "cache").figures.base_digest != first


names = st.sampled_from(["q_proj", "self_attn.q_proj", "layers.1.self_attn.q_proj", "mlp.down_proj", "proj"])
"""Without operators, so that no process is asked; `tests/border/test_patterns.py` has the others."""


@settings(max_examples=80, deadline=None)
@given(
    ranks=st.dictionaries(names, st.integers(1, 64), max_size=4),
    alphas=st.dictionaries(names, st.integers(1, 128), max_size=4),
    rank=st.integers(1, 64), alpha=st.integers(1, 128), rslora=st.booleans(),
    module=st.sampled_from(["model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.11.mlp.down_proj"]),
)  # fmt: skip
def test_rank_and_scale_follow_peft_for_any_pattern(
    ranks: dict[str, int], alphas: dict[str, int], rank: int, alpha: int, rslora: bool, module: str
) -> None:
    from peft.utils.other import get_pattern_key

    config = {"r": rank, "lora_alpha": alpha, "use_rslora": rslora, "rank_pattern": ranks, "alpha_pattern": alphas}
    expected_rank = ranks.get(get_pattern_key(ranks.keys(), module), rank)
    expected_alpha = alphas.get(get_pattern_key(alphas.keys(), module), alpha)
    adapter = Adapter(Path("a"), Path("a/adapter_model.safetensors"), config, {}, {}, {})
    assert adapter.rank(module) == expected_rank
    assert adapter.scale(module) == expected_alpha / (math.sqrt(expected_rank) if rslora else expected_rank)


@pytest.mark.parametrize(("dtype", "std", "told"), [
    ("bfloat16", 0.05, False), ("bfloat16", 0.001, True), ("float16", 0.002, False), ("float16", 0.0005, True), ("float32", 0.0005, None),
])  # fmt: skip
def test_changes_that_the_dtype_can_not_hold_are_told_with_their_share(dtype: str, std: float, told: bool | None, tmp_path: Path) -> None:
    base = models.make_base(tmp_path / "base", dtype=dtype)
    adapter = helpers.make_adapter(base, tmp_path / "adapter", std=std)
    report = merged(adapter, base, tmp_path / "out")
    warnings = [text for text in report.warnings if "of what the adapter changes" in text]
    if told is None:
        assert (report.figures.held_share, warnings) == (None, [])
        return
    exact = helpers.reference(base, adapter, "float32")
    old, new = helpers.stored(base), helpers.stored(tmp_path / "out")
    pairs = [(new[name].double() - old[name].double(), exact[name].double() - old[name].double()) for name in old if name in exact]
    share = sum(float((change * delta).sum()) for change, delta in pairs) / sum(float(delta.square().sum()) for _, delta in pairs)
    assert report.figures.held_share == pytest.approx(share, abs=0.01)
    assert (share < 0.75) is told
    start = f"{dtype} holds only about {report.figures.held_share:.0%} of what the adapter changes in the weights"
    assert [text.startswith(start) for text in warnings] == [True] * told
