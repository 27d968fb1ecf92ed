"""What a server elsewhere is asked after it loaded the model: a few positions of the first prompts, with what the fine-tuned model and its
base expect there.

Called by the stage `reference`, from logits that it has already: no model is run for it. The positions are of the prompts that people are
shown anyway, and of them those at which the adapter changes the answer most, so that a server without it is seen by few questions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.values import Json
from handlers.texts.rendering import ModelFiles, Rendering
from handlers.texts.rows import RowRefused, Turn
from handlers.validate.checks.live.reference import Reference, evenly
from handlers.validate.checks.live.samples import SHOWN, Sample

POSITIONS = 4
"""Of a prompt."""
TOP = 20
"""Tokens of each model at a position: as many as servers give (vLLM's --max-logprobs is 20)."""
LONGEST = 1024
"""Tokens before a position."""
DIGITS = 4
"""Of a log-probability; servers give no more that means something."""
CONVERSATIONS = (
    (Turn("user", "What is the capital of France?"),),
    (Turn("system", "Answer in one sentence."), Turn("user", "Why is the sky blue?")),
    (Turn("user", "Name a colour."), Turn("assistant", "Green."), Turn("user", "Another one, please.")),
)
CLOCK = "strftime_now"
"""By which a template writes the day's date: what it makes today is none of tomorrow's."""


def questions(reference: Reference, files: ModelFiles) -> Json | None:
    """The positions: `ids` are the tokens before, `known` the most likely next ones as [token, live model's log-probability, base's or
    null]; and the conversations. None for what is no language model of text."""
    if reference.subject.kind != "causal" or not reference.readable or reference.media:
        return None
    asked = [position for sample in reference.samples[:SHOWN] for position in _of(sample)]
    return {"top": TOP, "positions": asked, "conversations": conversations(files)} if asked else None


def conversations(files: ModelFiles) -> list[Json]:
    """Messages, and `ids`, the tokens that the model's chat template makes of them with what begins the answer, as trainers make them:
    the tokenizer adds none. None where there is no such template, or its text depends on the day."""
    path, template = files.tokenizer / "tokenizer.json", Rendering.of(files).template
    if template is None or CLOCK in template.source or not path.is_file():
        return []
    try:
        tokenizer = _tokenizer(path)
    except Exception:  # one that can't be read is another stage's finding
        return []
    written: list[Json] = []
    for turns in CONVERSATIONS:
        try:
            ids = tokenizer.encode(template.render(turns, answer=True), add_special_tokens=False).ids
        except RowRefused:  # it may know no system's turn
            continue
        written.append({"messages": [{"role": turn.role, "content": turn.content} for turn in turns], "ids": ids})
    return written


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _of(sample: Sample) -> list[Json]:
    """The positions of one prompt."""
    text = sample.ids + sample.tokens
    live = np.load(sample.logits, mmap_mode="r")
    rows = [row for row in (sample.base_rows or range(len(sample.keep))) if sample.keep[row] < LONGEST]
    if sample.base_logits is None:
        return [_position(text[: sample.keep[rows[place]] + 1], live[rows[place]], None) for place in evenly(len(rows), POSITIONS)]
    base = np.load(sample.base_logits, mmap_mode="r")
    beside = {row: base[place] for place, row in enumerate(sample.base_rows)}
    apart = {row: _apart(live[row], beside[row]) for row in rows}
    chosen = sorted(sorted(rows, key=lambda row: -apart[row])[:POSITIONS])
    return [_position(text[: sample.keep[row] + 1], live[row], beside[row]) for row in chosen]


def _position(ids: list[int], live: np.ndarray, base: np.ndarray | None) -> Json:
    mine, theirs = _logs(live), None if base is None else _logs(base)
    tokens = set(_first(mine)) | set([] if theirs is None else _first(theirs))
    known = [[token, _short(mine[token]), None if theirs is None else _short(theirs[token])] for token in tokens]
    return {"ids": list(ids), "known": sorted(known, key=lambda row: (-row[1], row[0]))}


def _apart(live: np.ndarray, base: np.ndarray) -> float:
    """How far the base is from the live model, in nats."""
    mine, theirs = _logs(live), _logs(base)
    return float((np.exp(mine) * (mine - theirs)).sum())


def _logs(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    result: np.ndarray = wide - np.log(np.exp(wide).sum())
    return result


def _first(logs: np.ndarray) -> list[int]:
    """The most likely tokens."""
    tokens: list[int] = np.argsort(-logs, kind="stable")[:TOP].tolist()
    return tokens


def _short(value: float) -> float:
    return round(float(value), DIGITS)
