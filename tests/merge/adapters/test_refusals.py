"""What can't be merged is refused in one sentence with exact figures, and nothing is half done."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from daemon.contract.faults.errors import Permanent
from handlers.merge import merge_adapter
from tests import models
from tests.merge import helpers

Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture()
def adapter(pico_base: Path, tmp_path: Path) -> Path:
    return helpers.make_adapter(pico_base, tmp_path / "adapter")


@pytest.fixture()
def output(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def refusal(adapter: Path, base: Path, output: Path) -> tuple[str, str]:
    """Code and sentence of the error; no thread of the merge may be left."""
    with pytest.raises(Permanent) as caught:
        merge_adapter(adapter, base, output)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("merge-")]
    return caught.value.fault.code, caught.value.fault.sentence()


def rename_a_module(table: dict[str, Any]) -> None:
    for side in "AB":
        table[f"{Q_PROJ.replace('.0.', '.7.')}.lora_{side}.weight"] = table.pop(f"{Q_PROJ}.lora_{side}.weight")


def drop_a_module(table: dict[str, Any]) -> None:
    for key in [key for key in table if key.startswith(Q_PROJ)]:
        del table[key]


def add_a_module(table: dict[str, Any]) -> None:
    table["base_model.model.model.layers.0.self_attn.x_proj.lora_A.weight"] = torch.zeros(4, 64)


def widen_the_norm(table: dict[str, Any]) -> None:
    table["base_model.model.model.norm.weight"] = torch.ones(65)


UNTOUCHED = ("base-weight-unchanged", "layers.0.self_attn.q_proj")
MOVED = ("adapter-not-mergeable", "moved the base's weights")
OLORA = {"init_lora_weights": "olora"}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], Callable[[dict[str, Any]], Any] | None, tuple[str, str]]] = {
    "a foreign key for PEFT": (OLORA, {}, add_a_module, ("adapter-key-unmatched", "model.layers.0.self_attn.x_proj")),
    "a target without weights": ({}, {}, drop_a_module, UNTOUCHED),
    "a target without weights for PEFT": (OLORA, {}, drop_a_module, UNTOUCHED),
    "half a pair": (
        {}, {}, lambda table: table.pop(f"{Q_PROJ}.lora_B.weight"),
        ("half-a-pair", "model.layers.0.self_attn.q_proj has lora_A but not its counterpart"),
    ),
    "another rank": ({}, {"r": 8}, None, ("rank-mismatch", "has rank 4 (lora_A) and 4 (lora_B) in the weights, but 8 in adapter_config")),
    "aLoRA": ({}, {"alora_invocation_tokens": [1, 2]}, None, ("adapter-not-mergeable", "aLoRA")),
    "Arrow": ({}, {"arrow_config": {"top_k": 3}}, None, ("adapter-not-mergeable", "Arrow")),
    "QALoRA": ({}, {"use_qalora": True}, None, ("adapter-not-mergeable", "QALoRA")),
    "replication": ({}, {"layer_replication": [[0, 2], [1, 2]]}, None, ("adapter-not-mergeable", "replication")),
    "a bias for a layer without": ({"lora_bias": True}, {}, None, ("adapter-not-mergeable", "the base's layer has no bias to add it to")),
    "LoRA-GA": ({}, {"init_lora_weights": "lora_ga"}, None, MOVED),
    "CorDA": ({}, {"init_lora_weights": "corda"}, None, MOVED),
    "no saved module": ({}, {"modules_to_save": ["norm"]}, None, ("base-weight-unchanged", "modules_to_save names norm")),
    "no trained tokens": (
        {}, {"trainable_token_indices": [1, 2]}, None, ("base-weight-unchanged", "trainable_token_indices names tokens"),
    ),
    "no parameters": (
        {}, {"target_parameters": ["mlp.experts.down_proj"]}, None,
        ("base-weight-unchanged", "target_parameters names mlp.experts.down_proj"),
    ),
    "no parameters of a layer that the base has": (
        {}, {"target_parameters": ["self_attn.q_norm.weight"]}, None,
        ("base-weight-unchanged", "target_parameters names self_attn.q_norm.weight"),
    ),
    "a magnitude without DoRA": ({"use_dora": True}, {"use_dora": False}, None, ("rank-mismatch", "has a magnitude")),
    "a saved module of another shape": (
        {"modules_to_save": ["norm"]}, {}, widen_the_norm,
        ("adapter-for-another-base", "model.norm is 64 in the base, but the adapter saved it as 65"),
    ),
    "a token beyond the vocabulary": (
        {"trainable_token_indices": [5, 6]}, {"trainable_token_indices": [5, 320]}, None, ("adapter-for-another-base", "token 320"),
    ),
}  # fmt: skip
"""Name → settings of the adapter that PEFT saves, what is changed in its configuration and in its tensors, and code and words."""


@pytest.mark.parametrize("case", REFUSED)
def test_an_adapter_that_can_not_be_merged_is_refused_before_anything_is_written(case: str, pico_base: Path, tmp_path: Path) -> None:
    options, edits, change, (code, words) = REFUSED[case]
    (output := tmp_path / "out").mkdir()
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", **options)
    helpers.edit_config(adapter, **edits)
    if change:
        helpers.rewrite(adapter / "adapter_model.safetensors", change)
    refused, sentence = refusal(adapter, pico_base, output)
    assert refused == code and words in sentence
    assert list(output.iterdir()) == []


def test_an_adapter_for_another_base_names_the_module_and_both_shapes(adapter: Path, tmp_path: Path, output: Path) -> None:  # R1.5
    other = models.make_base(tmp_path / "other", hidden_size=96)
    code, sentence = refusal(adapter, other, output)
    assert code == "adapter-for-another-base"
    assert "model.layers.0.mlp.down_proj is 96 × 128 in the base, but the adapter's delta is 64 × 128" in sentence
    assert "trained on a base of another size" in sentence
    assert list(output.iterdir()) == []


def test_a_key_that_matches_nothing_names_the_module_and_three_near_ones(adapter: Path, pico_base: Path, output: Path) -> None:  # R1.5
    helpers.rewrite(adapter / "adapter_model.safetensors", rename_a_module)
    code, sentence = refusal(adapter, pico_base, output)
    assert code == "adapter-key-unmatched"
    assert "model.layers.7.self_attn.q_proj; the most similar names there are " in sentence
    assert "model.layers.1.self_attn.q_proj" in sentence
    assert sentence.split("most similar names there are ")[1].split(". Fix: ")[0].count(", ") == 2


def test_layers_left_out_on_purpose_are_no_error(pico_base: Path, tmp_path: Path, output: Path) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", layers_to_transform=[1])
    assert merge_adapter(adapter, pico_base, output).figures.changed_modules == 7


def test_a_parameter_that_the_model_does_not_have_is_no_error(adapter: Path, pico_base: Path, output: Path) -> None:
    helpers.edit_config(adapter, target_parameters=["gate.weight"])  # as PEFT writes it for "all-linear", whatever the router's name is
    merge_adapter(adapter, pico_base, output)
    assert helpers.stored(output).keys() == helpers.stored(pico_base).keys()


@pytest.mark.parametrize("which", ["adapter", "base"])
def test_truncated_safetensors_are_refused_with_both_sizes(
    adapter: Path, pico_base: Path, tmp_path: Path, output: Path, which: str
) -> None:  # R1.5
    base = shutil.copytree(pico_base, tmp_path / "base")
    path = adapter / "adapter_model.safetensors" if which == "adapter" else base / "model.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 100)
    code, sentence = refusal(adapter, base, output)
    assert code == "truncated-weights"
    assert f"the file has {size - 100:,} bytes, but its header describes {size:,}" in sentence
    assert str(path) in sentence


@pytest.mark.parametrize("method", ["gptq", "awq", "hqq"])
def test_a_base_quantized_for_good_is_refused(adapter: Path, pico_base: Path, tmp_path: Path, output: Path, method: str) -> None:
    base = shutil.copytree(pico_base, tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": method}}))
    code, sentence = refusal(adapter, base, output)
    assert code == "quantized-base"
    assert f"quantized with {method}" in sentence


def test_prompt_learning_has_nothing_to_merge(pico_base: Path, tmp_path: Path, output: Path) -> None:
    from peft import PromptTuningConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(pico_base, dtype=torch.float32)
    get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)).save_pretrained(tmp_path / "prompt")
    code, sentence = refusal(tmp_path / "prompt", pico_base, output)
    assert code == "adapter-not-mergeable"
    assert "PROMPT_TUNING changes the inputs" in sentence


def test_pickled_code_is_not_executed(adapter: Path, pico_base: Path, tmp_path: Path, output: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    (adapter / "adapter_model.safetensors").unlink()
    torch.save({"x": Bomb()}, adapter / "adapter_model.bin")
    code, sentence = refusal(adapter, pico_base, output)
    assert code == "unsafe-pickle"
    assert "pickled code is never executed" in sentence
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(("which", "words"), [("adapter", "the adapter's own weights"), ("base", "the base's own weights")])
def test_values_that_are_not_finite_name_their_module_and_their_source(
    adapter: Path, pico_base: Path, tmp_path: Path, output: Path, which: str, words: str
) -> None:
    base = shutil.copytree(pico_base, tmp_path / "base")
    if which == "adapter":
        helpers.rewrite(adapter / "adapter_model.safetensors", lambda table: table[f"{Q_PROJ}.lora_B.weight"].fill_(float("nan")))
    else:
        helpers.rewrite(base / "model.safetensors", lambda table: table["model.layers.0.self_attn.q_proj.weight"][3].fill_(float("inf")))
    code, sentence = refusal(adapter, base, output)
    assert code == "non-finite-weights"
    assert "merge model.layers.0.self_attn.q_proj" in sentence
    assert words in sentence


@pytest.mark.parametrize("guilty", ["first", "second"])
def test_values_that_are_not_finite_name_the_adapter_that_holds_them(guilty: str, pico_base: Path, tmp_path: Path, output: Path) -> None:
    folders = {name: helpers.make_adapter(pico_base, tmp_path / name, seed=seed) for seed, name in enumerate(("first", "second"))}
    file = folders[guilty] / "adapter_model.safetensors"
    helpers.rewrite(file, lambda table: table[f"{Q_PROJ}.lora_B.weight"].fill_(float("nan")))
    with pytest.raises(Permanent) as error:
        merge_adapter(folders["first"], pico_base, output, adapters=[(folders["second"], 0.5)])
    fault = error.value.fault
    assert fault.code == "non-finite-weights" and fault.cause == "the adapter's own weights hold NaN or infinity"
    assert fault.path == str(file)


@pytest.mark.parametrize("weight", [1e30, 2.0**100], ids=["any factor", "a power of two"])
def test_a_sum_of_finite_adapters_that_overflows_is_not_blamed_on_any_of_them(
    weight: float, pico_base: Path, tmp_path: Path, output: Path
) -> None:
    first, second = (helpers.make_adapter(pico_base, tmp_path / name, seed=seed) for seed, name in enumerate(("first", "second")))
    helpers.rewrite(second / "adapter_model.safetensors", lambda table: table[f"{Q_PROJ}.lora_B.weight"].fill_(1e30))
    with pytest.raises(Permanent) as error:
        merge_adapter(first, pico_base, output, adapters=[(second, weight)])
    fault = error.value.fault
    assert fault.code == "non-finite-weights" and fault.cause.startswith("base and adapters are finite, but their weighted sum")
    assert "--add PATH=WEIGHT" in (fault.remedy or "") and str(pico_base) in str(fault.path)


def test_a_tensor_that_the_adapter_replaces_and_the_dtype_cannot_hold_is_not_said_to_be_nan(tmp_path: Path, output: Path) -> None:
    base = models.make_base(tmp_path / "base", dtype="float16")
    adapter = helpers.make_adapter(base, tmp_path / "adapter", modules_to_save=["norm"])
    helpers.rewrite(
        adapter / "adapter_model.safetensors",
        lambda table: table.update({key: one.float().fill_(1e6) for key, one in table.items() if key.endswith("model.norm.weight")}),
    )
    code, sentence = refusal(adapter, base, output)
    assert code == "non-finite-weights"
    assert "the adapter's own values for it are beyond the largest float16 value, 6.55e+04" in sentence


def test_a_sum_that_float16_cannot_hold_is_an_error(tmp_path: Path, output: Path) -> None:
    base = models.make_base(tmp_path / "base", dtype="float16")
    adapter = helpers.make_adapter(base, tmp_path / "adapter")
    helpers.rewrite(adapter / "adapter_model.safetensors", lambda table: table[f"{Q_PROJ}.lora_B.weight"].mul_(1e7))
    code, sentence = refusal(adapter, base, output)
    assert code == "non-finite-weights"
    assert "the largest float16 value is 6.55e+04" in sentence


@pytest.mark.parametrize(("added", "fits"), [(15.0, True), (17.0, False)])
def test_a_sum_beyond_the_largest_value_fits_as_long_as_it_rounds_to_it(tmp_path: Path, output: Path, added: float, fits: bool) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    base = models.make_base(tmp_path / "base", dtype="float16")
    adapter = helpers.make_adapter(base, tmp_path / "adapter")
    config = json.loads((adapter / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]

    def single(table: dict[str, Any]) -> None:
        for side, value in (("A", added / scale), ("B", 1.0)):
            table[f"{Q_PROJ}.lora_{side}.weight"].zero_()[0, 0] = value

    helpers.rewrite(base / "model.safetensors", lambda table: table[name].zero_()[0].fill_(65504.0))
    helpers.rewrite(adapter / "adapter_model.safetensors", single)
    if fits:
        merge_adapter(adapter, base, output)
        assert helpers.stored(output)[name][0].eq(65504.0).all()
    else:
        code, sentence = refusal(adapter, base, output)
        assert code == "non-finite-weights" and "the sum reaches 6.552e+04, and the largest float16 value is 6.55e+04" in sentence


def test_values_whose_sum_overflows_are_written_as_they_are(tmp_path: Path, output: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    base = models.make_base(tmp_path / "base", dtype="float32")
    adapter = helpers.make_adapter(base, tmp_path / "adapter")
    helpers.rewrite(base / "model.safetensors", lambda table: table[name].fill_(-1e36))
    merge_adapter(adapter, base, output)
    assert torch.equal(helpers.stored(output)[name], helpers.stored(base)[name])  # the delta is far below half a unit


def test_a_writer_that_fails_ends_the_merge_with_its_own_error(
    adapter: Path, pico_base: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        merge_adapter(adapter, pico_base, output)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("merge-")]


def test_a_base_that_shrinks_while_it_is_read_ends_the_merge(
    adapter: Path, pico_base: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of the base's rows alone: the adapter is read by another door.
    shrunk = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")} | {"preadv": lambda *_: 0})
    monkeypatch.setattr("handlers.tensors.file_io.os", shrunk)
    code, sentence = refusal(adapter, pico_base, output)
    assert code == "truncated-weights"
    assert "the file ends at byte" in sentence


def test_an_architecture_that_transformers_does_not_know_is_named(pico_base: Path, tmp_path: Path, output: Path) -> None:  # R1.5
    base = shutil.copytree(pico_base, tmp_path / "base")
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", init_lora_weights="olora")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "architectures": ["Qwen99ForCausalLM"]}))
    code, sentence = refusal(adapter, base, output)
    assert code == "unknown-architecture"
    assert "Qwen99ForCausalLM" in sentence
