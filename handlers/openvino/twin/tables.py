"""The tables inside OpenVINO's tokenizers beside those of a tokenizer.json: which id each token has, the merges, the added tokens.

Used by the engine of language models. Read from the files by the operators that hold the tables, as openvino_tokenizers documents them
(https://github.com/openvinotoolkit/openvino_tokenizers: VocabDecoder, BPETokenizer), without OpenVINO: texts can't show what is wrong with
a token that none of them has. numpy alone.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from daemon.contract.values import Json
from handlers.openvino.twin.ir import Layer, Model

_STRINGS = 3
"""Inputs that make up a list of strings: where each begins, where it ends, the bytes of all."""
_RAGGED = 5
"""Inputs of a list of texts in pieces."""
_SHOWN = 40


def fault(reader: Path, writer: Path, wanted: Json) -> str | None:
    """What the tokenizer in `reader` or the detokenizer in `writer` has otherwise than a tokenizer.json, as a clause; None for nothing.

    A kind of tokenizer whose tables are not known here has none to compare.
    """
    spellings = _spellings(wanted)
    for path, kind, first in ((reader, "BPETokenizer", _RAGGED), (writer, "VocabDecoder", _RAGGED)):
        model = Model(path)
        for layer in (layer for layer in model.layers.values() if layer.kind == kind):
            if kind == "VocabDecoder":
                first = next((at for at, own in enumerate(layer.inputs) if model.layers[own].kind == "Const"), first)
            if clause := _vocabulary_fault(_strings(model, layer, first), spellings):
                return f"{'reads' if path == reader else 'writes'} other tokens by {path.name}: {clause}"
            if path == reader and (clause := _merges_fault(model, layer, wanted)):
                return f"reads other tokens by {path.name}: {clause}"
            if path == writer and (clause := _special_fault(model, layer, first + _STRINGS, wanted)):
                return f"writes other tokens by {path.name}: {clause}"
    return None


def _spellings(wanted: Json) -> dict[int, frozenset[bytes]]:
    """Id → what bytes may stand for its token."""
    vocabulary = wanted.get("model", {}).get("vocab") or {}
    rows = vocabulary.items() if isinstance(vocabulary, dict) else ((piece, place) for place, (piece, _) in enumerate(vocabulary))
    added = {token["id"]: token["content"] for token in wanted.get("added_tokens", [])}
    return {number: _bytes(token) for token, number in rows} | {number: frozenset((token.encode(),)) for number, token in added.items()}


def _bytes(token: str) -> frozenset[bytes]:
    """The bytes of a token: as it is written, or where its characters stand for bytes, or a space is written as a block."""
    plain = {token.encode(), token.replace("\u2581", " ").encode()}
    letters = _letters()
    return frozenset(plain | ({bytes(letters[letter] for letter in token)} if all(letter in letters for letter in token) else set()))


@functools.cache
def _letters() -> Mapping[str, int]:
    """The characters by which byte-level vocabularies write bytes, as GPT-2's encoder.py defines them."""
    printed = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _strings(model: Model, layer: Layer, first: int) -> list[bytes] | None:
    """A list of strings, of which an operator's inputs from `first` on are made; None where they are computed."""
    parts = [model.layers[own] for own in layer.inputs[first : first + _STRINGS]]
    if len(parts) < _STRINGS or any(part.kind != "Const" for part in parts):
        return None
    begins, ends, text = (model.constant(part).reshape(-1) for part in parts)
    whole = np.ascontiguousarray(text).tobytes()
    return [whole[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]


def _vocabulary_fault(tokens: Sequence[bytes] | None, wanted: Mapping[int, frozenset[bytes]]) -> str | None:
    if tokens is None:
        return None
    lost = [number for number in wanted if number >= len(tokens)]
    wrong = [number for number, token in enumerate(tokens) if token not in wanted.get(number, frozenset((b"", token)))]
    if lost:
        return f"it has {len(tokens)} tokens, and none with the id {lost[0]}"
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return f"the id {wrong[0]} is {_short(tokens[wrong[0]])} instead of {_short(min(wanted[wrong[0]]))}{more}"
    return None


def _merges_fault(model: Model, layer: Layer, wanted: Json) -> str | None:
    pairs = [tuple(pair.split(" ", 1)) if isinstance(pair, str) else tuple(pair) for pair in wanted.get("model", {}).get("merges") or []]
    start = _RAGGED + _STRINGS
    left, right = (_strings(model, layer, start + part * _STRINGS) for part in (0, 1))
    if left is None or right is None or not pairs:
        return None
    if len(left) != len(pairs):
        return f"it has {len(left)} merges instead of {len(pairs)}"
    for place, (first, second, pair) in enumerate(zip(left, right, pairs, strict=True)):
        if first not in _bytes(pair[0]) or second not in _bytes(pair[1]):
            return f"it merges {_short(first)}, {_short(second)} where the checkpoint's merges {pair} (merge {place})"
    return None


def _special_fault(model: Model, layer: Layer, place: int, wanted: Json) -> str | None:
    """Which tokens are left out of texts, or not, that should not be."""
    if place >= len(layer.inputs) or (part := model.layers[layer.inputs[place]]).kind != "Const":
        return None
    special = {token["id"] for token in wanted.get("added_tokens", []) if token.get("special")}
    skipped = {int(number) for number in model.constant(part).reshape(-1)}
    if not (wrong := sorted(special ^ skipped)):
        return None
    return f"it {'leaves out' if wrong[0] in skipped else 'does not leave out'} the token with the id {wrong[0]}"


def _short(token: bytes) -> str:
    return repr(token.decode("utf-8", "backslashreplace")[:_SHOWN])
