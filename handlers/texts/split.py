"""Which text is for which purpose. Pure.

A text's digest decides, so that the same text has the same purpose in every export, however the data grows or is ordered, and two texts
that differ in spaces or case alone have the same one.
"""

from __future__ import annotations

import hashlib
import heapq
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from handlers.texts.rows import Text

MOST_KEPT = 4096
"""Texts that are kept of each purpose."""


def normal(text: str) -> str:
    """Return the text without what does not make it another one: case, spaces, and forms of the same characters."""
    return " ".join(unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold()).split())


def digest(text: str) -> str:
    """SHA-256, in hex, of the text's normal form."""
    return hashlib.sha256(normal(text).encode("utf-8", "replace")).hexdigest()


@dataclass
class Pool:
    """The texts with the smallest digests of all that were added: a sample that neither order nor copies change."""

    most: int = MOST_KEPT
    _heap: list[tuple[int, str]] = field(default_factory=list)
    _texts: dict[str, Text] = field(default_factory=dict)

    def add(self, text: Text, key: str) -> None:
        """Take a text in under its digest; one that is there already counts once."""
        if key in self._texts:
            return
        rank = -int(key, 16)
        if len(self._heap) >= self.most:
            if rank <= self._heap[0][0]:
                return
            _, gone = heapq.heapreplace(self._heap, (rank, key))
            del self._texts[gone]
        else:
            heapq.heappush(self._heap, (rank, key))
        self._texts[key] = text

    def sorted(self) -> list[Text]:
        """Return the texts by their digests, ascending."""
        return [self._texts[key] for key in sorted(self._texts)]


def compares(key: str) -> bool:
    """Return whether a text with this digest is for comparison; else it is for calibration."""
    return int(key[-1], 16) % 2 == 0


def by_digest(texts: Iterable[Text], wanted: int) -> tuple[list[Text], list[Text], list[Text]]:
    """(comparison, calibration, further texts to compare) of a data set. Where it has fewer than `wanted` texts to compare, calibration
    gives up its last ones."""
    pools = {True: Pool(), False: Pool()}
    for text in texts:
        key = digest(text.identity)
        pools[compares(key)].add(text, key)
    comparison, calibration = pools[True].sorted(), pools[False].sorted()
    while len(comparison) < wanted and calibration:
        comparison.append(calibration.pop())
    return comparison[:wanted], calibration, comparison[wanted:]


def by_order(texts: Sequence[Text], wanted: int) -> tuple[list[Text], list[Text], list[Text]]:
    """The same of prompts that a person put in order: the first are compared, and the others calibrate, so that none are left."""
    return list(texts[:wanted]), list(texts[wanted:]), []


class Apart:
    """Lets each text through once, and none of those that it was made with: neither the row of one, nor what the model reads of it."""

    def __init__(self, others: Iterable[Text]) -> None:
        self._seen = {key for text in others for key in _keys(text)}

    def is_new(self, row: Text) -> bool:
        """Return whether a row may be taken, before it is written for the model."""
        return self._seen.isdisjoint(_keys(row))

    def takes(self, written: Text, *, of: Text) -> bool:
        """Take a row as it was written for the model; False where that is known already."""
        keys = _keys(written)
        if not self._seen.isdisjoint(keys):
            return False
        self._seen |= keys | _keys(of)
        return True


def _keys(text: Text) -> set[str]:
    """Return what a text is known by: what it was made of, and what the model reads."""
    return {digest(text.identity), *([digest(text.text)] if text.text else [])}
