"""Trained tokens, saved modules and LoRA on one of several modules that share a weight: the merge answers as the live adapter does."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from daemon.contract.faults.errors import Permanent
from handlers.merge import merge_adapter
from tests.merge import helpers, zoo
from tests.sampling import some


def _t5(kind: str, *, own_head: bool = False) -> Any:
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=zoo.VOCABULARY, d_model=zoo.WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=4, initializer_factor=0.5,
        decoder_start_token_id=0, tie_word_embeddings=not own_head,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    if own_head:  # as mT5's and T5 1.1's files have it
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) / 5)
    return model


def _family(kind: str, **options: Any) -> zoo.Family:
    return zoo.Family(functools.partial(_t5, kind, **options), "AutoModelForSeq2SeqLM", ("q", "v"), "pair", "SEQ_2_SEQ_LM")


MORE = {
    "mt5": _family("MT5"), "umt5": _family("UMT5"), "mt5-own-head": _family("MT5", own_head=True),
    "umt5-own-head": _family("UMT5", own_head=True), "t5-own-head": _family("T5", own_head=True),
}  # fmt: skip
ROWS = [5, 6]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {"trainable_token_indices": {"lm_head": ROWS}}),
    ("t5", {"trainable_token_indices": {"embed_tokens": ROWS}}),
    ("mt5", {"modules_to_save": ["shared"]}),
    ("qwen3", {"trainable_token_indices": {"embed_tokens": ROWS, "lm_head": ROWS}}),
    ("qwen3", {"trainable_token_indices": {"embed_tokens": ROWS, "lm_head": [7]}}),
    ("gpt2", {"trainable_token_indices": {"lm_head": ROWS}}),
    ("gpt2", {"trainable_token_indices": ROWS}),
    ("t5", {"trainable_token_indices": ROWS}),
    ("t5", {"trainable_token_indices": {"decoder.embed_tokens": ROWS}}),
    ("t5", {"trainable_token_indices": {"lm_head": ROWS}}),
    ("mt5", {"trainable_token_indices": {"embed_tokens": ROWS}}),
    ("marian", {"trainable_token_indices": {"embed_tokens": ROWS}}),
    ("marian", {"trainable_token_indices": ROWS}),
    ("mt5", {"modules_to_save": ["shared", "lm_head"]}),
    ("mt5", {"modules_to_save": ["embed_tokens"]}),
    ("mt5", {"target_modules": ["q", "shared"]}),
    ("mt5", {"target_modules": ["q", "lm_head"]}),
    ("t5", {"modules_to_save": ["shared"]}),
    *((f"{kind}-own-head", {"modules_to_save": ["shared"]}) for kind in ("t5", "mt5")),
    *((f"{kind}-own-head", {"modules_to_save": ["lm_head"]}) for kind in ("t5", "mt5", "umt5")),
    *((f"{kind}-own-head", {"target_modules": ["q", "lm_head"]}) for kind in ("t5", "mt5", "umt5")),
    *((f"{kind}-own-head", {"trainable_token_indices": ROWS}) for kind in ("t5", "mt5")),
]


@pytest.fixture(autouse=True)
def more_families(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, family in MORE.items():
        monkeypatch.setitem(zoo.FAMILIES, name, family)


def made(family: str, form: str, folder: Path) -> Path:
    base = zoo.make(family, folder, "float32")
    if form == "bin":
        torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
        (base / "model.safetensors").unlink()
    return base


def merged(family: str, base: Path, folder: Path, **options: Any) -> Any:
    adapter = zoo.adapt(family, base, folder / "adapter", **copy.deepcopy(options))
    (folder / "out").mkdir()
    return merge_adapter(adapter, base, folder / "out")


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize(("family", "options"), [*CASES[:3], *some(CASES[3:], of=8)])
def test_the_merge_of_one_module_that_shares_its_weight_answers_as_the_live_adapter(
    family: str, options: dict[str, Any], form: str, tmp_path: Path
) -> None:
    base = made(family, form, tmp_path / "base")
    report = merged(family, base, tmp_path, **options)
    assert report.strategy == ("peft" if form == "bin" else "streaming")
    live = zoo.logits(family, zoo.attached(family, base, tmp_path / "adapter", "float32"))
    assert (zoo.logits(family, zoo.load(family, tmp_path / "out", "float32")) - live).abs().max() < 1e-5 * live.std() + 1e-6


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize("family", ["t5", "mt5", "umt5"])
def test_a_saved_module_that_the_model_does_not_use_changes_nothing(family: str, form: str, tmp_path: Path) -> None:
    """T5's `shared` gets no gradient, so that its saved copy holds the base's values."""
    base = made(family, form, tmp_path / "base")
    adapter = zoo.adapt(family, base, tmp_path / "adapter", modules_to_save=["shared"])
    values = load_file(zoo.make(family, tmp_path / "same", "float32") / "model.safetensors")["shared.weight"]
    helpers.rewrite(adapter / "adapter_model.safetensors", lambda table: table.update({"base_model.model.shared.weight": values}))
    (tmp_path / "out").mkdir()
    report = merge_adapter(adapter, base, tmp_path / "out")
    assert [warning for warning in report.warnings if "tied" in warning] == []
    live = zoo.logits(family, zoo.attached(family, base, adapter, "float32"))
    assert (zoo.logits(family, zoo.load(family, tmp_path / "out", "float32")) - live).abs().max() < 1e-5 * live.std()


@pytest.mark.parametrize("form", ["safetensors", "bin"])
@pytest.mark.parametrize(
    ("family", "options", "why"),
    [
        ("umt5", {"modules_to_save": ["shared"]}, "a umt5 model in which they are separate computes different outputs"),
        ("bert", {"trainable_token_indices": ROWS}, "acts on cls.predictions.decoder, and PEFT leaves out its bias"),
    ],
)
def test_what_a_merge_cannot_compute_as_the_live_adapter_is_refused(
    family: str, options: dict[str, Any], why: str, form: str, tmp_path: Path
) -> None:
    with pytest.raises(Permanent, match=why):
        merged(family, made(family, form, tmp_path / "base"), tmp_path, **options)
    assert [path for path in (tmp_path / "out").iterdir() if path.suffix == ".safetensors"] == []


@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["classifier"], "use_dora": True}], ids=["linear", "classifier"])
def test_a_vision_model_that_reads_no_tokens_is_merged(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=zoo.WIDTH, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8, num_labels=5
    )
    family = zoo.Family(
        lambda: transformers.ViTForImageClassification(config), "AutoModelForImageClassification", ("q_proj", "v_proj"), "pixels", None
    )
    monkeypatch.setitem(zoo.FAMILIES, "vit", family)
    base = made("vit", "safetensors", tmp_path / "base")
    merged("vit", base, tmp_path, **options)
    live = zoo.logits("vit", zoo.attached("vit", base, tmp_path / "adapter", "float32"))
    assert (zoo.logits("vit", zoo.load("vit", tmp_path / "out", "float32")) - live).abs().max() < 1e-5
