"""The tokenizer of an ONNX folder: the files that training or the base have, made one that runs without transformers.

Called by the onnx stage once the graphs and the configuration lie in the folder. Where there is no tokenizer.json, transformers' own
reading of the files is written as one; a Marian's can't be written so, and gets a reader of its own beside its files instead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoTokenizer

from handlers.child import foreign
from handlers.folder import examples, tokenizers
from handlers.folder.hard_texts import TEXTS
from handlers.models.files import copy_tokenizer


@dataclass(frozen=True)
class Completed:
    """What was found and made."""

    form: str | None
    """"tokenizer.json" as it came, "written" by transformers, "marian" with its reader, or None where nothing here can read it."""
    warning: str | None = None
    chat_template: bool = False
    """Whether the folder has a chat template, and what fills it in."""


def place(checkpoint: Path, base: Path | None, folder: Path) -> Completed:
    """Copy the tokenizer, see `copy_tokenizer`, and add to `folder` what it needs to be read without transformers."""
    copied = copy_tokenizer(checkpoint, base, folder)
    if copied.source is None:
        return Completed(None, "neither the checkpoint nor the base has a tokenizer")
    completed = replace(complete(folder), chat_template=copied.chat_template)
    if copied.chat_template:
        examples.place_beside(examples.CHAT, folder)
    return completed


def complete(folder: Path) -> Completed:
    """Add to `folder`, which has a tokenizer, what it needs to be read without transformers; its own files stay as they are."""
    if (folder / "tokenizer.json").is_file():
        return Completed("tokenizer.json")
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        if isinstance(tokenizer, transformers.MarianTokenizer):
            return _marian(tokenizer, folder)
    except Exception as error:  # whatever is wrong with files of somebody else's making, the graphs are sound without them
        return _unread(f"its files can't be read ({foreign.in_words(error)})")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return _unread(f"transformers' {type(tokenizer).__name__} can't be written as a tokenizer.json")
    backend.save(str(folder / "tokenizer.json"))
    return Completed("written")


def _marian(tokenizer: Any, folder: Path) -> Completed:
    """Place the reader, unless it reads some text otherwise than transformers."""
    reader = tokenizers.load(folder)
    inside = [f"a {token}  b{token}" for token in tokenizer.added_tokens_encoder]
    for text in (*TEXTS, *inside):
        ids, made = list(tokenizer(text)["input_ids"]), list(tokenizer(text_target=text)["input_ids"])
        if reader.encode(text) != ids or reader.decode(made) != tokenizer.decode(made, skip_special_tokens=True):
            return _unread(f"the text {text!r} becomes other tokens without transformers than with it")
    examples.place_beside(examples.MARIAN, folder)
    return Completed("marian")


def _unread(why: str) -> Completed:
    return Completed(None, f"the folder's tokenizer needs transformers, so {examples.NAME} takes no text: {why}")
