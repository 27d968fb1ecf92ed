"""Which rows of the live model's outputs are kept: all, or as many as fit, evenly spaced in each text. Pure but for the sizes of files.

All entries of a row stay, since any of them may be what an artifact gets wrong; and each text stays as long as some rows of each fit, since
texts differ more than the positions of one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from handlers.validate.checks.live.reference import Reference, evenly
from handlers.validate.checks.live.samples import Sample
from handlers.validate.length.text import LongText

LEAST = 4
"""Rows of a text that are kept in any case, if it has so many."""
WIDTH = 2
"""Bytes of an entry."""


@dataclass
class Selection:
    """A reference with fewer rows, and which rows of its files these are."""

    reference: Reference
    rows: dict[Path, list[int]] = field(default_factory=dict)
    """File → its rows."""

    @property
    def size(self) -> int:
        """Bytes of the rows, as they are kept."""
        return sum(WIDTH * len(rows) * _shape(path)[1] for path, rows in self.rows.items())

    @property
    def positions(self) -> int:
        """Rows of the prompts at which an artifact is compared with the live model."""
        return sum(len(sample.keep) for sample in self.reference.samples)


def select(reference: Reference, most: int) -> Selection:
    """Give the rows of a reference that fit into `most` bytes."""
    whole = _with(reference, 1.0)
    if whole.size <= most:
        return whole
    selection = _with(reference, most / whole.size)
    while selection.size > most and len(selection.reference.samples) > 1:
        reference = replace(reference, samples=reference.samples[:-1])
        selection = _with(reference, most / whole.size)
    return selection


def _with(reference: Reference, share: float) -> Selection:
    """Keep that share of the rows of each text."""
    selection = Selection(reference)
    samples = [_of_sample(sample, share, selection.rows) for sample in reference.samples]
    long, rare = (_of_text(text, share, selection.rows) for text in (reference.long, reference.rare))
    selection.rows |= {sample.logits: list(range(_shape(sample.logits)[0])) for sample in reference.media}
    selection.reference = replace(reference, samples=samples, long=long, rare=rare)
    return selection


def _of_sample(sample: Sample, share: float, rows: dict[Path, list[int]]) -> Sample:
    places = evenly(len(sample.keep), max(LEAST, int(share * len(sample.keep))))
    number = {place: row for row, place in enumerate(places)}
    rows |= {path: places for path in (sample.logits, sample.rounded) if path is not None}
    base = [row for row, place in enumerate(sample.base_rows) if place in number]
    if sample.base_logits is not None and base:
        rows[sample.base_logits] = base
    return replace(
        sample, keep=[sample.keep[place] for place in places], base_rows=[number[sample.base_rows[row]] for row in base],
        base_logits=sample.base_logits if base else None, merged=None, once=None,
        completion=None if sample.completion is None else [number[place] for place in sample.completion if place in number],
    )  # fmt: skip


def _of_text(text: LongText | None, share: float, rows: dict[Path, list[int]]) -> LongText | None:
    if text is None or text.logits is None:
        return text
    places = evenly(len(text.keep), max(2 * LEAST, int(share * len(text.keep))))
    rows |= {path: places for path in (text.logits, text.rounded) if path is not None}
    return replace(text, keep=[text.keep[place] for place in places])


def _shape(path: Path) -> tuple[int, int]:
    """Give rows and entries of a row; of what is no table, one row."""
    shape = np.load(path, mmap_mode="r").shape
    return (shape[0], int(np.prod(shape[1:]))) if shape else (1, 1)
