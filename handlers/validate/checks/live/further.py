"""More texts that the live model answers, where those of the reference leave a verdict open. Called by `reading_on`.

They serve the limits alone: a language model reads each in one pass, and nothing is decoded after it.
"""

from __future__ import annotations

import itertools
import operator
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from handlers.texts.rows import Text
from handlers.texts.split import Apart
from handlers.validate.arithmetic import fine_tuning
from handlers.validate.arithmetic.comparison import distances
from handlers.validate.checks.live.foresight import Progress, of_passes
from handlers.validate.checks.live.reference import (
    LOGITS_BYTES,
    Asked,
    Reference,
    encoded,
    hidden_tokens,
    room_for,
    run_text,
    teacher_forced,
)
from handlers.validate.checks.live.samples import Sample
from handlers.validate.checks.live.texts import pieces
from handlers.validate.length.text import Encoded
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import Continue, Decode, Decoding, Rebase

START = (2, 4)
"""Tokens of a compared text, fewest and most, after which the live model writes one of its own."""
LENGTH = (24, 64)
"""Tokens of it, fewest and most: as many as half of the compared texts have."""
TOGETHER = 32
"""Texts that it writes side by side: a step takes hardly longer then than with one."""
IN_VAIN = 20
"""Texts that it writes one after the other, none of which is new, before it is asked for no more."""


@dataclass
class FurtherTexts:
    """What is read on, in turn: texts of the data set, then such as the live model writes."""

    live: EngineWorker
    reference: Reference
    texts: Sequence[Text]
    apart: Apart
    """Lets a text through that serves no other purpose."""
    writes: bool
    folder: Path
    """For outputs."""
    base_values: str = "original"
    """What `merge.base` comes to."""
    room: int | None = None
    """Tokens that the artifact has room for."""
    new_tokens: int = 0
    """Tokens that an encoder-decoder decodes."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _ready: tuple[Asked, Iterator[Encoded]] | None = None

    def answered(self, wanted: int, progress: Progress) -> Iterator[list[Sample]]:
        """Give the samples of each of so many texts more, or of as many as there are. Raises WorkerFailed."""
        asked, rows = self._begun()
        subject, about, taken = asked.subject, self.live.load(), list(itertools.islice(rows, wanted))
        if about.together and subject.kind == "causal":
            cut = [Sample(row.text, row.ids, row.ids[: asked.room], [], None, [], Path()) for row in taken]
            of_passes(self.live, cut, progress, bare=about.adapted)
        for row in taken:
            group = encoded(self.live, subject, pieces(subject, [row.text])) if subject.one_answer else [row]
            yield [self._sample(asked, part, about.adapted, piece=place > 0) for place, part in enumerate(group)]

    def _begun(self) -> tuple[Asked, Iterator[Encoded]]:
        if self._ready is None:
            subject, about = self.reference.subject, self.live.load()
            if self.base_values != "original":
                self.live.ask(Rebase(values=self.base_values))
            room, count = room_for(subject, about.context_length, self.new_tokens)
            room = room if self.room is None else min(room, self.room)
            most = max(1, LOGITS_BYTES // (4 * (about.vocabulary or 1)))  # of one text: its files go before the next one's are written
            asked = Asked(self.live, subject, False, hidden_tokens(self.live, subject, True, []), room, count, most)
            self._ready = asked, self._rows(asked)
        return self._ready

    def _rows(self, asked: Asked) -> Iterator[Encoded]:
        for text in self.texts:
            yield from encoded(self.live, asked.subject, [text.text])
        if self.writes and asked.subject.kind == "causal":
            yield from self._written(asked)

    def _written(self, asked: Asked) -> Iterator[Encoded]:
        """Texts that are drawn from the live model after a few tokens of the compared ones, each with a seed of its own."""
        draw, compared = random.Random(len(self.reference.samples)), [sample.ids for sample in self.reference.samples]
        length = min(max(sorted(map(len, compared))[len(compared) // 2], LENGTH[0]), LENGTH[1], asked.room)
        vain = 0
        for seed in itertools.count(1, TOGETHER):
            size = min(draw.randint(*START), max(map(len, compared)))  # of all: padding may change what they are
            if length <= size or vain >= IN_VAIN:
                return
            texts = draw.choices([ids for ids in compared if len(ids) >= size], k=TOGETHER)
            starts = [ids[(first := draw.randrange(max(1, len(ids) - size))) : first + size] for ids in texts]
            written = self.live.ask(Continue(prompts=starts, tokens=length - size, seed=seed)).tokens
            for ids in map(operator.add, starts, written):
                text = Text(self.live.ask(Decode(ids=ids)).text)
                new = bool(text.text.strip()) and self.apart.takes(text, of=text)
                vain = 0 if new else vain + 1
                if new:
                    yield Encoded(text.text, ids)

    def _sample(self, asked: Asked, row: Encoded, adapted: bool, *, piece: bool) -> Sample:
        path = self.folder / f"further-{next(self._numbers)}.npy"  # pieces of a text are there together
        nothing_after = Decoding(tokens=[]) if asked.subject.kind == "causal" else None
        sample, _ = run_text(asked, row, path, nothing_after)
        sample = replace(sample, piece=piece)
        if not adapted or not any(known.base_rows for known in self.reference.samples):
            return sample
        logits, base = np.load(path), self.folder / f"further-base-{path.name}"
        bare = teacher_forced(self.live, sample, base, bare=True)
        changed = fine_tuning.most_changed(distances(asked.subject.head, logits, bare), fine_tuning.ROWS)
        np.save(base, bare[changed])
        return replace(sample, base_rows=changed, base_logits=base)
