"""What is published says everything under the names of transformers 4 too, and transformers 5 reads what it read before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from handlers.models.releases.older_readers import OLDEST, Readers, make_readable, readable_tokenizer, translated
from tests import models
from tests.older import cases, tokenizers
from tests.older.reader import read_tokenizer

ROPES = [(kind, scaling) for kind in cases.ROTARY for scaling in cases.SCALINGS if (kind, scaling) not in cases.REFUSED | cases.UNSAYABLE]


def attributes(folder: Path) -> dict[str, Any]:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder).to_dict()


@pytest.mark.parametrize(("kind", "scaling"), ROPES)
def test_transformers_5_reads_the_same_configuration(kind: str, scaling: str, tmp_path: Path) -> None:
    cases.config_of(kind, cases.rotary(kind, scaling)).save_pretrained(tmp_path)
    before = attributes(tmp_path)
    assert make_readable(tmp_path).minimum == OLDEST
    after = attributes(tmp_path)
    assert cases.lost(before, after) == []
    rope = cases.rotary(kind, scaling)
    written, said = models.read_json(tmp_path / "config.json"), rope.get("full_attention", rope)
    assert written["rope_theta"] == said["rope_theta"] == cases.THETA
    assert scaling == "default" or set(cases.SCALINGS[scaling]) <= {*written["rope_scaling"], "original_max_position_embeddings"}


@pytest.mark.parametrize(("kind", "scaling"), sorted(cases.UNSAYABLE))
def test_a_form_that_a_family_of_transformers_4_lacks_is_told(kind: str, scaling: str, tmp_path: Path) -> None:
    cases.config_of(kind, cases.rotary(kind, scaling)).save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    said = make_readable(tmp_path)
    assert said.minimum == "5" and said.why is not None and f"the rotary embedding of {kind} can't be" in said.why
    assert (tmp_path / "config.json").read_text() == text


def test_a_configuration_that_transformers_4_wrote_stays_as_it_is_byte_by_byte(tmp_path: Path) -> None:
    text = '{"model_type":"llama",  "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3"}, "torch_dtype": "bfloat16"}'
    (tmp_path / "config.json").write_text(text)
    told = '{"tokenizer_class":"LlamaTokenizerFast",  "add_bos_token": true, "extra_special_tokens": {}}'
    (tmp_path / "tokenizer_config.json").write_text(told)
    assert make_readable(tmp_path) == Readers(OLDEST)
    assert (tmp_path / "config.json").read_text() == text and (tmp_path / "tokenizer_config.json").read_text() == told


@pytest.mark.parametrize(
    ("model_type", "rope", "why"),
    [
        ("olmo3", {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}, "the layers of olmo3 differ"),
        ("gemma4", {"main": {"rope_theta": 1e6}, "other": {"rope_theta": 1e4}}, "no names for the rotary embeddings of gemma4"),
        ("llama", {"rope_type": "proportional", "rope_theta": 1e6}, "does not know the rotary embedding 'proportional'"),
        (
            "modernbert",
            {"full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}},
            "the rotary embedding of modernbert",
        ),
        ("phi3", {"rope_type": "longrope", "rope_theta": 1e4, "factor": 3.0, "short_factor": [1], "long_factor": [1]}, "a Phi 3's"),
        ("llama", {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1], "long_factor": [1]}, "original training length"),
        (
            "llama",
            {
                "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1], "long_factor": [1], "factor": 3.0,
                "original_max_position_embeddings": 16,
            },
            "not the ratio",
        ),
    ],
)  # fmt: skip
def test_what_has_no_older_name_is_left_alone_and_told(model_type: str, rope: dict[str, Any], why: str, tmp_path: Path) -> None:
    text = json.dumps({"model_type": model_type, "max_position_embeddings": 64, "rope_parameters": rope})
    (tmp_path / "config.json").write_text(text)
    said = make_readable(tmp_path)
    assert said.minimum == "5" and said.why is not None and why in said.why
    assert (tmp_path / "config.json").read_text() == text


def test_a_family_that_nobody_read_with_transformers_4_has_no_oldest_release(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "a-new-one"}')
    assert make_readable(tmp_path) == Readers(None)


def test_a_family_that_reads_right_only_with_plain_attention_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gemma2"}')
    assert make_readable(tmp_path) == Readers(OLDEST, 'before transformers 5 with attn_implementation="eager"')


@pytest.mark.parametrize(
    ("config", "sayable"),
    [
        ({"model_type": "mt5", "tie_word_embeddings": True}, False),
        ({"model_type": "mt5", "tie_word_embeddings": False}, True),
        ({"model_type": "t5", "tie_word_embeddings": True, "scale_decoder_outputs": True}, True),
        ({"model_type": "t5", "tie_word_embeddings": True, "scale_decoder_outputs": False}, False),
    ],
)
def test_a_t5_whose_outputs_transformers_4_would_scale_needs_transformers_5(config: dict[str, Any], sayable: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (make_readable(tmp_path).minimum == "5") is not sayable


def test_a_mixture_of_experts_says_their_number_by_both_names() -> None:
    assert translated({"model_type": "qwen3_moe", "num_local_experts": 4})["num_experts"] == 4


def test_the_type_of_the_weights_has_both_names_in_nested_configurations_too() -> None:
    made = translated({"dtype": "bfloat16", "text_config": {"dtype": "float32"}, "vision_config": {"torch_dtype": "float16"}})
    assert made["torch_dtype"] == "bfloat16" and made["text_config"] == {"dtype": "float32", "torch_dtype": "float32"}
    assert made["vision_config"] == {"torch_dtype": "float16"}


@pytest.mark.parametrize("name", tokenizers.NAMES)
def test_transformers_5_reads_the_same_tokens(name: str, tmp_path: Path) -> None:
    before = tokenizers.save(name, tmp_path)
    assert read_tokenizer(tmp_path) == before


def test_a_tokenizer_of_no_class_of_its_own_gets_the_name_that_both_releases_know() -> None:
    config = {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers", "tool_token": "<t>", "extra_special_tokens": ["<x>"]}
    made = readable_tokenizer(config, {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}})
    assert made == {
        "tokenizer_class": "PreTrainedTokenizerFast", "backend": "tokenizers",
        "model_input_names": ["input_ids", "attention_mask"], "tool_token": "<t>", "add_prefix_space": True,
        "additional_special_tokens": ["<x>"], "extra_special_tokens": {"tool_token": "<t>"},
    }  # fmt: skip


def test_the_inputs_that_a_tokenizer_gives_are_said_unless_they_are_already() -> None:
    backend = {"backend": "tokenizers"}
    assert readable_tokenizer({**backend, "tokenizer_class": "TokenizersBackend"}, {})["model_input_names"] == [
        "input_ids",
        "attention_mask",
    ]
    said = ["input_ids", "token_type_ids", "attention_mask"]
    kept = readable_tokenizer({**backend, "tokenizer_class": "TokenizersBackend", "model_input_names": said}, {})
    assert kept["model_input_names"] == said
    assert "model_input_names" not in readable_tokenizer({**backend, "tokenizer_class": "BertTokenizer"}, {})
