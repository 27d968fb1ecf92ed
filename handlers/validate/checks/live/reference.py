"""What the live model says: the prompts' token ids, its greedy continuations and its logits, kept on disk.

Called by the stage `reference` while the live worker holds the model. The live model is base + adapter, not merged, in
fp32. Logits are kept for at most LOGITS_BYTES; beyond that, evenly spaced positions stand for all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.figures import BasesFigures, Likeness, LiveFigures
from daemon.contract.jobs.messages import Fallback
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.values import Json
from handlers.validate.arithmetic import fine_tuning
from handlers.validate.arithmetic.comparison import Comparison, Spread, distances, in_deviations, label_borders, perplexity, surprise
from handlers.validate.arithmetic.degeneration import Degeneration
from handlers.validate.checks.live import segments
from handlers.validate.checks.live.base_texts import BaseTexts
from handlers.validate.checks.live.foresight import GROUP, Progress, of_reference
from handlers.validate.checks.live.samples import SHOWN, Sample
from handlers.validate.checks.live.texts import hidden, pieces, question, rows_that_count
from handlers.validate.checks.media import MediaSample, Unread
from handlers.validate.engines.arrays import same_start
from handlers.validate.engines.task_profile import LANGUAGE_MODEL, ValidatedTask
from handlers.validate.length import measuring as length
from handlers.validate.length import rare
from handlers.validate.length import text as long_text
from handlers.validate.length.text import Encoded, LongText
from handlers.validate.workers.client import EngineWorker, WorkerFailed, WorkerRefused
from handlers.validate.workers.protocol import (
    CountInputTokens,
    Decode,
    Decoding,
    Encode,
    Greedy,
    ListSpecialTokens,
    LongPass,
    PaddedBatch,
    Padding,
    Rebase,
    Teacher,
)

LOGITS_BYTES = 512 << 20
LEAST_TOKENS = 8
"""Tokens decoded even when the model would end at once: fewer would not exercise the cache."""
LEAST_TARGETS = 4
"""The same for an encoder-decoder, whose outputs may be short: what comes after their end means nothing."""
SPEED_PROMPT = 48
PADDED_ROWS = 4
PADDED_STEPS = 4
PADDING_LIMIT = 1e-3
"""Largest |Δ|, in standard deviations of the outputs, by which the live model may differ from itself in a padded batch."""


@dataclass
class Reference:
    """Everything that artifacts are compared with."""

    samples: list[Sample]
    logit_std: float
    speed_prompt: list[int]
    speed_tokens: int
    readable: bool
    """Prompts are text that a tokenizer encoded, so artifacts' tokenizers can be checked."""
    figures: LiveFigures
    adapter: Likeness | None
    """Bare base against base + adapter: how much there is to be seen at all. None for a full fine-tune."""
    warnings: list[str] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    subject: ValidatedTask = LANGUAGE_MODEL
    sides: list[str] = field(default_factory=lambda: ["left"])
    """Sides on which the live model can be padded without another outcome, so that artifacts must be able to."""
    bases: BasesFigures | None = None
    """What `base_likelihood.compare` found; None where it was not asked for."""
    perplexity: float | None = None
    """The live model's, of the prompts' tokens; None for what is no language model, and without a tokenizer."""
    special: Json | None = None
    """What `special_tokens.expected` gives."""
    long: LongText | None = None
    """The long text; None where there is none."""
    no_long: str | None = "none was asked for"
    """Why there is none, as a clause."""
    rare: LongText | None = None
    """Rare tokens; None where none can be read."""
    media: tuple[MediaSample, ...] = ()
    """What it makes of pictures or sounds; nothing for models of text alone."""
    no_media: Unread | None = None
    """Why it made nothing of them, where it should."""
    files: Path | None = None
    """Folder of what `files.expected.write` gives; None where nothing is compared with it."""
    numbers: list[int] | None = None
    """Of which samples of the whole reference these are, where some were left out (`room.fitting`)."""

    def number(self, place: int) -> int:
        """Give the number that a sample has in the whole reference."""
        return place if self.numbers is None else self.numbers[place]

    def following(self, sample: Sample) -> list[tuple[int, int]]:
        """Give the rows of a sample at which a model says how likely the prompt's next token is, each with that token."""
        return sample.scored if self.subject.kind == "causal" and self.readable else []


@dataclass(frozen=True)
class LiveModel:
    """The live model before it is loaded."""

    worker: EngineWorker
    subject: ValidatedTask = LANGUAGE_MODEL
    """What the merged model is for."""
    base_values: str = "original"
    """What `merge.base` comes to: the adapter acts on the base that it was merged into."""
    base_texts: BaseTexts = field(default_factory=BaseTexts)
    parameters: int = 0
    """Elements of its weights, by which the length of the long text is bounded."""
    seed: int = 0
    """What sizes are drawn with: a number of the checkpoint's."""


@dataclass(frozen=True)
class Asked:
    """How the live model is asked each prompt."""

    live: EngineWorker
    subject: ValidatedTask
    readable: bool
    special: Special
    room: int
    """Tokens of the largest prompt."""
    count: int
    """New tokens."""
    positions: int
    """Most rows that are kept of a prompt."""
    base_texts: BaseTexts = field(default_factory=BaseTexts)

    @property
    def least(self) -> int:
        """New tokens before which no end token counts."""
        return min(LEAST_TOKENS if self.subject.kind == "causal" else LEAST_TARGETS, self.count)


def measure(model: LiveModel, prompts: list[str], options: ValidateOptions, folder: Path, progress: Progress) -> Reference:
    """Load the live model and run the prompts; `folder` receives the logits. Raises WorkerFailed."""
    live, subject = model.worker, model.subject
    about = live.load()
    if model.base_values != "original":
        live.ask(Rebase(values=model.base_values))
    warnings = list(about.deviations)
    fallbacks: list[Fallback] = []
    rows, readable = _encode(live, subject, pieces(subject, prompts), about.vocabulary, fallbacks)
    hide = hidden_tokens(live, subject, readable, fallbacks)
    room, count = room_for(subject, about.context_length, options.new_tokens)
    if count < options.new_tokens * (subject.kind != "encoder") or any(len(row.ids) > room for row in rows):
        what = f", and continuations to {count}" if subject.kind != "encoder" else ""
        warnings.append(f"The model has {about.context_length} positions: prompts were limited to {room} tokens{what}.")
    asked = Asked(
        live, subject, readable, hide, room, count, max(1, LOGITS_BYTES // (4 * (about.vocabulary or 1) * len(rows))), model.base_texts
    )
    long: LongText | str = "it reads no text"
    if subject.reads_text:
        long = long_text.make(live, about, subject, rows, options.long_tokens, model.parameters, readable=readable, seed=model.seed)
    odd = rare.make(live, about, subject, readable=readable) if subject.reads_text else None
    beside = [long.asked(folder / length.FILE, long.pieces)] if isinstance(long, LongText) else []
    beside += [odd.asked(folder / rare.FILE, odd.pieces)] if odd is not None else []
    spread, degeneration, adapter = Spread(), Degeneration(subject.head), Comparison(subject.head, subject.thresholds)
    most = max(1, min(fine_tuning.ROWS, fine_tuning.BYTES // (4 * (about.vocabulary or 1) * len(rows))))
    samples, total, text = list[Sample](), 0, ""
    base_tokens, losses = list[tuple[list[int], list[int]]](), list[np.ndarray]()
    ahead = list[Decoding | None]()
    for number, row in enumerate(rows):
        if number % GROUP == 0:
            passes = beside if number == 0 else []  # its passes are the others', where a model is read layer by layer
            ahead += _tell(asked, rows, number, about.adapted, passes, progress) if about.together else [None] * GROUP
        progress(number / len(rows), f"reference, prompt {number + 1} of {len(rows)}")
        sample, possible = run_text(asked, row, folder / f"live-{number}.npy", ahead[number])
        total += possible
        logits = np.load(sample.logits)
        if not np.isfinite(logits).all():
            remedy = "look at the run's loss; export an earlier checkpoint"
            raise WorkerFailed("its logits hold values that are not finite", remedy, code=FaultCode.REFERENCE_NOT_FINITE)
        spread.add(logits)
        degeneration.add(logits)
        piece = subject.one_answer and number > 0 and sample.text in text
        text, sample = (text if piece else sample.text), replace(sample, piece=piece)
        following = sample.scored if subject.kind == "causal" and readable else []
        if about.adapted:
            path = folder / f"base-{number}.npy"
            bare = teacher_forced(live, sample, path, bare=True)
            apart = adapter.add(logits, bare, following, same_text=piece).divergences
            changed = fine_tuning.most_changed(apart if len(apart) else distances(subject.head, logits, bare), most)
            np.save(path, bare[changed])
            sample = replace(sample, base_rows=changed, base_logits=path)
            if readable and number < SHOWN:
                said, tokens = _base_says(asked, sample, bare)
                sample = replace(sample, base=said)
                base_tokens += [(tokens, sample.tokens)] if tokens else []
        else:
            losses.append(surprise(logits, following))
        samples.append(sample)
    warnings += degeneration.warnings()
    kept = sum(len(sample.keep) for sample in samples)
    if kept < total:
        warnings.append(f"Logits were compared at {kept} of {total} positions, evenly spaced, to limit the disk space that they need.")
    unit = spread.unit(subject.head)
    sides = padding_sides(live, subject, samples, unit, warnings)
    warnings += segments.lost(live, samples, unit)
    read = length.read_by_live(live, long, folder / length.FILE)
    read_rare = length.read_by_live(live, odd, folder / rare.FILE) if odd is not None else None
    speed_prompt, speed_tokens = _speed_work(subject, samples, about.context_length, options.speed_tokens)
    effect = adapter.figures(unit).plus(**greedy_likeness(base_tokens).given) if about.adapted else None
    return Reference(
        samples, unit, speed_prompt, speed_tokens, readable, LiveFigures(), effect, warnings, fallbacks, subject, sides,
        perplexity=adapter.perplexity if about.adapted else perplexity(losses),
        long=read if isinstance(read, LongText) else None, no_long=read if isinstance(read, str) else None,
        rare=read_rare if isinstance(read_rare, LongText) else None,
    )  # fmt: skip


def greedy_likeness(pairs: list[tuple[list[int], list[int]]]) -> Likeness:
    """Give for how many tokens each greedy text goes as the reference's, given as (tokens, the reference's tokens); nothing of none."""
    pairs = [pair for pair in pairs if pair[1]]
    if not pairs:
        return Likeness()
    same = tuple(same_start(*pair) for pair in pairs)
    longest = float(np.median([len(reference) for _, reference in pairs]))
    return Likeness(greedy_same=same, greedy_same_median=float(np.median(same)), greedy_tokens_median=longest)


def teacher_forced(worker: EngineWorker, sample: Sample, out: Path, *, bare: bool = False) -> np.ndarray:
    """Give a worker's rows for a sample, which `out` receives too; `bare`: without the adapter."""
    worker.ask(Teacher(ids=sample.ids, targets=sample.tokens, types=sample.types, keep=sample.keep, out=str(out), bare=bare))
    rows: np.ndarray = np.load(out)
    return rows


def _encode(
    live: EngineWorker, subject: ValidatedTask, texts: list[str], vocabulary: int | None, fallbacks: list[Fallback]
) -> tuple[list[Encoded], bool]:
    """Give texts with their ids; without any tokenizer, pseudo-random ids and the fallback that says so."""
    if not subject.reads_text:
        return [Encoded(text, ids) for text, ids in zip(texts, live.ask(Encode(texts=texts)).ids, strict=True)], _speaks(live)
    try:
        rows = encoded(live, subject, texts)
    except WorkerFailed as error:
        if error.code != FaultCode.TOKENIZER_NOT_FOUND:
            raise
        fallbacks.append(
            Fallback(wanted="prompts as text", taken="pseudo-random token ids", reason="neither checkpoint nor base has a tokenizer")
        )
        if subject.kind == "encoder":
            vocabulary = live.ask(CountInputTokens()).tokens
        random = np.random.default_rng(0)
        drawn = [random.integers(0, vocabulary or 256, size=8 + 2 * number).tolist() for number in range(len(texts))]
        return [Encoded(f"(token ids {ids[0]}, {ids[1]}, …)", ids) for ids in drawn], False
    if not rows:
        raise WorkerFailed(
            "the tokenizer gives no tokens for any prompt", "give other prompts in validate.prompts", code=FaultCode.PROMPTS_EMPTY
        )
    return rows, True


def encoded(live: EngineWorker, subject: ValidatedTask, texts: list[str]) -> list[Encoded]:
    """Give texts with their ids, without those that have none. Raises WorkerFailed."""
    firsts = [question(text) for text in texts] if subject.task == "question-answering" else None
    answer, none = live.ask(Encode(texts=texts, firsts=firsts)), [None] * len(texts)
    columns = (texts, answer.ids, answer.types or none, firsts or none)
    return [Encoded(*row) for row in zip(*columns, strict=True) if row[1]]


def _speaks(live: EngineWorker) -> bool:
    """Tell whether a model that reads no text has a tokenizer all the same, for its answers."""
    try:
        live.ask(ListSpecialTokens())
    except WorkerRefused:
        return False
    return True


@dataclass(frozen=True)
class Special:
    """Tokens that a head is not trained on."""

    tokens: frozenset[int] = frozenset()
    mask: int | None = None


def hidden_tokens(live: EngineWorker, subject: ValidatedTask, readable: bool, fallbacks: list[Fallback]) -> Special:
    """Give special tokens, which no head is trained on, and the one that hides another; only where the task asks for them."""
    if not readable or subject.task not in ("token-classification", "fill-mask"):
        return Special()
    special = live.ask(ListSpecialTokens())
    if special.mask is None and subject.task == "fill-mask":
        fallbacks.append(Fallback(wanted="hidden tokens", taken="the texts as they are", reason="the tokenizer has no mask token"))
    return Special(frozenset(special.ids), special.mask)


def room_for(subject: ValidatedTask, context: int | None, new_tokens: int) -> tuple[int, int]:
    """Give largest prompt and number of new tokens that fit the positions the model can address."""
    if subject.kind == "encoder":
        return context or 1 << 30, 0
    if context is None:
        return 1 << 30, new_tokens
    if subject.kind == "seq2seq":  # source and target have positions of their own
        return context, min(new_tokens, max(1, context - 1))
    count = min(new_tokens, max(1, context // 2))
    return max(1, context - count), count


def run_text(asked: Asked, row: Encoded, path: Path, decoded: Decoding | None) -> tuple[Sample, int]:
    """Give the sample, whose logits `path` receives, and the number of rows that could be compared. `decoded`: what follows, if known."""
    live, subject, special = asked.live, asked.subject, asked.special
    ids, tokens, places = row.ids[: asked.room], [], None
    if subject.kind != "encoder":
        tokens = (decoded or live.ask(Greedy(ids=ids, tokens=asked.count, least=asked.least, stop=True))).tokens
    if subject.task == "fill-mask":
        ids, places = hidden(ids, special.tokens, special.mask)
    places = rows_that_count(subject, ids, tokens, special.tokens) if places is None else places
    keep = [places[place] for place in evenly(len(places), asked.positions)]
    types = None if row.types is None else row.types[: asked.room]
    sample = Sample(row.text, row.ids, ids, tokens, None, keep, path, types, row.first)
    rows = teacher_forced(live, sample, path)
    answer = answer_text(live, subject, sample, tokens, rows) if asked.readable else None
    return replace(sample, continuation=answer), len(places)


def answer_text(worker: EngineWorker, subject: ValidatedTask, sample: Sample, tokens: list[int], rows: np.ndarray) -> str | None:
    """Give what a model says about a sample, for a person to read: text, label, labels, hidden tokens, span or number; None for vectors."""
    if subject.kind != "encoder":
        return worker.ask(Decode(ids=tokens)).text
    if subject.head == "vector":
        return None
    if subject.head == "value":
        return ", ".join(f"{value:.3g}" for value in rows[0])
    if subject.task == "fill-mask":
        return worker.ask(Decode(ids=[int(row.argmax()) for row in rows])).text
    if subject.task == "question-answering":
        start, end = int(rows[0].argmax()), int(rows[1].argmax())
        return worker.ask(Decode(ids=sample.ids[start : end + 1])).text
    names = subject.labels or ()
    if subject.head == "choice":
        chosen = [int(row.argmax()) for row in rows]
    else:
        chosen = np.flatnonzero(rows[0] >= label_borders(subject.thresholds)).tolist()
    return " ".join(names[number] if number < len(names) else str(number) for number in chosen)


def _base_says(asked: Asked, sample: Sample, rows: np.ndarray) -> tuple[str | None, list[int]]:
    """Give what the base says without the adapter, `rows` being its outputs, and its tokens. It takes no more steps than the live model
    took at most."""
    tokens: list[int] = []
    try:
        if asked.subject.kind != "encoder":
            request = Greedy(ids=sample.ids, tokens=asked.count, stop=True, least=asked.least, bare=True)
            tokens = asked.live.ask(request).tokens
            asked.base_texts.keep(request, tokens)
        return answer_text(asked.live, asked.subject, sample, tokens, rows), tokens
    except WorkerRefused:
        return None, []  # it is for people alone: nothing is compared with it


def padded_batch(samples: Iterable[Sample]) -> PaddedBatch:
    """Give the shortest and the longest prompts, and a half of the longest: so lengths differ even where there is one sample."""
    ordered = sorted(samples, key=lambda sample: len(sample.ids))
    chosen = [ordered[index] for index in sorted({0, len(ordered) // 2, len(ordered) - 1})][: PADDED_ROWS - 1]
    longest = ordered[-1]
    half = max(1, len(longest.ids) // 2)
    forced = [longest.tokens, *(sample.tokens for sample in chosen)]
    steps = min(PADDED_STEPS, *(len(tokens) for tokens in forced))
    types = None if longest.types is None else [longest.types[:half], *(sample.types for sample in chosen if sample.types is not None)]
    return PaddedBatch(
        prompts=[longest.ids[:half], *(sample.ids for sample in chosen)],
        continuations=[tokens[:steps] for tokens in forced],
        types=types,
    )


def padding_error(worker: EngineWorker, samples: Iterable[Sample], side: str) -> float:
    """Give max |Δ| between a batch that is padded on one side and its rows alone."""
    error = worker.ask(Padding(batch=padded_batch(samples), side=side)).max_absolute
    assert error is not None  # every driver has rows to compare
    return error


def padding_sides(live: EngineWorker, subject: ValidatedTask, samples: list[Sample], unit: float, warnings: list[str]) -> list[str]:
    """Give the sides on which the live model itself can be padded. Language models: on the left, as all that decode batches do."""
    if subject.kind == "causal":
        return ["left"]
    sides = []
    for side in ("right", "left") if subject.reads_text else ("right",):  # batches of pictures and sounds are their processors' work
        try:
            error = padding_error(live, samples, side)
        except WorkerRefused as failure:
            warnings.append(
                f"The live model does not accept a batch of texts with padding on the {side}, so none was tested: {failure.cause}."
            )
            continue
        if in_deviations(error, unit) <= PADDING_LIMIT:
            sides.append(side)
        elif side == "right":
            warnings.append(_unlike_in_batches(subject))
    return sides


def _unlike_in_batches(subject: ValidatedTask) -> str:
    if subject.reads_text:
        return "The live model itself gives different outputs when texts are padded, so padded batches were not checked."
    if subject.media == "image":
        return "The live model itself gives different outputs for several pictures at once, so batches were not checked."
    return "The live model itself gives different outputs when sounds are padded, so padded batches were not checked."


def _tell(
    asked: Asked, rows: list[Encoded], first: int, adapted: bool, beside: list[LongPass], progress: Progress
) -> list[Decoding | None]:
    """Tell a model that answers many requests together what it will be asked for the next group of prompts; see `of_reference`."""
    group = rows[first : first + GROUP]
    decoded = [Greedy(ids=row.ids[: asked.room], tokens=asked.count, least=asked.least, stop=True) for row in group]
    shown = decoded[: max(0, SHOWN - first)] if asked.readable else []
    return of_reference(asked.live, decoded, adapted, [asked.base_texts.draft(request) for request in shown], beside, progress)


def evenly(length: int, most: int) -> list[int]:
    """Give at most `most` evenly spaced indices below `length`, the first and the last among them where two fit."""
    if most >= length:
        return list(range(length))
    return sorted({round(value) for value in np.linspace(0, length - 1, most)})


def _speed_work(subject: ValidatedTask, samples: list[Sample], context: int | None, speed_tokens: int) -> tuple[list[int], int]:
    """Give a prompt of SPEED_PROMPT tokens made of the samples, and the tokens to decode after it, within the context."""
    ids = [token for sample in samples for token in sample.ids + (sample.tokens if subject.kind == "causal" else [])]
    ids = (ids * (SPEED_PROMPT // len(ids) + 1))[:SPEED_PROMPT]
    if context is None:
        return ids, speed_tokens
    if subject.kind != "causal":
        return ids[:context], speed_tokens if subject.kind == "encoder" else min(speed_tokens, max(0, context - 2))
    ids = ids[: max(1, context // 2)]
    return ids, min(speed_tokens, context - len(ids))
