"""Rare tokens: a short text of special tokens and of tokens from all over the vocabulary, which the prompts do not hold.

The prompts hold a few hundred of the tokens that a model knows, and none of those that a chat is made of. Rows of an embedding that were
lost or exchanged elsewhere, and a head's for them, show only where such a token is read. A language model reads the first token alone, on
top of nothing, as it does for a prompt of one token. Called by `checks.reference` and `checks.examination`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.figures import LongFigures
from handlers.validate import findings
from handlers.validate.arithmetic.comparison import in_deviations
from handlers.validate.engines.registry import EXACT
from handlers.validate.engines.task_profile import ValidatedTask
from handlers.validate.findings import Finding
from handlers.validate.length import measuring
from handlers.validate.length.text import LongText
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import CountInputTokens, ListSpecialTokens, Loaded

FILE = "rare.npy"
TOKENS, LEAST = 256, 48
"""Most tokens of the text, and those that it has however large the vocabulary is."""
BYTES = 32 << 20
"""Most bytes of its outputs, where it has more tokens than the least."""
FARTHER = 4
"""Times the variant's default `kl` that the divergence from the live model may be. A sound merge into bf16 of a violent adapter has 0.0004
nats, a single largest error of 1.1 σ; with rows of 8 of 256 tokens lost it is 0.003 and more."""
SPECIAL, LAST = 4, 8
"""Shares of the text, as divisors, that special tokens and the last tokens of the vocabulary may take: those that were added are there."""


def make(live: EngineWorker, about: Loaded, subject: ValidatedTask, *, readable: bool) -> LongText | None:
    """Give the text, which nobody has read yet; None where the model's vocabulary is not known, or it has no room. Raises WorkerFailed."""
    known = live.ask(CountInputTokens()).tokens if subject.kind == "encoder" else about.vocabulary
    room = about.context_length or TOKENS
    count = min(known or 0, room, TOKENS, max(LEAST, BYTES // (4 * (about.vocabulary or 1))))
    if known is None or count < 2:
        return None
    special = live.ask(ListSpecialTokens()).ids if readable else []
    ids = chosen([token for token in special if token < known], known, count)
    if subject.kind == "encoder":
        keep = ([0, 1] if subject.task == "question-answering" else [0]) if subject.one_answer else list(range(count))
        return LongText(ids, keep, [count], [count], None)
    if subject.kind == "seq2seq":
        targets = ids[:LEAST]
        pieces = [len(targets) - 1, 1]
        return LongText(ids, list(range(len(targets))), pieces, pieces, None, targets=targets)
    return LongText(ids, list(range(count)), [1, count - 1], [1, count - 1], None)


def chosen(special: list[int], known: int, count: int) -> list[int]:
    """Give at most `count` ids below `known`: some of the special ones, the last ones, and evenly spaced ones, each once."""
    last = range(known - 1, max(-1, known - 1 - count // LAST), -1)
    spaced = np.linspace(0, known - 1, count).round().astype(int).tolist()
    others = [token for token in np.random.default_rng(0).permutation(spaced).tolist() if token not in special]
    ids = list(dict.fromkeys([*special[: count // SPECIAL], *last, *others]))[:count]
    missing = (token for token in range(known) if token not in ids)
    return [*ids, *(next(missing) for _ in range(count - len(ids)))]


def finding(
    worker: EngineWorker, text: LongText | None, subject: ValidatedTask, outputs: Path, merged: Path | None, *, beside_live: bool
) -> Finding | None:
    """Give what is wrong with an exact form, or with the merged model itself, on these tokens. Forms that round are compared with what they
    were made of number by number.

    `outputs` receives the rows, `merged` is the folder of the merged model's. `beside_live`: the live model's answers are known as exactly
    as that. Raises WorkerFailed where the worker is lost.
    """
    variant = catalog().variants.get(worker.name)
    limits = EXACT if variant is None or "merged" in variant.traits else variant.limits
    if text is None or (limits is not EXACT and limits.merged is None):
        return None
    figures, unusable = measuring.measure(worker, text, subject, outputs, merged, FILE)
    nats = FARTHER * catalog().thresholds[worker.name if variant else "pytorch"].kl if beside_live else None
    problem = unusable or _fault(figures, limits.merged, nats)
    return None if problem is None else findings.rare(problem)


def _fault(figures: LongFigures, merged: float | None, nats: float | None) -> str | None:
    apart = figures.merged_error_max_absolute
    error = None if apart is None else in_deviations(apart, figures.logit_std or 0.0)
    what = f"on {figures.tokens} special tokens and tokens from all over the vocabulary it differs from the"
    if error is not None and merged is not None and not error <= merged:
        return (
            f"{what} merged PyTorch model by {error:.3g} standard deviations of the outputs, above the limit {merged:g}: rows of its"
            " embedding are wrong, or what it does with one token alone"
        )
    if figures.kl is not None and nats is not None and not figures.kl <= nats:
        return f"{what} live model by {figures.kl:.3g} nats a position, above the limit {nats:g}: rows of its embedding are wrong"
    return None
