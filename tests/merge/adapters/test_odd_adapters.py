"""Adapters that are saved in older or unusual ways, or bring more along than low-rank factors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from daemon.contract.faults.errors import Permanent
from handlers.merge import merge_adapter
from handlers.merge.adapters.adapter import read_adapter
from handlers.merge.adapters.keys import Factors, Keys
from handlers.merge.adapters.name_mapping import Names
from handlers.merge.plan.fused_experts import expert_outputs
from handlers.models.folder import ModelFolder
from tests import models
from tests.merge import helpers, zoo

IDS = torch.arange(2, 34)[None]


@pytest.fixture(scope="module")
def base32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make_base(tmp_path_factory.mktemp("bases") / "fp32", dtype="float32")


def merge(adapter: Path, base: Path, output: Path, **options: Any) -> Any:
    output.mkdir()
    return merge_adapter(adapter, base, output, *helpers.settings(**options))


def config(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def rename(adapter: Path, change: Callable[[str], str]) -> None:
    def every(table: dict[str, Any]) -> None:
        for key in list(table):
            table[change(key)] = table.pop(key)

    helpers.rewrite(adapter / "adapter_model.safetensors", every)


FORMS: dict[str, Callable[[str], str]] = {
    "the adapter's name in the key": lambda key: key.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default."),
    "no prefix": lambda key: key.removeprefix("base_model.model."),
    "compiled": lambda key: key.replace("base_model.model.", "base_model.model._orig_mod."),
    "sharded by FSDP": lambda key: key.replace(".layers.", "._fsdp_wrapped_module.layers."),
    "distributed": lambda key: f"module.{key}",
    "checkpointed activations": lambda key: key.replace(".mlp.", "._checkpoint_wrapped_module.mlp."),
    "a magnitude with a weight": lambda key: key.replace("lora_magnitude_vector", "lora_magnitude_vector.weight"),
    "a magnitude under the adapter's name": lambda key: key.replace("lora_magnitude_vector", "lora_magnitude_vector.default"),
    "saved modules under their wrapper's name": lambda key: key.replace("model.norm.weight", "model.norm.modules_to_save.weight"),
    "saved modules under wrapper and adapter": lambda key: key.replace("model.norm.weight", "model.norm.modules_to_save.default.weight"),
}


@pytest.mark.parametrize("form", FORMS)
def test_keys_in_other_forms_mean_the_same(form: str, pico_base: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", use_dora=True, modules_to_save=["norm"])
    merge(adapter, pico_base, tmp_path / "plain")
    before = (adapter / "adapter_model.safetensors").read_bytes()
    rename(adapter, FORMS[form])
    assert (adapter / "adapter_model.safetensors").read_bytes() != before
    assert merge(adapter, pico_base, tmp_path / "other").strategy == "streaming"
    assert (tmp_path / "plain/model.safetensors").read_bytes() == (tmp_path / "other/model.safetensors").read_bytes()


@pytest.mark.parametrize("tied", [True, False])
def test_a_vocabulary_resized_in_training_is_resized_in_the_output(tied: bool, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = models.make_base(tmp_path / "base", dtype="float32", tie_word_embeddings=tied)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.resize_token_embeddings(333, mean_resizing=False)
    live = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False))
    live.save_pretrained(tmp_path / "adapter", save_embedding_layers=True)
    report = merge(tmp_path / "adapter", base, tmp_path / "out")
    with torch.no_grad():
        expected = live.eval()(input_ids=IDS).logits
    assert (report.strategy, report.warnings) == ("streaming", ())
    assert config(tmp_path / "out") == {**config(base), "vocab_size": 333}
    got = helpers.logits(tmp_path / "out", IDS)
    assert got.shape[-1] == 333
    assert (got - expected).abs().max() < 2e-4


def test_a_resized_vocabulary_under_a_lora_of_the_embeddings_is_resized_first(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = models.make_base(tmp_path / "base", dtype="float32", tie_word_embeddings=False)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model.resize_token_embeddings(333, mean_resizing=False)
    targets = ["q_proj", "embed_tokens", "lm_head"]
    live = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM", init_lora_weights=False))
    live.save_pretrained(tmp_path / "adapter")
    merge(tmp_path / "adapter", base, tmp_path / "out")
    with torch.no_grad():
        expected = live.eval()(input_ids=IDS).logits
    assert (helpers.logits(tmp_path / "out", IDS) - expected).abs().max() < 2e-4


def test_an_added_tensor_enters_header_and_index_of_a_sharded_base(base32: Path, tmp_path: Path) -> None:
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    base = tmp_path / "base"
    AutoModelForCausalLM.from_pretrained(base32, dtype=torch.float32).save_pretrained(base, max_shard_size="100KB")
    adapter = helpers.make_adapter(base, tmp_path / "adapter", target_modules=["lm_head"])
    merge(adapter, base, tmp_path / "out")
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    old = json.loads((base / "model.safetensors.index.json").read_text())
    home = old["weight_map"]["model.embed_tokens.weight"]
    assert index["weight_map"] == {**old["weight_map"], "lm_head.weight": home}
    assert index["metadata"]["total_size"] == old["metadata"]["total_size"] + 320 * 64 * 4
    for name in set(old["weight_map"].values()):
        same = (tmp_path / "out" / name).read_bytes()[:100] == (base / name).read_bytes()[:100]
        assert same is (name != home)
        with safe_open(tmp_path / "out" / name, "pt") as stream:
            assert stream.metadata() == {"format": "pt"}
    live = helpers.live_logits(base, adapter, IDS)
    assert (helpers.logits(tmp_path / "out", IDS) - live).abs().max() < 2e-4


@pytest.mark.parametrize(
    ("family", "targets", "saved", "labels"),
    [("llama", ["q_proj"], None, 3), ("bert", ["query"], ["classifier", "pooler"], 2), ("gpt2", ["c_attn"], None, 4)],
)
def test_a_classification_head_that_the_adapter_brings_makes_the_output_a_classifier(
    family: str, targets: list[str], saved: list[str] | None, labels: int, tmp_path: Path
) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForSequenceClassification

    base = zoo.make(family, tmp_path / "base", "float32")
    torch.manual_seed(3)
    load = AutoModelForSequenceClassification.from_pretrained
    model = get_peft_model(
        load(base, num_labels=labels, dtype=torch.float32), LoraConfig(task_type="SEQ_CLS", target_modules=targets, modules_to_save=saved)
    )
    zoo.randomize(model)
    model.save_pretrained(tmp_path / "adapter")
    report = merge(tmp_path / "adapter", base, tmp_path / "out")
    example = {"input_ids": torch.arange(3, 19)[None]}
    with torch.no_grad():
        live = PeftModel.from_pretrained(load(base, num_labels=labels, dtype=torch.float32), tmp_path / "adapter").eval()
        merged = load(tmp_path / "out", dtype=torch.float32).eval()
        error = (merged(**example).logits - live(**example).logits).abs().max()
    assert merged.num_labels == labels
    assert error < 1e-5
    assert report.strategy == "streaming"
    assert any(f"with {labels} labels" in warning for warning in report.warnings)
    assert any("LABEL_0" in warning and "config.json next to the adapter" in warning for warning in report.warnings)
    assert config(tmp_path / "out")["architectures"] == [type(merged).__name__]
    assert not {name for name in helpers.stored(tmp_path / "out") if name.startswith(("lm_head", "cls."))}


def test_a_head_that_is_incomplete_is_refused(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForSequenceClassification

    base = zoo.make("bert", tmp_path / "base", "float32")
    model = AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32)
    get_peft_model(model, LoraConfig(task_type="SEQ_CLS", target_modules=["query"])).save_pretrained(tmp_path / "adapter")
    code, sentence = refusal(tmp_path / "adapter", base, tmp_path / "out")
    assert code == "head-incomplete"
    assert "needs bert.pooler.dense.bias" in sentence


def refusal(adapter: Path, base: Path, output: Path) -> tuple[str, str]:
    output.mkdir(exist_ok=True)
    with pytest.raises(Permanent) as caught:
        merge_adapter(adapter, base, output)
    assert list(output.iterdir()) == []
    return caught.value.fault.code, caught.value.fault.sentence()


def test_a_grouped_convolution_is_refused(tmp_path: Path) -> None:
    base = zoo.make("wav2vec2", tmp_path / "base", "float32")
    from safetensors.torch import save_file

    adapter = tmp_path / "adapter"
    adapter.mkdir()
    base_weights = helpers.stored(base)
    name = next(key for key, value in base_weights.items() if value.ndim == 3 and "pos_conv" not in key and value.shape[1] == 16)
    base_weights[name] = base_weights[name][:, :8].contiguous()
    save_file(base_weights, base / "model.safetensors", metadata={"format": "pt"})
    module = name.removesuffix(".weight")
    table = {
        f"base_model.model.{module}.lora_A.weight": torch.ones(2, 16, 3),
        f"base_model.model.{module}.lora_B.weight": torch.ones(16, 2, 1),
    }
    save_file(table, adapter / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": [module]}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    code, sentence = refusal(adapter, base, tmp_path / "out")
    assert code == "adapter-not-mergeable"
    assert "a convolution with 2 groups" in sentence


def test_values_of_a_saved_module_that_are_not_finite_are_the_adapter_s_fault(pico_base: Path, tmp_path: Path) -> None:
    adapter = helpers.make_adapter(pico_base, tmp_path / "adapter", modules_to_save=["norm"])
    helpers.rewrite(
        adapter / "adapter_model.safetensors", lambda table: table["base_model.model.model.norm.weight"][:1].fill_(float("nan"))
    )
    (tmp_path / "out").mkdir()
    with pytest.raises(Permanent, match=r"merge model\.norm.*the adapter's own weights"):
        merge_adapter(adapter, pico_base, tmp_path / "out")


def test_what_peft_alone_can_merge_changes_one_of_more_than_two_modules_that_share_a_weight(tmp_path: Path) -> None:
    from peft import LoHaConfig, PeftModel, get_peft_model
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
    model = T5ForConditionalGeneration(T5Config(**sizes))
    model.save_pretrained(tmp_path / "base")
    get_peft_model(model, LoHaConfig(r=2, target_modules=["lm_head"], init_weights=False)).save_pretrained(tmp_path / "adapter")
    report = merge(tmp_path / "adapter", tmp_path / "base", tmp_path / "out")
    assert report.strategy == "peft" and "no longer tied" in report.warnings[0]
    ids = {"input_ids": torch.arange(2, 12)[None], "decoder_input_ids": torch.arange(2, 8)[None]}
    base = T5ForConditionalGeneration.from_pretrained(tmp_path / "base")
    with torch.no_grad():
        live = PeftModel.from_pretrained(base, tmp_path / "adapter").eval()(**ids).logits
        got = T5ForConditionalGeneration.from_pretrained(tmp_path / "out").eval()(**ids).logits
    assert (got - live).abs().max() < 1e-5 * live.std()


class Counted(dict[Any, Any]):
    """Counts the entries that are looked at by going through it."""

    seen = 0

    def items(self) -> Any:
        for pair in super().items():
            self.seen += 1
            yield pair


def test_the_search_for_fused_experts_goes_through_the_modules_once_however_many(base32: Path, tmp_path: Path) -> None:
    # Layers times experts times three: 18,000 modules are not rare, and their square was two minutes.
    adapter = read_adapter(helpers.make_adapter(base32, tmp_path / "adapter"))
    keys = Keys({(f"layers.{number}.up_proj", 0): Factors(f"layers.{number}.up_proj") for number in range(500)})
    keys.factors = counted = Counted(keys.factors)
    assert expert_outputs(adapter, keys, Names({}), ModelFolder(base32), lambda *_: pytest.fail("there are none")) == []
    assert counted.seen <= 500
