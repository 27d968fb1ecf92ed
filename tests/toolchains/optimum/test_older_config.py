"""What transformers 5 says of a rotary embedding, transformers 4 must be told under its own names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from handlers.models.releases.older_readers import UntranslatableError, translated
from handlers.toolchains.older_config import check_read_back, readable_copy


def test_the_base_frequency_stands_at_the_top_level_too() -> None:
    config = {"model_type": "qwen3", "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "hidden_size": 8, "rope_theta": 1e4}
    assert translated(config) == {**config, "rope_theta": 1e6}
    assert translated({"model_type": "bert"}) == {"model_type": "bert"}


def test_scaling_and_partial_rotation_keep_their_figures() -> None:
    rope = {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0, "partial_rotary_factor": 0.5}
    made = translated({"model_type": "llama", "rope_parameters": rope})
    assert made["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0}
    assert made["partial_rotary_factor"] == 0.5
    neox = translated({"model_type": "gpt_neox", "rope_parameters": {"rope_theta": 3e4, "partial_rotary_factor": 0.25}})
    assert neox["rotary_emb_base"] == 3e4 and neox["rotary_pct"] == 0.25


def test_layers_of_two_kinds_have_a_frequency_each() -> None:
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    gemma = translated({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "rope_parameters": rope}})["text_config"]
    assert (gemma["rope_theta"], gemma["rope_local_base_freq"]) == (1e6, 1e4)
    bert = translated({"model_type": "modernbert", "rope_parameters": rope})
    assert (bert["global_rope_theta"], bert["local_rope_theta"]) == (1e6, 1e4)


def test_what_has_no_older_name_is_refused() -> None:
    rope = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(UntranslatableError, match="the layers of olmo3 differ"):
        translated({"model_type": "olmo3", "rope_parameters": rope})
    assert translated({"model_type": "olmo3", "rope_parameters": {**rope, "sliding_attention": {"rope_theta": 1e6}}})["rope_theta"] == 1e6


def test_a_value_that_is_read_back_as_another_one_is_an_error() -> None:
    wanted = {"model_type": "qwen3", "rope_parameters": {"rope_theta": 1e6}}
    check_read_back(wanted, {"rope_theta": 1e6}.get)
    with pytest.raises(UntranslatableError, match=r"rope_theta was read as 10000\.0 and is 1000000\.0"):
        check_read_back(wanted, {"rope_theta": 1e4}.get)


def test_the_copy_links_the_weights_and_leaves_the_tokenizer(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (source / name).write_text("{}")
    (source / "config.json").write_text(json.dumps({"model_type": "qwen3", "rope_parameters": {"rope_theta": 1e6}}))
    before = (source / "config.json").read_bytes()
    copy = readable_copy(source, tmp_path / "scratch" / "copy")
    assert {path.name for path in copy.iterdir()} == {"model.safetensors", "generation_config.json", "config.json"}
    assert (copy / "model.safetensors").is_symlink()
    assert json.loads((copy / "config.json").read_text())["rope_theta"] == 1e6
    assert (source / "config.json").read_bytes() == before
