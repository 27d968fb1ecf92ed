"""A vocabulary that was resized in training, with embedding or head trained whole: PEFT saves each of them up to three times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.options import MergeOptions
from handlers.merge import merge_adapter
from tests.merge import zoo

ROWS = zoo.VOCABULARY + 8
SAVED = {
    "llama": (["embed_tokens"], ["embed_tokens", "lm_head"]),
    "qwen3": (["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head"]),
    "gemma": (["embed_tokens", "lm_head"],),
    "phi": (["lm_head"],),
    "gpt2": (["wte"], ["wte", "lm_head"]),
}
"""Family → what is trained whole. llama and phi do not tie embedding and head, the others do."""


def resized(name: str, base: Path, dtype: str) -> Any:
    """The base with a vocabulary of ROWS, always with the same new rows."""
    torch.manual_seed(5)
    model = zoo.load(name, base, dtype)
    model.resize_token_embeddings(ROWS, mean_resizing=False)
    return model


def train(name: str, base: Path, folder: Path, modules: list[str], **options: Any) -> tuple[Path, Any]:
    """An adapter saved by PEFT over the resized base, and what the model that was trained answers."""
    from peft import LoraConfig, get_peft_model

    model = resized(name, base, "float32")
    targets, task = list(zoo.FAMILIES[name].targets), zoo.FAMILIES[name].task
    settings = {"r": 4, "lora_alpha": 6, "target_modules": targets, "task_type": task, "modules_to_save": modules, **options}
    live = get_peft_model(model, LoraConfig(**settings))
    zoo.randomize(live)
    live.save_pretrained(folder)
    return folder, zoo.logits(name, live)


def keys_of(adapter: Path) -> list[str]:
    with safe_open(adapter / "adapter_model.safetensors", "pt") as stream:
        return list(stream.keys())


def merge(adapter: Path, base: Path, output: Path) -> Any:
    output.mkdir()
    return merge_adapter(adapter, base, output)


CASES = [(name, modules) for name, forms in SAVED.items() for modules in forms]


@pytest.mark.parametrize(("name", "modules"), CASES, ids=[f"{name}-{'-'.join(modules)}" for name, modules in CASES])
def test_what_peft_saves_beside_a_trained_copy_is_the_base_and_the_merge_answers_as_the_live_model(
    name: str, modules: list[str], tmp_path: Path
) -> None:
    base = zoo.make(name, tmp_path / "base", "float32")
    adapter, live = train(name, base, tmp_path / "adapter", modules)
    assert any(".original_module.weight" in key for key in keys_of(adapter)), "PEFT no longer writes what this is about"
    # Another tensor of the tiny GPT-2 is as wide as its old vocabulary, so PEFT merges that one.
    assert merge(adapter, base, tmp_path / "out").strategy == ("peft" if name == "gpt2" else "streaming")
    got = zoo.logits(name, zoo.load(name, tmp_path / "out", "float32"))
    assert got.shape[-1] == ROWS
    assert (got - live).abs().max() < 2e-4 * live.abs().max()


@pytest.mark.parametrize(("name", "dtype"), [("llama", "bfloat16"), ("phi", "float32"), ("qwen3", "bfloat16"), ("gpt2", "float32")])
def test_each_weight_has_the_bits_that_peft_merges(name: str, dtype: str, tmp_path: Path) -> None:
    from peft import PeftModel

    base = zoo.make(name, tmp_path / "base", dtype)
    adapter, _ = train(name, base, tmp_path / "adapter", SAVED[name][0])
    merge(adapter, base, tmp_path / "out")
    theirs = PeftModel.from_pretrained(resized(name, base, dtype), adapter).merge_and_unload().state_dict()
    mine = zoo.load(name, tmp_path / "out", dtype).state_dict()
    assert theirs.keys() == mine.keys()
    different = [key for key, value in theirs.items() if not torch.equal(value, mine[key])]
    assert different == []


@pytest.mark.parametrize("name", ["phi", "qwen3", "gpt2"])
def test_only_some_rows_trained_of_a_resized_vocabulary(name: str, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model

    base = zoo.make(name, tmp_path / "base", "float32")
    targets, task = list(zoo.FAMILIES[name].targets), zoo.FAMILIES[name].task
    new = list(range(zoo.VOCABULARY, ROWS))
    live = get_peft_model(
        resized(name, base, "float32"), LoraConfig(r=4, lora_alpha=6, target_modules=targets, task_type=task, trainable_token_indices=new)
    )
    zoo.randomize(live)
    adapter = tmp_path / "adapter"
    live.save_pretrained(adapter)
    assert any(".token_adapter.base_layer.weight" in key for key in keys_of(adapter)), "PEFT no longer writes what this is about"
    merge(adapter, base, tmp_path / "out")
    got, wanted = zoo.logits(name, zoo.load(name, tmp_path / "out", "float32")), zoo.logits(name, live)
    assert got.shape[-1] == ROWS
    assert (got - wanted).abs().max() < 2e-4 * wanted.abs().max()
    theirs = PeftModel.from_pretrained(resized(name, base, "float32"), adapter).merge_and_unload().state_dict()
    mine = zoo.load(name, tmp_path / "out", "float32").state_dict()
    assert [key for key, value in theirs.items() if not torch.equal(value, mine[key])] == []


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize(
    ("name", "target", "lost"),
    [
        ("llama", "embed_tokens", "lm_head.weight"),
        ("llama", "lm_head", "model.embed_tokens.weight"),
        ("phi", "embed_tokens", "lm_head.weight and lm_head.bias"),
    ],
)
def test_new_rows_that_no_file_holds_are_named_and_merged_only_where_the_configuration_allows_it(
    name: str, target: str, lost: str, form: str, tmp_path: Path
) -> None:
    base = zoo.make(name, tmp_path / "base", "float32")
    adapter, _ = train(name, base, tmp_path / "adapter", [], **lora_on(target))
    if form == "bin":
        torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
        (base / "model.safetensors").unlink()
    with pytest.raises(Permanent, match=f"holds no values for rows 96 to 103 of {lost}") as caught:
        merge(adapter, base, tmp_path / "out")
    assert caught.value.fault.code == "missing-rows" and "merge.fill_rows" in str(caught.value)
    (tmp_path / "allowed").mkdir()
    report = merge_adapter(adapter, base, tmp_path / "allowed", MergeOptions(fill_rows=True))
    assert [one for one in report.warnings if f"rows 96 to 103 of {lost}: they get the mean of the other rows" in one]
    written = zoo.load(name, tmp_path / "allowed", "float32")
    assert written.get_output_embeddings().weight.shape[0] == ROWS


def lora_on(target: str) -> dict[str, Any]:
    return {"target_modules": ["q_proj", target]}


@pytest.mark.parametrize(("name", "target"), [("qwen3", "embed_tokens"), ("llama", "v_proj"), ("phi", "v_proj")])
def test_a_checkpoint_that_holds_all_new_rows_is_merged_without_a_word(name: str, target: str, tmp_path: Path) -> None:
    base = zoo.make(name, tmp_path / "base", "float32")
    adapter, live = train(name, base, tmp_path / "adapter", [], **lora_on(target))
    report = merge(adapter, base, tmp_path / "out")
    assert [one for one in report.warnings if "the mean of" in one] == []
    assert (zoo.logits(name, zoo.load(name, tmp_path / "out", "float32")) - live).abs().max() < 2e-4 * live.abs().max()
