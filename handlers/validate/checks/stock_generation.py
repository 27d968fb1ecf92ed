"""Whether the format's own runtime, by the settings of the published folder, generates what the checkpoint's settings make of its logits.

Called by `examination` for language models whose engine can let its runtime generate by itself (`generate`): transformers, and
onnxruntime-genai. Sampling is switched off, nothing else is set. Each token must be the best one after the checkpoint's penalties and bans,
and the text must end where the checkpoint's ends it. So it costs one short text, and rounding of the weights does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.values import Json
from handlers.models.files import setting
from handlers.validate.checks.live.reference import Reference
from handlers.validate.checks.live.samples import Sample
from handlers.validate.engines.generation_rules import tokens_of
from handlers.validate.files import expected
from handlers.validate.workers.client import EngineWorker, WorkerRefused
from handlers.validate.workers.protocol import Decode, Generate, Generated, Teacher

TOKENS, LONGEST = 8, 24
"""Tokens that are generated; more, up to the second, where the live model ends a text within them."""
KNOWN = (
    "repetition_penalty",
    "no_repeat_ngram_size",
    "suppress_tokens",
    "begin_suppress_tokens",
    "bad_words_ids",
    "min_length",
    "min_new_tokens",
)
"""Settings that change which token is the best, and are followed here; with others, only the end is looked at."""
_OTHERS = ("num_beams", "encoder_repetition_penalty", "sequence_bias", "exponential_decay_length_penalty", "guidance_scale",
           "penalty_alpha", "dola_layers", "forced_bos_token_id", "forced_eos_token_id", "watermarking_config")  # fmt: skip


def fault(worker: EngineWorker, reference: Reference, outputs: Path, limit: float) -> tuple[str | None, list[str]]:
    """Say why what the runtime generates is not right, as a sentence, or None; and what is to be known of it.

    `limit`: by how many standard deviations of the logits a token may be worse than the best one. Raises WorkerFailed.
    """
    wanted = expected.read(reference.files)
    if wanted is None or wanted.generation is None or reference.subject.kind != "causal":
        return None, []
    settings = {**{key: value for key, value in wanted.defaults.items() if value is not None}, **wanted.generation}
    ends = frozenset(tokens_of(settings.get("eos_token_id", setting(wanted.config, "eos_token_id"))))
    sample, count = _chosen(reference.samples, ends)
    try:
        made = worker.ask(Generate(ids=sample.ids, tokens=count))
    except WorkerRefused as error:
        return f"its runtime, by the folder's own settings, does not generate: {error.cause}", []
    if made.tokens is None:
        return None, []
    ignored = [key for key in made.ignores if settings.get(key) not in (None, wanted.defaults.get(key), [], 0)]
    notes = [f"its runtime knows no {key}, which the checkpoint's generation_config.json sets" for key in ignored]
    stopped = _is_stopped(worker, made.tokens, settings.get("stop_strings"))
    if (problem := _end_fault(made, ends, len(made.tokens) if stopped else count)) or any(
        settings.get(key) != wanted.defaults.get(key) for key in _OTHERS
    ):
        return problem, notes
    file, first = outputs / "generated.npy", len(sample.ids) - 1
    places = list(range(first, first + len(made.tokens)))
    worker.ask(Teacher(ids=sample.ids, targets=made.tokens, keep=places, out=str(file)))
    rows = np.load(file)
    rules = {key: value for key, value in settings.items() if key in KNOWN and key not in made.ignores}
    for place, (row, token) in enumerate(zip(rows, made.tokens, strict=True)):
        scores = _scores(row.astype(np.float64), [*sample.ids, *made.tokens[:place]], place, rules, ends)
        best = int(scores.argmax())
        if not scores[token] >= scores[best] - limit * reference.logit_std:
            mine, theirs = (worker.ask(Decode(ids=[choice])).text for choice in (token, best))
            return (
                f"its runtime, by the folder's own settings, generates token {token} ({mine!r}) at place {place + 1} behind a prompt, where"
                f" the checkpoint's settings make {best} ({theirs!r}) of its logits"
            ), notes
    return None, notes


def _chosen(samples: Sequence[Sample], ends: frozenset[int]) -> tuple[Sample, int]:
    """Give the sample whose text ends first, and how many tokens to generate."""
    ended = [sample for sample in samples if sample.tokens and sample.tokens[-1] in ends and len(sample.tokens) <= LONGEST - 2]
    if not ended:
        return samples[0], TOKENS
    sample = min(ended, key=lambda candidate: len(candidate.tokens))
    return sample, len(sample.tokens) + 2


def _is_stopped(worker: EngineWorker, tokens: Sequence[int], stops: Any) -> bool:
    """Tell whether a text ends with one of the strings at which the checkpoint's settings end it."""
    strings = [stops] if isinstance(stops, str) else list(stops or ())
    if not strings or not tokens:
        return False
    before, text = (worker.ask(Decode(ids=list(part))).text for part in (tokens[:-1], tokens))
    return any(string in text and string not in before for string in strings)  # the last token may go on behind it


def _end_fault(made: Generated, ends: frozenset[int], count: int) -> str | None:
    tokens = made.tokens or []
    place = next((at for at, token in enumerate(tokens[:-1]) if token in ends), None)
    if place is not None:
        return (
            f"its runtime, by the folder's own settings, goes on behind the end token {tokens[place]}, at which the checkpoint's texts end"
        )
    if len(tokens) < count and (not tokens or tokens[-1] not in ends):
        at = f"token {tokens[-1]}" if tokens else "the prompt"
        return f"its runtime, by the folder's own settings, ends a text after {len(tokens)} tokens at {at}, no end of the checkpoint's"
    return None


def _scores(row: np.ndarray, seen: Sequence[int], place: int, rules: Json, ends: frozenset[int]) -> np.ndarray:
    """Give logits (V,) after the rules, as transformers' processors of the same names apply them. `seen`: prompt and text so far."""
    scores, known = row.copy(), np.unique([token for token in seen if token < len(row)])
    if (penalty := float(rules.get("repetition_penalty") or 1.0)) != 1.0 and len(known):
        scores[known] = np.where(scores[known] < 0, scores[known] * penalty, scores[known] / penalty)
    banned = {*tokens_of(rules.get("suppress_tokens")), *(tokens_of(rules.get("begin_suppress_tokens")) if place == 0 else ())}
    for word in rules.get("bad_words_ids") or []:
        if list(seen[len(seen) - len(word) + 1 :]) == list(word[:-1]) or len(word) == 1:
            banned.add(word[-1])
    if size := int(rules.get("no_repeat_ngram_size") or 0):
        start = tuple(seen[len(seen) - size + 1 :]) if size > 1 else ()
        banned |= {seen[at + size - 1] for at in range(len(seen) - size + 1) if tuple(seen[at : at + size - 1]) == start}
    if len(seen) < int(rules.get("min_length") or 0) or place < int(rules.get("min_new_tokens") or 0):
        banned |= ends
    scores[[token for token in banned if 0 <= token < len(scores)]] = -np.inf
    return scores
