"""What a runtime's own file says of tokens, ends and conversations is compared with what the checkpoint says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from handlers.validate.files import ollama, runtime, words
from tests import models

TOKENIZER: dict[str, Any] = {
    "model": {"vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "abb": 4}, "merges": [["a", "b"], "ab b"], "unk_token": "<unk>"},
    "added_tokens": [{"content": "<end>", "id": 5, "special": True}, {"content": "<tool>", "id": 6, "special": False}],
}
TOKENS = ["<unk>", "a", "b", "ab", "abb", "<end>", "<tool>", "[PAD7]"]
KINDS = ["unknown", "normal", "normal", "normal", "normal", "control", "added", "unused"]
SOUND: dict[str, Any] = {"tokens": TOKENS, "kinds": KINDS, "merges": ["a b", "ab b"], "scores": None}


def test_a_sound_vocabulary_has_no_difference_with_merges_or_with_scores() -> None:
    assert words.difference(SOUND, [TOKENIZER]) is None
    assert words.difference({**SOUND, "merges": None, "scores": [0.0, 0, 0, 0, -1, 0, 0, -1e4]}, [TOKENIZER]) is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tokens": ["<unk>", "b", "a", *TOKENS[3:]]}, "gives id 1 the token 'b' instead of 'a'"),
        ({"tokens": TOKENS[:6], "kinds": KINDS[:6]}, "gives id 6 the token None instead of '<tool>'"),
        ({"kinds": [*KINDS[:5], "normal", *KINDS[6:]]}, "takes '<end>' for a token of the kind 'normal' instead of 'control'"),
        ({"kinds": [*KINDS[:6], "control", "unused"]}, "takes '<tool>' for a token of the kind 'control' instead of 'added'"),
        ({"kinds": [*KINDS[:7], "normal"]}, "has the token '[PAD7]' (id 7), which the checkpoint's has not"),
        ({"merges": ["a b"]}, "has 1 merges instead of 2"),
        ({"merges": ["a b", "a bb"]}, "merges ('a', 'bb') where the checkpoint's merges ('ab', 'b') (merge 1)"),
        ({"merges": None, "scores": [0.0, 0, 0, -1, -1, 0, 0, 0]}, "joins 'abb' before 'ab', which the checkpoint's joins first"),
    ],
)
def test_each_difference_of_a_vocabulary_is_told(changes: dict[str, Any], told: str) -> None:
    assert words.difference({**SOUND, **changes}, [TOKENIZER]) == told


def test_an_end_that_a_file_names_must_be_one_of_the_checkpoints() -> None:
    config, generation = {"max_position_embeddings": 64, "eos_token_id": 1}, {"eos_token_id": [1, 5]}
    assert runtime.difference({"named_ends": [5]}, config, generation) is None
    assert runtime.difference({"named_ends": [1, 7]}, config, generation) == "the end of a text is 7 instead of [1, 5]"


def test_a_runtime_without_the_models_window_may_stop_where_it_begins_to_matter() -> None:
    config = {"max_position_embeddings": 64, "sliding_window": 32}
    assert runtime.difference({"context_length": 32}, config, {}) is runtime.difference({"context_length": 64}, config, {}) is None
    assert runtime.difference({"context_length": 16}, config, {}) == "context_length is 16 instead of 64"


def test_a_token_may_be_that_of_the_settings_or_of_the_tokenizer() -> None:
    config, own = {"pad_token_id": 4}, {"pad_token_id": 9, "bos_token_id": 2}
    assert runtime.difference({"pad_token_id": 9, "bos_token_id": 2}, config, {}, own) is None
    assert runtime.difference({"pad_token_id": 4}, config, {}, own) is None
    assert runtime.difference({"pad_token_id": 9}, config, {}) == "pad_token_id is 9 instead of 4"
    assert runtime.difference({"bos_token_id": 3}, config, {}, own) == "bos_token_id is 3 instead of 2"


ENDS = {"ends": ["</s>"], "specials": ["</s>", "<s>", "<|im_end|>"], "lengths": [8192], "generation": {"temperature": 0.7}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('FROM ./m.gguf\nPARAMETER num_ctx 4096\nPARAMETER stop "</s>"\nPARAMETER temperature 0.7', None),
        ('FROM ./m.gguf\nPARAMETER stop "</s>"\nPARAMETER stop "<|im_end|>"', None),
        ("FROM ./n.gguf", "FROM names './n.gguf', and no such file lies beside it"),
        ("FROM ./base.gguf\nADAPTER ./m.gguf", None),
        ("FROM ./base.gguf\nADAPTER ./n.gguf", "ADAPTER names './n.gguf', and no such file lies beside it"),
        ('FROM ./m.gguf\nPARAMETER stop "User:"', "stop is 'User:', which is no token that ends a text"),
        ('FROM ./m.gguf\nPARAMETER stop "<s>"', "stop lacks '</s>', at which the checkpoint's texts end"),
        ("FROM ./m.gguf\nPARAMETER num_ctx 9000", "num_ctx is 9000, and the model knows 8192 positions"),
        ("FROM ./m.gguf\nPARAMETER num_ctx 100", "num_ctx is 100, and the model knows 8192 positions"),
        ("FROM ./m.gguf\nPARAMETER temperature 1", "temperature is 1 instead of 0.7"),
        ("FROM ./m.gguf\nPARAMETER top_k 1", "top_k is 1 instead of what Ollama takes"),
        ('FROM ./m.gguf\nSYSTEM """Be\nrude."""', "SYSTEM puts a text before each conversation, which the checkpoint does not"),
    ],
)
def test_what_a_modelfile_says_is_compared(text: str, told: str | None, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    assert ollama.difference(ollama.read(text), tmp_path, **ENDS) == told  # type: ignore[arg-type]


TEMPLATE = models.CHAT_TEMPLATE + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
ROLES = (
    '{{ range .Messages }}{{ if eq .Role "system" }}<|system|>{{ .Content }}<|end|>{{ else if eq .Role "user" }}'
    "<|user|>{{- .Content -}} <|end|>{{ else }}<|assistant|>{{ .Content }}<|end|>{{ end }}{{ end }}<|assistant|>"
)


def test_a_template_of_ollama_writes_what_go_writes_and_is_compared_with_the_checkpoints() -> None:
    assert ollama.written(ROLES, [("user", "a"), ("assistant", "b")]) == "<|user|>a<|end|><|assistant|>b<|end|><|assistant|>"
    assert ollama.template_difference(ROLES, TEMPLATE, {}) is None
    told = ollama.template_difference(ROLES.replace("<|user|>", "<|human|>"), TEMPLATE, {})
    assert told is not None and told.startswith("writes '<|human|>How are you?")
    assert ollama.template_difference("{{ .Prompt }}", None, {}) is None
    assert ollama.template_difference("Q: {{ .Prompt }}", None, {}) == "changes a prompt, and the checkpoint has no chat template"


@pytest.mark.parametrize(
    "template", ["{{ with .System }}{{ . }}{{ end }}", "{{ range .Messages }}{{ if .Tools }}{{ end }}{{ end }}", "{{ end }}"]
)
def test_what_is_not_read_of_gos_language_is_told_and_not_guessed(template: str) -> None:
    with pytest.raises(ollama.UnreadError):
        ollama.template_difference(template, TEMPLATE, {})
