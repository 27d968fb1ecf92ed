"""Whether an artifact's tokenizer is the checkpoint's: its parts as tokenizer.json names them, and what it makes of texts and ids. Pure.

Vocabulary, merges and added tokens are compared whole. Whatever else two tokenizer.json say in different words is compared by what the
tokenizers make of the texts of `probes`; another implementation than that of transformers may read rare texts in its own way, so of one the
words themselves must be equal, and it is told what it reads otherwise.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from daemon.contract.values import Json
from handlers.validate.engines.arrays import same_start
from handlers.validate.files.probes import PLAIN, TEXTS
from handlers.validate.workers.protocol import Transcribe, Transcript

PARTS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
"""Parts that are functions of texts or tokens."""
_USUAL = {"use_regex": True, "trim_offsets": True, "split": True, "individual_digits": False, "prepend_scheme": "always", "cleanup": True}
"""Keys of parts that older files lack, and what they mean then."""
RARE = 0.25
"""Share of the texts, which are rare ones, that an implementation of another kind may read otherwise."""
_SHOWN, _NAMED = 60, 3
APART = 0.1
"""Share of rare texts that another implementation which was kept for reading hard texts alike may read otherwise. Measured: 1 of 32."""


def vocabulary_fault(tokenizer: Json, wanted: Sequence[Json]) -> str | None:
    """Say which tokens, merges or added tokens of a tokenizer.json are those of none of `wanted`, as a clause; None where all are."""
    for part, compare in (("vocab", _tokens_fault), ("merges", merges_fault), ("settings", _settings_fault), ("added", _added_fault)):
        faults = [compare(_part(tokenizer, part), _part(other, part)) for other in wanted]
        if faults and all(faults):
            return faults[-1]
    return None


def other_parts(tokenizer: Json, wanted: Sequence[Json]) -> list[str]:
    """Give parts that none of `wanted` has in these words."""
    return [name for name in PARTS if all(_plain(tokenizer.get(name)) != _plain(other.get(name)) for other in wanted)]


def limits_fault(tokenizer: Json, wanted: Sequence[Json]) -> str | None:
    """Say that it cuts or fills texts as none of `wanted` does, as a clause. One that does neither leaves it to the reader."""
    for name, word in (("truncation", "cuts texts"), ("padding", "fills texts up")):
        mine = tokenizer.get(name)
        if mine is not None and all(mine != other.get(name) for other in wanted):
            return f"{word} in a way that the checkpoint's does not ({name} is {json.dumps(mine, ensure_ascii=False)[:_SHOWN]})"
    return None


def map_fault(vocabulary: dict[str, int], wanted: dict[str, int]) -> str | None:
    """Say which token has another id, as a clause."""
    return _tokens_fault(
        {token: (number, None) for token, number in vocabulary.items()}, {token: (number, None) for token, number in wanted.items()}
    )


def transcript_fault(asked: Transcribe, transcript: Transcript, wanted: Transcript) -> str | None:
    """Give the first text or sequence of ids of which a tokenizer makes something else, as a clause; None where there is none.

    Of a foreign implementation only plain texts count, and `told_apart` says the rest. Of one that is alike all count as soon as more than
    a few are read otherwise.
    """
    strict = not transcript.foreign or (transcript.alike and _far(asked, transcript, wanted))
    count = len(asked.texts) if strict else len(PLAIN)
    for text, mine, theirs in zip(asked.texts[:count], transcript.ids, wanted.ids, strict=False):
        if mine != theirs:
            return f"reads {_short(text)} as {_ids(mine)} instead of {_ids(theirs)}"
    for (first, second), mine, theirs in zip(asked.pairs, transcript.pairs, wanted.pairs, strict=False):
        if mine is not None and theirs is not None and mine != theirs:  # some readers know no pairs
            return f"reads the pair {_short(first)}, {_short(second)} as {_ids(mine)} instead of {_ids(theirs)}"
    for (first, second), mine, theirs in zip(asked.pairs, transcript.types, wanted.types, strict=False):
        if mine is not None and theirs is not None and mine != theirs:
            return f"gives the pair {_short(first)}, {_short(second)} the segments {_ids(mine)} instead of {_ids(theirs)}"
    sides = (("", transcript.texts, wanted.texts), (" with special tokens", transcript.whole or [], wanted.whole or []))
    for what, mine_all, theirs_all in sides if any(text is not None for text in transcript.whole or []) else sides[:1]:
        for ids, mine_text, theirs_text in zip(asked.sequences[: None if strict else count], mine_all, theirs_all, strict=False):
            if mine_text != theirs_text:
                return f"decodes {_ids(ids)} as {_short(mine_text)} instead of {_short(theirs_text)}{what}"
    for text, mine_digest, theirs_digest in zip(asked.digested, transcript.digests if strict else [], wanted.digests, strict=False):
        if mine_digest != theirs_digest:
            return f"reads {_short(text)} as other ids"
    return None


def puts_first(answered: Transcript, first: Any, canonical: Json) -> bool:
    """Tell whether a tokenizer put the token that its configuration names as the first one before each text."""
    name = first.get("content") if isinstance(first, dict) else first
    ids = {entry.get("id") for entry in canonical.get("added_tokens") or [] if entry.get("content") == name}
    return bool(ids and answered.ids) and all(row is None or (row and row[0] in ids) for row in answered.ids)


def _far(asked: Transcribe, transcript: Transcript, wanted: Transcript) -> bool:
    """Tell whether more than a few of the texts, of those with added tokens, of the characters or of the sequences of ids become others."""
    count = len(TEXTS)
    sides = (
        (transcript.ids[:count], wanted.ids[:count]), (transcript.ids[count:], wanted.ids[count:]), (transcript.digests, wanted.digests),
        (transcript.texts, wanted.texts),
    )  # fmt: skip
    return any(sum(mine != theirs for mine, theirs in zip(ours, others, strict=False)) > APART * len(others) for ours, others in sides)


def told_apart(asked: Transcribe, transcript: Transcript, wanted: Transcript) -> list[str]:
    """Give texts that another implementation reads otherwise than transformers does."""
    return [
        text for text, mine, theirs in zip(asked.texts, transcript.ids, wanted.ids, strict=False) if transcript.foreign and mine != theirs
    ]


def merges_fault(merges: Sequence[tuple[str, ...]], wanted: Sequence[tuple[str, ...]]) -> str | None:
    """Give where a list of pairs that are joined, the first ones first, is another than `wanted`, as a clause; None where it is not."""
    if merges == wanted:
        return None
    if len(merges) != len(wanted):
        return f"has {len(merges)} merges instead of {len(wanted)}"
    place = same_start(merges, wanted)
    return f"merges {merges[place]} where the checkpoint's merges {wanted[place]} (merge {place})"


def too_far_apart(asked: Transcribe, transcript: Transcript, wanted: Transcript) -> str | None:
    """Say that another implementation reads more than some rare texts otherwise, as a clause.

    Texts around added tokens don't count: which tokens stand for themselves is compared by name, and SentencePiece's readers write a space
    behind each of them or don't.
    """
    apart = [text for text in told_apart(asked, transcript, wanted) if text in TEXTS]
    if len(apart) <= RARE * len(TEXTS):
        return None
    return f"reads {len(apart)} of {len(TEXTS)} texts otherwise, {_short(apart[0])} among them"


def _part(tokenizer: Json, name: str) -> Any:
    model = tokenizer.get("model") or {}
    if name == "vocab":
        vocabulary = model.get("vocab") or {}
        rows = (
            vocabulary.items() if isinstance(vocabulary, dict) else ((piece, (at, score)) for at, (piece, score) in enumerate(vocabulary))
        )
        tokens = {token: value if isinstance(value, tuple) else (value, None) for token, value in rows}
        return tokens | {row["content"]: (row["id"], None) for row in tokenizer.get("added_tokens", []) if row["content"] not in tokens}
    if name == "merges":
        return [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model.get("merges") or []]
    if name == "settings":
        return _plain({key: value for key, value in model.items() if key not in ("vocab", "merges")})
    return {token["content"]: _plain(token) for token in tokenizer.get("added_tokens", [])}


def _tokens_fault(tokens: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    if tokens == wanted:
        return None
    lost = [token for token in wanted if token not in tokens]
    more = [token for token in tokens if token not in wanted]
    moved = [token for token in wanted if token in tokens and not _alike(tokens[token], wanted[token])]
    if not lost and not more and not moved:
        return None
    if moved:
        token = moved[0]
        (mine, score), (theirs, other) = tokens[token], wanted[token]
        what = f"id {mine} instead of {theirs}" if mine != theirs else f"the score {score:.4g} instead of {other:.4g}"
        return (
            f"gives {_short(token)} the {what}{_others(len(moved))}"
            if mine != theirs
            else f"gives {_short(token)} {what}{_others(len(moved))}"
        )
    token, word, end = (lost[0], "lacks", "") if lost else (more[0], "has", ", which the checkpoint's has not")
    number = (wanted if lost else tokens)[token][0]
    return f"{word} the token {_short(token)} (id {number}){_others(len(lost or more))}{end}"


def _alike(entry: tuple[int, float | None], wanted: tuple[int, float | None]) -> bool:
    """Tell whether id and score of a token are the same, a score to the digits that every writer of JSON keeps."""
    mine, theirs = entry[1], wanted[1]
    return entry[0] == wanted[0] and (mine == theirs or (None not in entry + wanted and math.isclose(mine or 0, theirs or 0, rel_tol=1e-9)))


def _settings_fault(settings: Json, wanted: Json) -> str | None:
    wrong = [key for key in {**wanted, **settings} if settings.get(key) != wanted.get(key)]
    if not wrong:
        return None
    return f"has the setting {wrong[0]} = {settings.get(wrong[0], 'none')!r} instead of {wanted.get(wrong[0], 'none')!r}"


def _added_fault(tokens: dict[str, Json], wanted: dict[str, Json]) -> str | None:
    if tokens == wanted:
        return None
    for token in {**wanted, **tokens}:
        if token not in tokens:
            return f"does not keep {_short(token)} together, which is an added token of the checkpoint's"
        if token not in wanted:
            return f"keeps {_short(token)} together, which is no added token of the checkpoint's"
        if tokens[token] != wanted[token]:
            mine, theirs = tokens[token], wanted[token]
            keys = [key for key in {**theirs, **mine} if mine.get(key) != theirs.get(key)]
            return (
                f"has the added token {_short(token)} with {keys[0]} = {mine.get(keys[0], False)} instead of {theirs.get(keys[0], False)}"
            )
    return None


def _plain(value: Any) -> Any:
    """Give a part without the keys that say nothing, so that releases of the library which write more of them compare equal."""
    if isinstance(value, dict):
        kept = {key: _plain(part) for key, part in value.items() if part not in (None, False, "", [], {}) and _USUAL.get(key) != part}
        return kept
    return [_plain(part) for part in value] if isinstance(value, list) else value


def _others(count: int) -> str:
    return f", and {count - 1} more" if count > 1 else ""


def _ids(ids: Iterable[int] | None) -> str:
    if ids is None:
        return "nothing, since it refuses it,"
    listed = list(ids)
    return f"[{', '.join(map(str, listed[:12]))}{', …' if len(listed) > 12 else ''}]"


def _short(text: str | None) -> str:
    return "nothing" if text is None else repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
