"""A Marian's SentencePiece models and vocab.json as one tokenizer.json, kept only if it reads hard texts as the folder's own reader does.

Called by `tokenizer`. Source and target language share the ids of vocab.json. A piece that only the target's model has must not be read out
of a source text, and must still be written: a mark that no text has stands in front of it, which the decoder takes away again. A single
character of the target's that no source piece has is read nonetheless: SentencePiece leaves it as it is, unknown, and vocab.json has a
number for it; but characters that are unknown to the source and stand side by side are one unknown, whatever they are. Two things are
read otherwise than by transformers: a language code counts wherever it stands, not only in front, and one that the model does not know is
read by its characters.
"""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as pieces
from tokenizers import Tokenizer

from daemon.contract.values import Json
from handlers.folder.hard_texts import TEXTS
from handlers.folder.tokenizers import FolderTokenizer
from handlers.models.files import read_json

MARK = "\ue000"
"""A character for private use, in front of the target's own pieces."""
UNKNOWN = "\ue001"
"""Another one, instead of several characters that the source does not know."""
SPACE = "▁"
SPECIAL = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>"}
"""Their usual texts, where tokenizer_config.json names no others."""
_NORMAL, _UNIGRAM = 1, 1
_SYNTAX = "\\]^-[&~#"
"""What has a meaning between the brackets of a regular expression, here or in a browser."""
_OPERATION = "read the tokenizer of a Marian model"


class DiffersError(Exception):
    """It can't be written so; the message is a clause."""


def made(folder: Path, own: FolderTokenizer) -> Json:
    """The tokenizer.json of a folder, which `own` reads. Raises DiffersError."""
    if (folder / "target_vocab.json").is_file():
        raise DiffersError("its two languages have vocabularies of their own, and transformers.js reads one")
    written = _written(folder)
    try:
        reader = Tokenizer.from_str(json.dumps(written))
    except Exception as error:  # its own type, which has no name
        raise DiffersError(f"its SentencePiece model can't be written as a tokenizer.json ({error})") from error
    known = {entry["content"] for entry in written["added_tokens"]}
    for text in (*TEXTS, *_strangers(written)):
        if text.startswith(">>") and text[: text.find("<<") + 2] not in known:
            continue  # see above
        if reader.encode(text).ids != own.encode(text):
            raise DiffersError(f"a tokenizer.json reads the text {text!r} otherwise than its SentencePiece model")
    ids = sorted(number for token, number in reader.get_vocab().items() if token not in known)
    for start in range(0, len(ids), 50):
        text = reader.decode(ids[start : start + 50], skip_special_tokens=True)
        if text.strip() != own.decode(ids[start : start + 50]):  # a tokenizer.json leaves spaces at the ends
            raise DiffersError("a tokenizer.json writes its pieces otherwise than its SentencePiece model")
    return written


def _written(folder: Path) -> Json:
    model: Any = pieces.ModelProto()  # type: ignore[attr-defined]  # protobuf makes it at run time
    model.ParseFromString((folder / "source.spm").read_bytes())
    if model.trainer_spec.model_type != _UNIGRAM or model.trainer_spec.byte_fallback or model.trainer_spec.treat_whitespace_as_suffix:
        raise DiffersError("its SentencePiece model is of a kind that is not written as a tokenizer.json here")
    ids: dict[str, int] = read_json(folder / "vocab.json", _OPERATION)
    if sorted(ids.values()) != list(range(len(ids))):
        raise DiffersError("the numbers of its vocab.json have gaps")
    scores = {piece.piece: float(piece.score) for piece in model.pieces if piece.type == _NORMAL}
    if lost := [piece for piece in scores if piece not in ids]:
        raise DiffersError(f"its vocab.json has no number for {len(lost)} pieces of its source.spm, {lost[0]!r} for example")
    config = read_json(folder / "tokenizer_config.json", _OPERATION)
    named = {key: _text(config.get(key)) or usual for key, usual in SPECIAL.items()}
    codes = [token for token in ids if token.startswith(">>") and token.endswith("<<")]
    added = [(token, True) for token in named.values() if token in ids] + [(token, False) for token in codes]
    plain = {token for token, _ in added}
    letters = {letter for piece in scores for letter in piece}
    strangers = [token for token in ids if len(token) == 1 and token not in letters and token != MARK]
    read = {**dict.fromkeys(strangers, 0.0), **scores}
    order = sorted(ids, key=lambda token: ids[token])
    vocabulary = [
        [token, 0.0] if token in plain else [token, read[token]] if token in read else [MARK + token, 0.0] for token in order
    ]  # fmt: skip
    end = named["eos_token"]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": ids[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": special}
            for token, special in sorted(added, key=lambda pair: ids[pair[0]])
        ],
        "normalizer": _normalizer(model.normalizer_spec, letters if strangers else None),
        "pre_tokenizer": _metaspace(model.normalizer_spec),
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}}],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 0}}, {"SpecialToken": {"id": end, "type_id": 0}},
            ],
            "special_tokens": {end: {"id": end, "ids": [ids[end]], "tokens": [end]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"String": MARK}, "content": ""}, _metaspace(model.normalizer_spec)],
        },
        "model": {"type": "Unigram", "unk_id": ids[named["unk_token"]], "vocab": vocabulary, "byte_fallback": False},
    }  # fmt: skip


def _text(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _metaspace(spec: Any) -> Json:
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always" if spec.add_dummy_prefix else "never", "split": True}


def _strangers(written: Json) -> list[str]:
    """Texts with characters that only the target knows, alone and side by side."""
    characters = [token for token, _ in written["model"]["vocab"] if len(token) == 1 and token.isalpha()]
    return [f"a {first} b{first} {first}{second}. {second}" for first, second in itertools.pairwise(characters)]


def _normalizer(spec: Any, letters: set[str] | None) -> Json:
    """`letters`: all that the source knows, where several others side by side are one unknown."""
    steps: list[Json] = [{"type": "Replace", "pattern": {"String": MARK}, "content": ""}]
    if spec.precompiled_charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(spec.precompiled_charsmap).decode()})
    if spec.remove_extra_whitespaces:
        steps += [
            {"type": "Strip", "strip_left": True, "strip_right": True},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]
    if letters is not None:
        known = "".join(f"\\{letter}" if letter in _SYNTAX else letter for letter in sorted({*letters, " "}))
        steps.append({"type": "Replace", "pattern": {"Regex": f"[^{known}]{{2,}}"}, "content": UNKNOWN})
    return {"type": "Sequence", "normalizers": steps}
