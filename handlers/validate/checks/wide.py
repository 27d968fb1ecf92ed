"""Batches of more rows than the other checks run, of short texts: whether each row of one gets what it gets alone. For exact forms.

Called while the artifact's worker holds it. A size that was traced as a constant, or a reshape that fits few rows, shows in batches of
another size alone. The sizes are drawn by what the live model answers, so that they differ from checkpoint to checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from handlers.validate.arithmetic.comparison import in_deviations
from handlers.validate.checks.live.reference import Reference
from handlers.validate.checks.live.samples import Sample
from handlers.validate.findings import Finding
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import PaddedBatch, Padding

ROWS = (9, 13)
"""Fewest rows, and one more than the most."""
LENGTH = 7
"""One more than the most tokens of a text."""
TEXTS = 4
"""Texts that differ; each is several rows, so that few have to be run alone."""
STEPS = {"causal": (1, 0), "seq2seq": (2, 1), "encoder": (0, 0)}
"""Kind of model → tokens after the prompts, of both batches: an encoder-decoder's cache is read by the second one first."""
DRAWS = 2
"""Times that a batch is drawn: two experts that are almost equally good may be chosen otherwise in one of them."""
_REMEDY = "export again; until it is right, run one text at a time, or no more rows than its padded batches above"


def seed_of(reference: Reference, place: int = 0) -> int:
    """Give a number that follows from what the live model says: the same for one checkpoint, and known to nobody who makes an artifact."""
    digest = hashlib.sha256(reference.samples[0].logits.read_bytes())
    return int.from_bytes(digest.digest()[:8], "little") + place


def batches(reference: Reference, seed: int) -> list[PaddedBatch]:
    """Give one batch of unlike lengths, a text of one token among them; one of equal lengths."""
    random, samples = np.random.default_rng(seed), reference.samples
    lengths = [1, *random.integers(2, LENGTH, TEXTS - 1).tolist()]
    unlike = [_piece(samples[place % len(samples)], length) for place, length in enumerate(lengths)]
    size = int(random.integers(2, LENGTH))
    alike = [_piece(samples[place % len(samples)], size) for place in range(TEXTS)]
    steps = STEPS[reference.subject.kind]
    return [_batch(some, random, steps=count) for some, count in zip((unlike, alike), steps, strict=True)]


def requests(reference: Reference) -> list[Padding]:
    """Give what a model is asked, on each side that the live model can be padded on."""
    mixed, equal = batches(reference, seed_of(reference))
    sides = reference.sides
    return [*(Padding(batch=mixed, side=side) for side in sides), *(Padding(batch=equal, side=side) for side in sides[:1])]


def finding(worker: EngineWorker, reference: Reference, limit: float) -> Finding | None:
    """Say that rows of a batch affect each other, by more than `limit` standard deviations of the outputs. Raises WorkerFailed."""
    for request in requests(reference):
        error = _error(worker, request)
        if in_deviations(error, reference.logit_std) <= limit:
            continue
        place = 1 if len({len(prompt) for prompt in request.batch.prompts}) == 1 else 0
        for draw in range(1, DRAWS):
            again = batches(reference, seed_of(reference, draw))[place]
            error = min(error, _error(worker, Padding(batch=again, side=request.side)))
        if not (deviations := in_deviations(error, reference.logit_std)) <= limit:
            return report(len(request.batch.prompts), deviations, limit)
    return None


def report(rows: int, deviations: float, limit: float) -> Finding:
    """Give the finding about a batch of so many rows."""
    reason = (
        f"in a batch of {rows} rows its outputs differ from those of each row alone by {deviations:.3g} standard deviations, above the"
        f" limit {limit:g}: rows of a batch affect each other"
    )
    return Finding("batch", reason, _REMEDY)


def _error(worker: EngineWorker, request: Padding) -> float:
    error = worker.ask(request).max_absolute
    assert error is not None  # every driver has rows to compare
    return error


def _piece(sample: Sample, length: int) -> tuple[list[int], list[int], list[int] | None]:
    """Give the beginning of a sample: its tokens, what is decoded after it, its segments."""
    return sample.ids[:length], sample.tokens, None if sample.types is None else sample.types[:length]


def _batch(pieces: Sequence[tuple[list[int], list[int], list[int] | None]], random: np.random.Generator, *, steps: int) -> PaddedBatch:
    """Give rows drawn from the pieces, each at least once."""
    count = int(random.integers(*ROWS))
    rows = random.permutation([*range(len(pieces)), *random.integers(0, len(pieces), count - len(pieces)).tolist()])
    chosen = [pieces[row] for row in rows]
    steps = min(steps, *(len(tokens) for _, tokens, _ in chosen))
    types = [kinds for _, _, kinds in chosen if kinds is not None]
    return PaddedBatch(
        prompts=[ids for ids, _, _ in chosen], continuations=[tokens[:steps] for _, tokens, _ in chosen], types=types or None
    )
