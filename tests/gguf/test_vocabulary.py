"""llama.cpp reads every text as the model's own tokenizer does, or the file is not written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import models
from tests.gguf import forms, kinds
from tests.stages import refused

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
DIGITS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""How Qwen's tokenizers take texts apart: each digit for itself."""
THREE = DIGITS.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
"""Llama 3's: up to three digits."""


def with_split(folder: Path, pattern: str) -> Path:
    """The tokenizer of a folder, which takes texts apart by a pattern first; numbers are tokens, so that it shows."""
    said = json.loads((folder / "tokenizer.json").read_bytes())
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    said["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, plain]}
    vocabulary, merges = said["model"]["vocab"], said["model"]["merges"]
    free = sorted(vocabulary, key=vocabulary.__getitem__)[-3:]
    for old, new, pair in zip(free, ("12", "123", "1234"), (["1", "2"], ["12", "3"], ["123", "4"]), strict=True):
        vocabulary[new] = vocabulary.pop(old)
        merges[:] = [one for one in merges if old not in one and "".join(one) != old]
        merges.append(pair)
    (folder / "tokenizer.json").write_text(json.dumps(said))
    return folder


@pytest.mark.parametrize(("pattern", "name"), [(DIGITS, "qwen2"), (THREE, "llama-bpe")])
def test_the_way_of_taking_texts_apart_is_found_by_what_it_reads(pattern: str, name: str, tmp_path: Path) -> None:
    model = with_split(kinds.make("Llama", tmp_path / "model"), pattern)
    folder, output = forms.make("gguf-bf16", model, tmp_path / "work")
    assert output.figures["pre_tokenizer"] == name
    from tokenizers import Tokenizer

    engine, own = forms.engine(folder), Tokenizer.from_file(str(model / "tokenizer.json"))
    for text in ("1234 + 12345 = 12!", "It's 3.1415, isn't it?\n\n  yes<|end|>no", *models.TEXTS):
        assert engine.encode(text) == own.encode(text).ids
        assert engine.text(own.encode(text).ids) == own.decode(own.encode(text).ids)


def test_a_way_that_llama_cpp_does_not_have_is_refused_with_the_text_that_tells(tmp_path: Path) -> None:
    model = with_split(kinds.make("Llama", tmp_path / "model"), r"[^1]+|1")
    refused(r"llama\.cpp's tokenizer reads '.*' as \[.*\] instead of \[", forms.make, "gguf-f16", model, tmp_path / "work")


def test_a_tokenizer_with_bytes_is_read_like_sentencepiece_with_its_start(tmp_path: Path) -> None:
    model = kinds.make("Mistral", tmp_path / "model")
    folder, output = forms.make("gguf-bf16", model, tmp_path / "work")
    said = forms.keys(next(folder.glob("*.gguf")))
    assert said["tokenizer.ggml.model"] == "llama" and said["tokenizer.ggml.add_bos_token"] and not said["tokenizer.ggml.add_eos_token"]
    assert output.figures["pre_tokenizer"] == "default"
    engine = forms.engine(folder)
    assert engine.encode("a")[0] == said["tokenizer.ggml.bos_token_id"]
    assert said["tokenizer.ggml.eos_token_id"] in engine.end_tokens


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_where_only_spaces_differ_the_file_is_made_and_says_so(scheme: str, tmp_path: Path) -> None:
    model = kinds.with_spaces(kinds.make("Mistral", tmp_path / "model"), scheme, "{% for m in messages %}[{{ m['content'] }}]{% endfor %}")
    folder, output = forms.make("gguf-bf16", model, tmp_path / "work")
    assert sum("puts a space before each text" in warning for warning in output.warnings) == 1
    from tokenizers import Tokenizer

    engine, own = forms.engine(folder), Tokenizer.from_file(str(model / "tokenizer.json"))
    for text in models.TEXTS:
        assert engine.encode(text) == own.encode(text).ids
        assert engine.text(own.encode(text).ids) == own.decode(own.encode(text).ids)
    assert engine.encode(" a") == own.encode("  a").ids != own.encode(" a").ids


BETWEEN = "{% for m in messages %}{{ m['content'] }}<eos>{% endfor %}"


def without_attention(folder: Path) -> Path:
    """The model, whose next token depends on the last one alone: whatever spaces stand in a chat before its end."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    changed = {name: value * 0 if "o_proj" in name else value for name, value in weights.items()}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_chat_that_llama_cpp_writes_spaces_into_is_made_where_the_answers_stay_and_their_share_is_said(tmp_path: Path) -> None:
    model = kinds.with_spaces(without_attention(kinds.make("Mistral", tmp_path / "model")), "first", BETWEEN)
    _, output = forms.make("gguf-bf16", model, tmp_path / "work")
    assert "with the spaces that llama.cpp's tokenizer puts into a chat, 100% of the tokens of answers stay the same" in output.warnings


def test_a_chat_that_is_answered_otherwise_for_llama_cpps_spaces_is_refused_with_what_reads_it(tmp_path: Path) -> None:
    model = kinds.with_spaces(kinds.make("Mistral", tmp_path / "model"), "first", BETWEEN)
    words = r"behind each special token of a chat.* only \d+% of the tokens of its answers stay the same.* pytorch and onnx"
    refused(words, forms.make, "gguf-f16", model, tmp_path / "work")


WORDS = {
    "type": "WordPiece", "unk_token": "[UNK]", "vocab": {"a": 0, "[UNK]": 1}, "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 9,
}  # fmt: skip
A, B = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
TWO_BEFORE = {
    "type": "TemplateProcessing", "pair": [A, B],
    "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"SpecialToken": {"id": "<|pad|>", "type_id": 0}}, A],
    "special_tokens": {
        token: {"id": token, "ids": [number], "tokens": [token]} for number, token in enumerate(("<|pad|>", "<|end|>"))
    },
}  # fmt: skip


def test_all_tokens_that_end_a_text_are_in_the_file_and_one_too_many_is_refused(tmp_path: Path) -> None:
    model = kinds.make("Llama", tmp_path / "model")
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 300, 301]}))
    folder, _ = forms.make("gguf-bf16", model, tmp_path / "work")
    assert {1, 300, 301} <= set(forms.engine(folder).end_tokens)
    assert forms.keys(next(folder.glob("*.gguf")))["tokenizer.ggml.eos_token_id"] == 1
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 300, 301, 302, 303]}))
    refused(r"llama\.cpp would not end a text at its token", forms.make, "gguf-bf16", model, tmp_path / "other")


REFUSED: dict[str, dict[str, object]] = {
    "is a WordPiece model": {"model": WORDS, "pre_tokenizer": None, "added_tokens": []},
    "more than one token around a text": {"post_processor": TWO_BEFORE},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_a_file_can_not_say_of_a_tokenizer_is_refused(said: str, tmp_path: Path) -> None:
    model = kinds.make("Llama", tmp_path / "model")
    path = model / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **REFUSED[said]}))
    refused(said, forms.make, "gguf-f16", model, tmp_path / "work")


def test_a_tokenizer_that_is_damaged_or_has_more_tokens_than_the_embeddings_is_refused(tmp_path: Path) -> None:
    model = kinds.make("Llama", tmp_path / "model")
    said = json.loads((model / "tokenizer.json").read_bytes())
    said["added_tokens"].append({**said["added_tokens"][0], "id": 320, "content": "<more>"})
    (model / "tokenizer.json").write_text(json.dumps(said))
    refused(r"has the token '<more>' with the id 320, and its embeddings have 320 rows", forms.make, "gguf-f16", model, tmp_path / "work")
    (model / "tokenizer.json").write_text("{")
    refused(r"its tokenizer\.json can't be read", forms.make, "gguf-f16", model, tmp_path / "work")


def test_a_tokenizer_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    model = kinds.make("Llama", tmp_path / "model")
    (model / "tokenizer.json").unlink()
    refused(r"its tokenizer has no tokenizer\.json", forms.make, "gguf-f16", model, tmp_path / "work")
