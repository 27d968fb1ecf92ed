"""Texts to token ids and back for a Marian (Opus-MT) model, by the files of its folder: source.spm, target.spm, vocab.json.

    tokenizer = MarianTokenizer(Path("."))
    tokenizer.decode(tokenizer.encode("How are you?"))

Needs sentencepiece alone. Ids and texts are those of transformers' class of that name: SentencePiece divides a text into pieces,
vocab.json numbers them, a language code in front (`>>deu<<`) is one token, and special tokens inside of a text are themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DEFAULTS = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
LOOSE = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
"""What loses its spaces, in this order, where tokenizer_config.json says clean_up_tokenization_spaces."""


class MarianTokenizer:
    """A folder's tokenizer. OSError or KeyError where a file or the unknown token is missing; RuntimeError where a model can't be read."""

    def __init__(self, folder: Path) -> None:
        config = _json(folder / "tokenizer_config.json", {})
        options = config.get("sp_model_kwargs") or {}
        apart = bool(config.get("separate_vocabs"))
        self._ids: dict[str, int] = _json(folder / "vocab.json")
        targets: dict[str, int] = _json(folder / "target_vocab.json") if apart else self._ids
        self._tokens = {number: token for token, number in targets.items()}
        self._source = _model(folder / "source.spm", options)
        # A vocabulary that both languages share is turned into text by the source's model, as transformers does.
        self._target = _model(folder / "target.spm", options) if apart else self._source
        added, named, more = _added(folder, config)
        self._unknown = self._ids[named["unk_token"]]
        self._properties = {token["content"]: token for token in added.values()}
        self._numbers: dict[str, int] = {token["content"]: number for number, token in added.items()}
        for token in dict.fromkeys([*named.values(), *more]):
            known = self._ids | self._numbers
            self._numbers.setdefault(token, known.get(token, len(known)))
        self.added: dict[int, str] = {number: token for token, number in self._numbers.items()}
        """Id → text of the tokens that a text is never divided within."""
        self._special = set(named.values()) | set(more)
        self._skipped = {self._numbers[token] for token in self._special}
        self._end = self._numbers[named["eos_token"]]
        self._whole = bool(config.get("split_special_tokens"))
        self._tidy = bool(config.get("clean_up_tokenization_spaces"))
        self._pattern = re.compile("(" + "|".join(re.escape(token) for token in sorted(self._numbers, key=len, reverse=True)) + ")")

    def __len__(self) -> int:
        return len(self._ids | self._numbers)

    def encode(self, text: str) -> list[int]:
        """Ids of a source text, its end token included."""
        tokens: list[str] = []
        for part in [text] if self._whole else self._parts(text):
            tokens += [part] if part in self._numbers and not self._whole else self._pieces(part)
        return [*(self._numbers.get(token, self._ids.get(token, self._unknown)) for token in tokens), self._end]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of target ids, without special tokens."""
        done, pieces = "", list[str]()
        for number in ids:
            if number in self._skipped:
                continue
            token = self._token(int(number))
            if token in self._special:  # known to the SentencePiece model under an id that vocab.json gives to nothing
                done, pieces = f"{done}{self._target.decode_pieces(pieces)}{token} ", []
            else:
                pieces.append(token)
        text = str(done + self._target.decode_pieces(pieces)).replace("▁", " ").strip()
        for loose in LOOSE if self._tidy else ():
            text = text.replace(loose, loose.strip())
        return text

    def _token(self, number: int) -> str:
        if number in self.added:
            return self.added[number]
        return self._tokens[number] if number in self._tokens else str(self._target.IdToPiece(number))

    def _pieces(self, text: str) -> list[str]:
        """The pieces of a text between added tokens, the language code before it as one."""
        end = text.find("<<") + 2 if text.startswith(">>") and "<<" in text else 0
        return [*([text[:end]] if end else []), *self._source.encode(text[end:], out_type=str)]

    def _parts(self, text: str) -> list[str]:
        """The text divided at its added tokens, which take the spaces beside them where their properties say so."""
        parts = [part for part in self._pattern.split(text) if part]
        for place, part in enumerate(parts):
            token = self._properties.get(part, {})
            before, after = parts[place - 1] if place else "", parts[place + 1] if place + 1 < len(parts) else ""
            if token.get("rstrip") and after:
                parts[place + 1] = after.lstrip()
            if token.get("lstrip") and before:
                parts[place - 1] = before.rstrip()
            if token.get("single_word") and before and before[-1] != " ":
                parts[place - 1], parts[place] = parts[place - 1] + part, ""
            elif token.get("single_word") and after and after[0] != " ":
                parts[place], parts[place + 1] = "", part + parts[place + 1]
        return [part for part in parts if part]


def _added(folder: Path, config: Mapping[str, Any]) -> tuple[dict[int, dict[str, Any]], dict[str, str], list[str]]:
    """Tokens with ids of their own, special tokens by name, and further special tokens, as the folder's files give them.

    Folders that older releases wrote have special_tokens_map.json and added_tokens.json instead of `added_tokens_decoder`.
    """
    settings = dict(config)
    listed = settings.get("added_tokens_decoder")
    more = settings.get("extra_special_tokens") or settings.get("additional_special_tokens") or []
    named = {key: value for key, value in settings.items() if key.endswith("_token") and (key in NAMES or isinstance(value, str))}
    if isinstance(more, dict):
        named, more = named | more, settings.get("additional_special_tokens") or []
    if listed is None:
        older = _json(folder / "special_tokens_map.json", {})
        named |= {key: value for key, value in older.items() if key in NAMES}
        more = [*more, *(older.get("extra_special_tokens") or [])]
        listed = {number: {"content": token} for token, number in _json(folder / "added_tokens.json", {}).items()}
    ordered = {name: named.get(name, DEFAULTS.get(name)) for name in (*NAMES, *(key for key in named if key not in NAMES))}
    added = {int(number): token for number, token in listed.items()}
    return added, {name: _text(token) for name, token in ordered.items() if token is not None}, [_text(token) for token in more]


def _text(token: Any) -> str:
    return str(token["content"] if isinstance(token, dict) else token)


def _model(path: Path, options: Mapping[str, Any]) -> SentencePieceProcessor:
    model = SentencePieceProcessor(**options)
    model.Load(str(path))
    return model


def _json(path: Path, missing: Any = None) -> Any:
    """A file's JSON; `missing` where there is none and something stands for it."""
    return missing if missing is not None and not path.is_file() else json.loads(path.read_text(encoding="utf-8"))
