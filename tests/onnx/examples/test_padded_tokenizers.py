"""A tokenizer.json may hold the padding and the length of a training's batches: the examples read a text as it is."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from handlers.folder import examples
from handlers.texts import rendering
from handlers.texts.chat import ChatTemplate

TEXT = "one two three four"
IDS = [2, 3, 4, 5, 6]
"""A token that begins a text, and one for each word."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a tokenizer.json that pads on the left to twelve tokens, and cuts behind three."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = {"[PAD]": 0, "[UNK]": 1, "<s>": 2, **{word: place for place, word in enumerate(TEXT.split(), 3)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 2)])
    tokenizer.enable_padding(direction="left", length=12)
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def script(name: str, folder: Path) -> ModuleType:
    """An example as it lies in the folder of an export."""
    path = Path(shutil.copy(Path(examples.__file__).parent / f"{name}.py", folder / "example.py"))
    spec = importlib.util.spec_from_file_location(f"example_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_example_that_continues_a_text_reads_it_without_padding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []

    def generate(_: Any, tokens: list[int], count: int, penalty: float) -> list[int]:
        read.append(tokens)
        return []

    module = script("causal", folder)
    monkeypatch.setattr(module, "generate", generate)
    monkeypatch.setattr(module, "Steps", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["example.py", TEXT])
    module.main()
    assert read == [IDS]


def test_an_example_that_translates_reads_a_source_without_padding(folder: Path) -> None:
    encode, _ = script("seq2seq", folder).codec()
    assert encode(TEXT) == IDS


def test_an_example_of_activations_reads_a_text_without_padding(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[list[int]] = []

    def run(ids: list[int], types: list[int], names: list[str]) -> dict[str, Any]:
        read.append(ids)
        return {}

    (folder / "activations.json").write_text(json.dumps({"outputs": []}), encoding="utf-8")
    module = script("activations", folder)
    monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(sys, "argv", ["example.py", TEXT])
    module.main()
    assert read == [IDS]


def test_a_token_that_begins_texts_is_seen_behind_padding(folder: Path) -> None:
    template = ChatTemplate("", {"bos_token": "<s>"})
    assert rendering._begins(folder, template) == "<s>"
