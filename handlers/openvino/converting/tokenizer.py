"""The tokenizer as models of OpenVINO's, which OpenVINO GenAI reads: kept only if it reads texts like the folder's tokenizer.json.

Called by the stage `openvino`. Runs inside the toolchain.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.faults.errors import Permanent
from handlers.folder import tokenizers
from handlers.folder.hard_texts import TEXTS
from handlers.openvino import library

ENCODER, DECODER = "openvino_tokenizer.xml", "openvino_detokenizer.xml"


class Unlike(Exception):
    """OpenVINO's tokenizer can't be made, or reads a text otherwise; the message is a clause."""


def place(folder: Path) -> None:
    """Add the tokenizer of `folder` in OpenVINO's form. Raises Unlike."""
    from transformers import AutoTokenizer

    ov, converter = library.openvino(), library.tokenizers()
    try:
        plain = tokenizers.load(folder)
    except Permanent as error:
        raise Unlike(error.fault.cause) from error
    try:
        ours = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        encoder, decoder = converter.convert_tokenizer(ours, with_detokenizer=True)
        ov.save_model(encoder, folder / ENCODER)
        ov.save_model(decoder, folder / DECODER)
        pair = Pair(folder)
    except Exception as error:  # its converters raise types of their own, all of them about what they don't know
        remove(folder)
        lines = str(error).strip().splitlines()
        raise Unlike(f"openvino_tokenizers does not convert it ({lines[0][:200] if lines else type(error).__name__})") from error
    for text in (*TEXTS, *map(str, ours.get_added_vocab())):
        wanted, actual = plain.encode(text), pair.encode(text)
        if wanted != actual or pair.decode(wanted) != plain.decode(wanted):
            remove(folder)
            raise Unlike(f"openvino_tokenizers reads {text!r} otherwise: {actual[:12]} instead of {wanted[:12]}")


def remove(folder: Path) -> None:
    """Take it away again."""
    for name in (ENCODER, DECODER):
        for path in (folder / name, (folder / name).with_suffix(".bin")):
            path.unlink(missing_ok=True)


class Pair:
    """The tokenizer and the detokenizer of a folder, opened."""

    def __init__(self, folder: Path) -> None:
        library.tokenizers()
        core = library.openvino().Core()
        self._encoder, self._decoder = (core.compile_model(str(folder / name), "CPU") for name in (ENCODER, DECODER))

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, special tokens as the tokenizer's own default has them."""
        ids: Any = self._encoder([text])["input_ids"]
        return [int(token) for token in ids[0]]

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, without special tokens."""
        return str(self._decoder(np.array([ids], np.int64).reshape(1, -1))["string_output"][0])
