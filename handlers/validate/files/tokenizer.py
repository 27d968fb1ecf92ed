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


def vocabulary_fault(found: Json, wanted: Sequence[Json]) -> str | None:
    """Which tokens, merges or added tokens of a tokenizer.json are those of none of `wanted`, as a clause; None where all are."""
    for part, compare in (("vocab", _tokens_fault), ("merges", merges_fault), ("settings", _settings_fault), ("added", _added_fault)):
        told = [compare(_part(found, part), _part(one, part)) for one in wanted]
        if told and all(told):
            return told[-1]
    return None


def other_parts(found: Json, wanted: Sequence[Json]) -> list[str]:
    """Parts that none of `wanted` has in these words."""
    return [name for name in PARTS if all(_plain(found.get(name)) != _plain(one.get(name)) for one in wanted)]


def limits_fault(found: Json, wanted: Sequence[Json]) -> str | None:
    """That it cuts or fills texts as none of `wanted` does, as a clause. One that does neither leaves it to the reader."""
    for name, word in (("truncation", "cuts texts"), ("padding", "fills texts up")):
        mine = found.get(name)
        if mine is not None and all(mine != one.get(name) for one in wanted):
            return f"{word} in a way that the checkpoint's does not ({name} is {json.dumps(mine, ensure_ascii=False)[:_SHOWN]})"
    return None


def map_fault(found: dict[str, int], wanted: dict[str, int]) -> str | None:
    """Which token has another id, as a clause."""
    return _tokens_fault(
        {token: (number, None) for token, number in found.items()}, {token: (number, None) for token, number in wanted.items()}
    )


def transcript_fault(asked: Transcribe, found: Transcript, wanted: Transcript) -> str | None:
    """The first text or sequence of ids of which a tokenizer makes something else, as a clause; None where there is none.

    Of a foreign implementation only plain texts count, and `told_apart` says the rest. Of one that is alike all count as soon as more than
    a few are read otherwise.
    """
    strict = not found.foreign or (found.alike and _far(asked, found, wanted))
    count = len(asked.texts) if strict else len(PLAIN)
    for text, mine, theirs in zip(asked.texts[:count], found.ids, wanted.ids, strict=False):
        if mine != theirs:
            return f"reads {_short(text)} as {_ids(mine)} instead of {_ids(theirs)}"
    for (first, second), mine, theirs in zip(asked.pairs, found.pairs, wanted.pairs, strict=False):
        if mine is not None and theirs is not None and mine != theirs:  # some readers know no pairs
            return f"reads the pair {_short(first)}, {_short(second)} as {_ids(mine)} instead of {_ids(theirs)}"
    for (first, second), mine, theirs in zip(asked.pairs, found.types, wanted.types, strict=False):
        if mine is not None and theirs is not None and mine != theirs:
            return f"gives the pair {_short(first)}, {_short(second)} the segments {_ids(mine)} instead of {_ids(theirs)}"
    sides = (("", found.texts, wanted.texts), (" with special tokens", found.whole or [], wanted.whole or []))
    for what, mine_all, theirs_all in sides if any(one is not None for one in found.whole or []) else sides[:1]:
        for ids, mine_text, theirs_text in zip(asked.sequences[: None if strict else count], mine_all, theirs_all, strict=False):
            if mine_text != theirs_text:
                return f"decodes {_ids(ids)} as {_short(mine_text)} instead of {_short(theirs_text)}{what}"
    for text, mine_digest, theirs_digest in zip(asked.digested, found.digests if strict else [], wanted.digests, strict=False):
        if mine_digest != theirs_digest:
            return f"reads {_short(text)} as other ids"
    return None


def _far(asked: Transcribe, found: Transcript, wanted: Transcript) -> bool:
    """Whether more than a few of the texts, of those with added tokens, of the characters or of the sequences of ids become others."""
    count = len(TEXTS)
    sides = (
        (found.ids[:count], wanted.ids[:count]), (found.ids[count:], wanted.ids[count:]), (found.digests, wanted.digests),
        (found.texts, wanted.texts),
    )  # fmt: skip
    return any(sum(mine != theirs for mine, theirs in zip(ours, others, strict=False)) > APART * len(others) for ours, others in sides)


def told_apart(asked: Transcribe, found: Transcript, wanted: Transcript) -> list[str]:
    """Texts that another implementation reads otherwise than transformers does."""
    return [text for text, mine, theirs in zip(asked.texts, found.ids, wanted.ids, strict=False) if found.foreign and mine != theirs]


def merges_fault(found: Sequence[tuple[str, ...]], wanted: Sequence[tuple[str, ...]]) -> str | None:
    """Where a list of pairs that are joined, the first ones first, is another than `wanted`, as a clause; None where it is not."""
    if found == wanted:
        return None
    if len(found) != len(wanted):
        return f"has {len(found)} merges instead of {len(wanted)}"
    place = next(at for at, pair in enumerate(zip(found, wanted, strict=True)) if pair[0] != pair[1])
    return f"merges {found[place]} where the checkpoint's merges {wanted[place]} (merge {place})"


def too_far_apart(asked: Transcribe, found: Transcript, wanted: Transcript) -> str | None:
    """That another implementation reads more than some rare texts otherwise, as a clause."""
    apart = told_apart(asked, found, wanted)
    if len(apart) <= RARE * len(asked.texts):
        return None
    return f"reads {len(apart)} of {len(asked.texts)} texts otherwise, {_short(apart[0])} among them"


def _part(tokenizer: Json, name: str) -> Any:
    model = tokenizer.get("model") or {}
    if name == "vocab":
        vocabulary = model.get("vocab") or {}
        rows = (
            vocabulary.items() if isinstance(vocabulary, dict) else ((piece, (at, score)) for at, (piece, score) in enumerate(vocabulary))
        )
        found = {token: value if isinstance(value, tuple) else (value, None) for token, value in rows}
        return found | {one["content"]: (one["id"], None) for one in tokenizer.get("added_tokens", []) if one["content"] not in found}
    if name == "merges":
        return [tuple(one.split(" ", 1)) if isinstance(one, str) else tuple(one) for one in model.get("merges") or []]
    if name == "settings":
        return _plain({key: value for key, value in model.items() if key not in ("vocab", "merges")})
    return {one["content"]: _plain(one) for one in tokenizer.get("added_tokens", [])}


def _tokens_fault(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    if found == wanted:
        return None
    lost = [token for token in wanted if token not in found]
    more = [token for token in found if token not in wanted]
    moved = [token for token in wanted if token in found and not _alike(found[token], wanted[token])]
    if not lost and not more and not moved:
        return None
    if moved:
        token = moved[0]
        (mine, score), (theirs, other) = found[token], wanted[token]
        what = f"id {mine} instead of {theirs}" if mine != theirs else f"the score {score:.4g} instead of {other:.4g}"
        return (
            f"gives {_short(token)} the {what}{_others(len(moved))}"
            if mine != theirs
            else f"gives {_short(token)} {what}{_others(len(moved))}"
        )
    token, word, end = (lost[0], "lacks", "") if lost else (more[0], "has", ", which the checkpoint's has not")
    number = (wanted if lost else found)[token][0]
    return f"{word} the token {_short(token)} (id {number}){_others(len(lost or more))}{end}"


def _alike(found: tuple[int, float | None], wanted: tuple[int, float | None]) -> bool:
    """Whether id and score of a token are the same, a score to the digits that every writer of JSON keeps."""
    mine, theirs = found[1], wanted[1]
    return found[0] == wanted[0] and (mine == theirs or (None not in found + wanted and math.isclose(mine or 0, theirs or 0, rel_tol=1e-9)))


def _settings_fault(found: Json, wanted: Json) -> str | None:
    wrong = [key for key in {**wanted, **found} if found.get(key) != wanted.get(key)]
    if not wrong:
        return None
    return f"has the setting {wrong[0]} = {found.get(wrong[0], 'none')!r} instead of {wanted.get(wrong[0], 'none')!r}"


def _added_fault(found: dict[str, Json], wanted: dict[str, Json]) -> str | None:
    if found == wanted:
        return None
    for token in {**wanted, **found}:
        if token not in found:
            return f"does not keep {_short(token)} together, which is an added token of the checkpoint's"
        if token not in wanted:
            return f"keeps {_short(token)} together, which is no added token of the checkpoint's"
        if found[token] != wanted[token]:
            mine, theirs = found[token], wanted[token]
            keys = [key for key in {**theirs, **mine} if mine.get(key) != theirs.get(key)]
            return (
                f"has the added token {_short(token)} with {keys[0]} = {mine.get(keys[0], False)} instead of {theirs.get(keys[0], False)}"
            )
    return None


def _plain(value: Any) -> Any:
    """A part without the keys that say nothing, so that releases of the library which write more of them compare equal."""
    if isinstance(value, dict):
        kept = {key: _plain(one) for key, one in value.items() if one not in (None, False, "", [], {}) and _USUAL.get(key) != one}
        return kept
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _others(count: int) -> str:
    return f", and {count - 1} more" if count > 1 else ""


def _ids(ids: Iterable[int] | None) -> str:
    if ids is None:
        return "nothing, since it refuses it,"
    listed = list(ids)
    return f"[{', '.join(map(str, listed[:12]))}{', …' if len(listed) > 12 else ''}]"


def _short(text: str | None) -> str:
    return "nothing" if text is None else repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")
