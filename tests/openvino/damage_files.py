"""Damages of what lies beside the weights of OpenVINO's folders: its tokenizer, what it says of special tokens and templates, and the files
that every folder has. A case without words changes nothing for users. `test_files.py` runs them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.validate.damage_files import TEMPLATE, TOKENIZER, Case, Damage, edit, keys, lose, text, within

READER, WRITER = "openvino_tokenizer", "openvino_detokenizer"
VARIANTS = ("openvino", "openvino-int8")
_CONST = re.compile(r'<layer id="(\d+)"[^>]*type="Const"[^>]*>\s*<data element_type="(\w+)" shape="([^"]*)" offset="(\d+)" size="(\d+)"')
_TYPES = {"u8": np.uint8, "i32": np.int32, "i64": np.int64}


def numbers(name: str, kind: str, place: int, change: Callable[[np.ndarray], np.ndarray]) -> Damage:
    """Change the inputs of an operator that holds tables: the constant at its port `place`, in its bytes."""

    def damage(folder: Path) -> None:
        said = (folder / f"{name}.xml").read_text()
        layer = re.search(rf'<layer id="(\d+)"[^>]*type="{kind}"', said)
        assert layer is not None
        edge = re.search(rf'<edge from-layer="(\d+)" from-port="\d+" to-layer="{layer[1]}" to-port="{place}" />', said)
        assert edge is not None
        _, element, _, offset, size = next(one for one in _CONST.findall(said) if one[0] == edge[1])
        path = folder / f"{name}.bin"
        whole = path.read_bytes()
        start, end = int(offset), int(offset) + int(size)
        array = np.frombuffer(whole[start:end], _TYPES[element]).copy()
        changed = np.ascontiguousarray(change(array), dtype=array.dtype).tobytes()
        assert len(changed) == end - start and changed != whole[start:end]
        path.write_bytes(whole[:start] + changed + whole[end:])

    return damage


def both(*damages: Damage) -> Damage:
    """One after the other."""

    def damage(folder: Path) -> None:
        for one in damages:
            one(folder)

    return damage


def swapped(first: int, second: int) -> Callable[[np.ndarray], np.ndarray]:
    """Two numbers in each other's place."""

    def change(array: np.ndarray) -> np.ndarray:
        array[[first, second]] = array[[second, first]]
        return array

    return change


def bytes_of(before: bytes, after: bytes) -> Callable[[np.ndarray], np.ndarray]:
    """Other letters, as many as before."""

    def change(array: np.ndarray) -> np.ndarray:
        assert len(before) == len(after) and before in array.tobytes()
        return np.frombuffer(array.tobytes().replace(before, after), np.uint8)

    return change


def told(name: str, key: str, value: str) -> Damage:
    """What a file says of itself (rt_info)."""

    def damage(folder: Path) -> None:
        path = folder / f"{name}.xml"
        before = path.read_text()
        after = re.sub(rf"<{key}( value=\"[^\"]*\")? />", f'<{key} value="{value}" />', before)
        assert after != before
        path.write_text(after)

    return damage


def _pair(places: tuple[int, ...], name: str, kind: str, first: int, second: int) -> Damage:
    return both(*(numbers(name, kind, place, swapped(first, second)) for place in places))


_RUNTIME = "its runtime's settings .*"
_TOKENS = "its tokenizer .*"
CASES = tuple(Case(name, VARIANTS, damage, words) for name, damage, words in (
    ("two ids of the reader swapped", _pair((5, 6), READER, "BPETokenizer", 318, 319), f"{_TOKENS}reads other tokens .* id 318 is 'for'"),
    ("two rare ids of the reader swapped", _pair((5, 6), READER, "BPETokenizer", 60, 61), f"{_TOKENS}reads other tokens .* id 60 is"),
    ("two ids of the writer swapped", _pair((1, 2), WRITER, "VocabDecoder", 318, 319), f"{_TOKENS}writes other tokens .* id 318 is"),
    ("merges of the reader in another order", _pair((8, 9, 11, 12), READER, "BPETokenizer", 0, 40), f"{_TOKENS}it merges"),
    ("the last two merges of the reader swapped", _pair((8, 9, 11, 12), READER, "BPETokenizer", -1, -2), f"{_TOKENS}it merges"),
    ("a letter of the reader's vocabulary", numbers(READER, "BPETokenizer", 7, bytes_of(b"<|pad|>", b"<|pax|>")),
     f"{_TOKENS}reads other tokens .* id 0 is '<\\|pax\\|>'"),
    ("a letter of the writer's vocabulary", numbers(WRITER, "VocabDecoder", 3, bytes_of(b"<|pad|>", b"<|pax|>")),
     f"{_TOKENS}writes other tokens .* id 0 is '<\\|pax\\|>'"),
    ("an added token that is not kept together", numbers(READER, "SpecialTokensSplit", 5, bytes_of(b"end", b"enx")), f"{_TOKENS}reads"),
    ("spaces apart from words", numbers(READER, "RegexSplit", 6, bytes_of(rb" ?\p{L}+", rb"_?\p{L}+")), f"{_TOKENS}reads"),
    ("an end that is written out", numbers(WRITER, "VocabDecoder", 4, lambda array: array * 0), f"{_TOKENS}does not leave out"),
    ("a word that is left out", numbers(WRITER, "VocabDecoder", 4, lambda array: np.r_[array[:-1], 319]), f"{_TOKENS}leave out"),
    ("the reader's end", told(READER, "eos_token_id", "5"), f"{_RUNTIME}its tokenizer's eos_token_id is 5 instead of 1"),
    ("the reader's padding", told(READER, "pad_token_id", "4"), f"{_RUNTIME}its tokenizer's pad_token_id is 4 instead of 0"),
    ("the reader's template", told(READER, "chat_template", "{{ messages[0]['content'] }}"), "its chat template writes .* instead of"),
    ("the reader lost", lose(f"{READER}.xml"), "could not be run|openvino_tokenizer"),
    ("the writer lost", lose(f"{WRITER}.xml"), "could not be run|openvino_detokenizer"),
    ("another release", told(READER, "transformers_version", "4.0.0"), None),
    ("another end", keys("generation_config.json", eos_token_id=5), "eos_token_id is 5 instead of 1"),
    ("another end more", keys("generation_config.json", eos_token_id=[1, 5]), f"{_RUNTIME}eos_token_id is \\[1, 5\\]"),
    ("no penalty", keys("generation_config.json", repetition_penalty=None), f"{_RUNTIME}repetition_penalty is 1.0 instead of 1.1"),
    ("another penalty", keys("generation_config.json", repetition_penalty=3.0), f"{_RUNTIME}repetition_penalty is 3.0 instead of 1.1"),
    ("sampling", keys("generation_config.json", do_sample=True), f"{_RUNTIME}do_sample is True"),
    ("another choice", keys("generation_config.json", top_k=3), f"{_RUNTIME}top_k is 3 instead of 20"),
    ("settings of generation lost", lose("generation_config.json"), "lacks generation_config.json"),
    ("two ids of tokenizer.json swapped", edit(TOKENIZER, lambda value: value["model"]["vocab"].update({"for": 318, "es": 319})),
     "its tokenizer gives"),
    ("a token of the template", text(TEMPLATE, "<|end|>", "<|end|>\n"), "its chat_template.jinja writes .* instead of"),
    ("template lost", lose(TEMPLATE), "it has no chat template"),
    ("another theta", within("config.json", "rope_parameters", rope_theta=5e5), "rope_theta is 500000.0|rope_parameters"),
    ("fewer positions", keys("config.json", max_position_embeddings=64), "max_position_embeddings is 64"),
    ("what is usual, in words", keys("generation_config.json", do_sample=False, num_beams=1, eos_token_id=[1]), None),
))  # fmt: skip
ALL = [(case, variant) for case in CASES for variant in case.on]
