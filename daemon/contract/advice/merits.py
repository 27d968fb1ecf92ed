"""What speaks for an artifact, in a few words: what a recommendation is made of. Pure.

The report puts them together (`handlers.report.advice.ranking`). In what it has stored, in English, they are known by these templates.
"""

from __future__ import annotations

import functools
import re

from daemon.contract.language.catalog import language, to_translate, translated
from daemon.contract.language.lists import clauses, percent, times

AS_FAST = to_translate("{speed} as fast as PyTorch")
AS_FAST_IN_TURNS = to_translate("{speed} as fast as PyTorch (single turns: {turns} ×)")
BUSY = to_translate("{turns} × as fast as PyTorch (measured on a busy machine)")
AGREES = to_translate("{share} agreement with the live model")
ERROR = to_translate("largest error {error} σ of the live model's outputs")
SIZE_OF_BASE = to_translate("{size} ({ratio} the base's weights)")
NEEDS_BASE = to_translate("needs its base model too")
_ALL = (AS_FAST_IN_TURNS, BUSY, AS_FAST, AGREES, ERROR, SIZE_OF_BASE, NEEDS_BASE)


def recommended(variant: str, merits: list[str]) -> str:
    """An artifact with what speaks for it."""
    return translated("{variant}: {merits}").format(variant=variant, merits=clauses(merits))


def in_words(stored: str) -> str:
    """What `recommended` gave in English, in the reader's language."""
    variant, colon, merits = stored.partition(": ")
    if language() == "en" or not colon:
        return stored
    return recommended(variant, [_in_words(merit) for merit in merits.rstrip(".").split(", ")])


def _in_words(merit: str) -> str:
    for template in _ALL:
        if match := _pattern(template).fullmatch(merit):
            return translated(template).format(**{name: _shown(value) for name, value in match.groupdict().items()})
    return merit


def _shown(value: str) -> str:
    if value.endswith((" %", " ×")):
        return (percent if value[-1] == "%" else times)(value[:-2])
    low, to, high = value.partition(" to ")
    return translated("{low} to {high}").format(low=low, high=high) if to else value


@functools.cache
def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^()]+)", re.escape(template)))
