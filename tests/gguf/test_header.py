"""The keys of a GGUF file are read as they are written; what is no such file is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from handlers.gguf.reading import header


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _file(path: Path, *entries: bytes) -> Path:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries)) + b"".join(entries))
    return path


def test_numbers_texts_and_lists_of_both_are_read(tmp_path: Path) -> None:
    path = _file(
        tmp_path / "a.gguf",
        _text("general.architecture") + struct.pack("<I", 8) + _text("llama"),
        _text("llama.rope.freq_base") + struct.pack("<If", 6, 10000.0),
        _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 3) + _text("a") + _text("▁é") + _text(""),
        _text("tokenizer.ggml.token_type") + struct.pack("<IIQ3i", 9, 5, 3, 1, 3, -6),
        _text("tokenizer.ggml.add_bos_token") + struct.pack("<I?", 7, True),
        _text("llama.context_length") + struct.pack("<II", 4, 131072),
    )
    assert header.read(path).keys == {
        "general.architecture": "llama", "llama.rope.freq_base": 10000.0, "tokenizer.ggml.tokens": ["a", "▁é", ""],
        "tokenizer.ggml.token_type": [1, 3, -6], "tokenizer.ggml.add_bos_token": True, "llama.context_length": 131072,
    }  # fmt: skip


def test_what_is_no_gguf_file_or_is_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.gguf").write_bytes(b"GGML" + bytes(40))
    with pytest.raises(ValueError, match=r"b\.gguf is no GGUF file"):
        header.read(tmp_path / "b.gguf")
    path = _file(tmp_path / "c.gguf", _text("a.number") + struct.pack("<I", 4))
    with pytest.raises(ValueError, match=r"keys of c\.gguf can't be read"):
        header.read(path)


def test_a_damaged_beginning_of_a_file_is_read_or_said_to_be_none(tmp_path: Path) -> None:
    """Each byte in turn becomes each of a few, and lists lie in lists."""
    path = _file(
        tmp_path / "d.gguf",
        _text("general.alignment") + struct.pack("<II", 4, 32),
        _text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + _text("a") + _text("é"),
        _text("tokenizer.ggml.token_type") + struct.pack("<IIQ2i", 9, 5, 2, 1, 3),
    )
    tensor = _text("output.weight") + struct.pack("<I2QIQ", 2, 4, 4, 0, 0)
    whole = path.read_bytes().replace(struct.pack("<QQ", 0, 3), struct.pack("<QQ", 1, 3), 1) + tensor
    path.write_bytes(whole)
    assert [entry.sizes for entry in header.read(path).entries] == [(4, 4)]
    damaged = [whole[:place] + bytes([value]) + whole[place + 1 :] for place in range(4, len(whole)) for value in (0, 1, 9, 255)]
    nested = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + _text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000
    refused = 0
    for data in (*damaged, nested):
        path.write_bytes(data)
        try:
            header.read(path)
        except ValueError as error:
            assert "d.gguf" in str(error)
            refused += 1
    assert refused > 100
