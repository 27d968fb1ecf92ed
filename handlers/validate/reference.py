"""What the live model says: the prompts' token ids, its greedy continuations and its logits, kept on disk.

Called by the validate stage while the live worker holds the model. The live model is base + adapter, not merged, in
fp32. Logits are kept for at most LOGITS_BYTES; beyond that, evenly spaced positions stand for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract import Fallback
from daemon.work import ValidateOptions
from handlers.validate.client import Worker, WorkerFailed
from handlers.validate.compare import Comparison, Spread

LOGITS_BYTES = 512 << 20
LEAST_TOKENS = 8
"""Tokens decoded even when the model would end at once: fewer would not exercise the cache."""
SPEED_PROMPT = 48

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Sample:
    """One prompt, and what the live model made of it."""

    text: str
    encoded: list[int]
    """Token ids of the text."""
    ids: list[int]
    """The same, cut to what the model can address."""
    tokens: list[int]
    """Greedy continuation."""
    continuation: str | None
    """Its text, None without a tokenizer."""
    keep: list[int]
    """Positions of ids + tokens whose logits are compared."""
    logits: Path
    """.npy file of the live logits (len(keep), V) float32."""


@dataclass
class Reference:
    """Everything that artifacts are compared with."""

    samples: list[Sample]
    logit_std: float
    speed_prompt: list[int]
    speed_tokens: int
    readable: bool
    """Prompts are text that a tokenizer encoded, so artifacts' tokenizers can be checked."""
    figures: dict[str, Any]
    adapter: dict[str, Any] | None
    """Bare base against base + adapter: how much there is to be seen at all. None for a full fine-tune."""
    warnings: list[str] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)


def measure(live: Worker, texts: list[str], options: ValidateOptions, folder: Path, progress: Progress) -> Reference:
    """Load the live model and run the prompts; `folder` receives the logits. Raises WorkerFailed."""
    about = live.load()
    warnings: list[str] = []
    fallbacks: list[Fallback] = []
    rows, readable = _encode(live, texts, about["vocabulary"], fallbacks)
    room, count = _room(about["context_length"], options.new_tokens)
    if count < options.new_tokens or any(len(ids) > room for _, ids in rows):
        warnings.append(f"The model addresses {about['context_length']} positions: prompts were cut to {room} and runs to {count} tokens.")
    positions = max(1, LOGITS_BYTES // (4 * (about["vocabulary"] or 1) * len(rows)))
    spread, adapter = Spread(), Comparison()
    samples = []
    for number, (text, encoded) in enumerate(rows):
        progress(number / len(rows), f"reference, prompt {number + 1} of {len(rows)}")
        sample = _run(live, text, encoded, room, count, positions, folder / f"live-{number}.npy", readable)
        logits = np.load(sample.logits)
        if not np.isfinite(logits).all():
            remedy = "look at the run's loss; export an earlier checkpoint"
            raise WorkerFailed("its logits hold values that are not finite", remedy, code="reference-not-finite")
        spread.add(logits)
        if about["adapted"]:
            _add_bare(live, sample, logits, adapter, folder)
        samples.append(sample)
    total = sum(len(sample.ids) + len(sample.tokens) for sample in samples)
    kept = sum(len(sample.keep) for sample in samples)
    if kept < total:
        warnings.append(f"Logits were compared at {kept} of {total} positions, evenly spaced, to bound the disk space they take.")
    speed_prompt, speed_tokens = _speed_work(samples, about["context_length"], options.speed_tokens)
    return Reference(
        samples, spread.std, speed_prompt, speed_tokens, readable, {},
        adapter.figures(spread.std) if about["adapted"] else None, warnings, fallbacks,
    )  # fmt: skip


def _encode(live: Worker, texts: list[str], vocabulary: int | None, fallbacks: list[Fallback]) -> tuple[list[tuple[str, list[int]]], bool]:
    """Prompts with their ids; without any tokenizer, pseudo-random ids and the fallback that says so."""
    try:
        encoded = live.ask("encode", texts=texts)["ids"]
    except WorkerFailed as error:
        if error.code != "tokenizer-not-found":
            raise
        fallbacks.append(
            Fallback(wanted="prompts as text", taken="pseudo-random token ids", reason="neither checkpoint nor base has a tokenizer")
        )
        random = np.random.default_rng(0)
        encoded = [random.integers(0, vocabulary or 256, size=8 + 2 * number).tolist() for number in range(len(texts))]
        return [(f"(token ids {ids[0]}, {ids[1]}, …)", ids) for ids in encoded], False
    rows = [(text, ids) for text, ids in zip(texts, encoded, strict=True) if ids]
    if not rows:
        raise WorkerFailed("the tokenizer gives no tokens for any prompt", "give other prompts in validate.prompts", code="prompts-empty")
    return rows, True


def _room(context: int | None, new_tokens: int) -> tuple[int, int]:
    """Largest prompt and number of new tokens that fit the positions the model can address."""
    if context is None:
        return 1 << 30, new_tokens
    count = min(new_tokens, max(1, context // 2))
    return max(1, context - count), count


def _run(live: Worker, text: str, encoded: list[int], room: int, count: int, positions: int, path: Path, readable: bool) -> Sample:
    ids = encoded[:room]
    tokens = live.ask("greedy", ids=ids, tokens=count, least=min(LEAST_TOKENS, count), stop=True)["tokens"]
    keep = evenly(len(ids) + len(tokens), positions)
    live.ask("teacher", ids=ids + tokens, keep=keep, out=str(path))
    continuation = live.ask("text", ids=tokens)["text"] if readable else None
    return Sample(text, encoded, ids, tokens, continuation, keep, path)


def _add_bare(live: Worker, sample: Sample, logits: np.ndarray, adapter: Comparison, folder: Path) -> None:
    path = folder / "bare.npy"
    live.ask("teacher", ids=sample.ids + sample.tokens, keep=sample.keep, out=str(path), bare=True)
    adapter.add(logits, np.load(path))
    path.unlink()


def evenly(length: int, most: int) -> list[int]:
    """At most `most` evenly spaced indices below `length`, the first and the last among them where two fit."""
    if most >= length:
        return list(range(length))
    return sorted({round(value) for value in np.linspace(0, length - 1, most)})


def _speed_work(samples: list[Sample], context: int | None, speed_tokens: int) -> tuple[list[int], int]:
    """A prompt of SPEED_PROMPT tokens made of the samples, and the tokens to decode after it, within the context."""
    ids = [token for sample in samples for token in sample.ids + sample.tokens]
    ids = (ids * (SPEED_PROMPT // len(ids) + 1))[:SPEED_PROMPT]
    if context is None:
        return ids, speed_tokens
    ids = ids[: max(1, context // 2)]
    return ids, min(speed_tokens, context - len(ids))
