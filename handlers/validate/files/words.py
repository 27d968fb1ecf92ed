"""Whether a vocabulary that a runtime holds in a form of its own is the checkpoint's tokenizer.json: each token, its kind, merges. Pure.

A runtime's engine gives it as `words`: `tokens`, `kinds` of them ("normal", "unknown", "control", "added", "unused", "byte"), and what its
runtime joins pieces by: `merges`, or `scores` of tokens, of which the highest is joined first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from daemon.contract.values import Json
from handlers.validate.files.tokenizer import merges_fault

_JOINED = ("normal", "byte")


def difference(vocabulary: Json, wanted: Sequence[Json]) -> str | None:
    """Give what of a vocabulary is that of none of `wanted`, as a clause; None where all is."""
    differences = [_difference(vocabulary, tokenizer) for tokenizer in wanted]
    return differences[-1] if differences and all(differences) else None


def _difference(vocabulary: Json, wanted: Json) -> str | None:
    model, added = wanted.get("model") or {}, {entry["content"]: entry for entry in wanted.get("added_tokens", [])}
    if not isinstance(model.get("vocab"), dict):
        return None
    numbers = {**model["vocab"], **{token: entry["id"] for token, entry in added.items()}}
    tokens, kinds = vocabulary["tokens"], vocabulary["kinds"]
    for token, number in numbers.items():
        text = tokens[number] if number < len(tokens) else None
        if text != token:
            return f"gives id {number} the token {text!r} instead of {token!r}"
        kind = _kind(token, added, model)
        if kinds[number] not in kind:
            return f"takes {token!r} for a token of the kind {kinds[number]!r} instead of {kind[0]!r}"
    taken = set(numbers.values())
    more = next((number for number, kind in enumerate(kinds) if number not in taken and kind != "unused"), None)
    if more is not None:
        return f"has the token {tokens[more]!r} (id {more}), which the checkpoint's has not"
    merges = [tuple(merge.split(" ", 1)) if isinstance(merge, str) else tuple(merge) for merge in model.get("merges") or []]
    if vocabulary.get("merges") is not None:
        return merges_fault([tuple(merge.split(" ", 1)) for merge in vocabulary["merges"]], merges)
    return _scores_fault(vocabulary["scores"], merges, numbers) if vocabulary.get("scores") is not None else None


def _kind(token: str, added: dict[str, Json], model: Json) -> tuple[str, ...]:
    """Give the kinds that a token may have."""
    if token in added:
        special = ("control",) if added[token].get("special") else ("added",)
        return (*special, "unknown") if token == model.get("unk_token") else special
    return ("unknown",) if token == model.get("unk_token") else _JOINED


def _scores_fault(scores: Sequence[float], merges: Sequence[tuple[str, ...]], numbers: dict[str, int]) -> str | None:
    """Say which tokens of earlier merges are not joined earlier."""
    made = [token for token in dict.fromkeys("".join(pair) for pair in merges) if token in numbers]
    for first, second in pairwise(made):
        if not scores[numbers[first]] > scores[numbers[second]]:
            return f"joins {second!r} before {first!r}, which the checkpoint's joins first"
    return None
