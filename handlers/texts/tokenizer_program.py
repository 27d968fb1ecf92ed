"""Encodes a few texts by a tokenizer.json, in a process of its own (`handlers.child.bounded`). Run by `handlers.texts.tokenizer_trial`.

A question is the file's path and the texts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # before the import: each thread would take address space of its own

import tokenizers

from handlers.child.bounded import serve


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """{"counts": tokens of each text}, {"broken": what the library gives up with}, or {} where it can't read the file."""
    try:
        tokenizer = tokenizers.Tokenizer.from_file(question["file"])
    except Exception:  # the library raises plain exceptions; those who need the tokenizer say what is wrong with it
        return {}
    try:
        return {"counts": [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in question["texts"]]}
    except MemoryError:
        raise
    except BaseException as error:  # the library is written in Rust, whose panics are no `Exception`
        return {"broken": " ".join(str(error).split()) or "it gives no reason"}


if __name__ == "__main__":
    serve(answer)
