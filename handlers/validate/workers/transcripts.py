"""What a loaded model's tokenizer makes of texts and ids, and what its loader makes of the files beside the weights.

Called by the worker. Engines say it by methods that they need not have; what they don't say is read from the files by the stage, or stays
unknown.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from handlers.validate.workers.protocol import FilesRead, ReadFiles, Transcribe, Transcript

S = TypeVar("S")
T = TypeVar("T")
TOKENIZER, WORDS = "tokenizer.json", "words.json"


def transcribe(engine: Any, request: Transcribe) -> Transcript:
    """Give the answers of an engine's own tokenizer; None for what it refuses."""
    encode = getattr(engine, "token_ids", engine.encode)
    whole = getattr(engine, "whole_text", None)
    foreign = bool(getattr(engine, "foreign_tokenizer", False))
    alike = foreign and bool(getattr(engine, "alike_tokenizer", False))
    pairs = [] if foreign else _each(lambda pair: engine.encode_pair(*pair), request.pairs)
    return Transcript(
        ids=_each(encode, request.texts),
        pairs=[None if pair is None else pair[0] for pair in pairs],
        types=[None if pair is None else pair[1] for pair in pairs],
        digests=[] if foreign and not alike else [None if ids is None else digest(ids) for ids in _each(encode, request.digested)],
        texts=_each(lambda ids: _plain(engine.text(ids)), request.sequences),
        whole=None if whole is None else _each(lambda ids: _plain(whole(ids)), request.sequences),
        foreign=foreign,
        alike=alike,
    )


def digest(ids: Iterable[int]) -> str:
    """Give what stands for token ids."""
    return hashlib.sha256(json.dumps(list(ids)).encode()).hexdigest()[:12]


def read_files(engine: Any, request: ReadFiles, folder: Path) -> FilesRead:
    """Give what the engine's loader says of the files of `folder`; the tokenizer is written into the folder `request.out`."""
    path, by_transformers = folder / TOKENIZER, hasattr(engine, "vocabulary_map")  # which reads more than this file
    same = not by_transformers and all(file.is_file() for file in (path, Path(request.known))) and _same(path, Path(request.known))
    text = None if same else _of(engine, "tokenizer_json")
    if text is not None:
        Path(request.out, TOKENIZER).write_text(text, encoding="utf-8")
    words = _of(engine, "words")
    if words is not None:
        Path(request.out, WORDS).write_text(json.dumps(words), encoding="utf-8")
    return FilesRead(
        words=words is not None,
        tokenizer=text is not None,
        vocabulary=_of(engine, "vocabulary_map"),
        templates=_of(engine, "chat_templates"),
        generation=_of(engine, "generation_settings"),
        defaults=_of(engine, "generation_defaults"),
        runtime=_of(engine, "runtime_settings"),
        tables=_tables(engine, Path(request.known)),
        modules=_of(engine, "renamed_tensors"),
    )


def _tables(engine: Any, stored: Path) -> str | None:
    """Give what an engine says of the tables of its own tokenizer beside each tokenizer.json of the checkpoint; None where it fits one."""
    method = getattr(engine, "tokenizer_fault", None)
    places = [path for path in (stored.with_name(TOKENIZER), stored) if path.is_file()] if method else []
    faults = [method(json.loads(path.read_text(encoding="utf-8"))) for path in places if method]
    return faults[-1] if faults and all(faults) else None


def _same(first: Path, second: Path) -> bool:
    return first.read_bytes() == second.read_bytes()


def _plain(text: str | None) -> str | None:
    """Give the text with halves of characters, which no JSON holds, in words."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _of(engine: Any, name: str) -> Any:
    method = getattr(engine, name, None)
    with contextlib.suppress(Exception):  # what its library raises about somebody else's files; texts say what is wrong with them
        return None if method is None else method()
    return None


def _each(function: Callable[[S], T | None], values: Iterable[S]) -> list[T | None]:
    results: list[T | None] = []
    for value in values:
        try:
            results.append(function(value))
        except Exception:  # what each library raises about a text that it does not take
            results.append(None)
    return results
