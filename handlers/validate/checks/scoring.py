"""What a model says against what the data says that it should say: labels, references, and the parts of conversations that are the model's.

Called by the stages `reference`, `merged` and `check-VARIANT` while a worker holds the model, after the comparison. The same scores of
base, live model and artifact say what a difference is worth. sacrebleu is imported where there are references alone.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from daemon.contract.jobs.figures import CheckFigures, Likeness, Scores
from handlers.texts.rows import Text
from handlers.validate.arithmetic.comparison import Comparison
from handlers.validate.checks.answers import Answers
from handlers.validate.checks.live.reference import Reference, teacher_forced
from handlers.validate.checks.live.samples import Sample
from handlers.validate.engines.arrays import same_start
from handlers.validate.engines.task_profile import ValidatedTask
from handlers.validate.workers.client import EngineWorker, WorkerRefused
from handlers.validate.workers.protocol import Decode, Encode

MARGIN = 8
"""Tokens beyond the reference's that a model may say."""
_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
"""Scripts whose words are not divided by spaces: BLEU counts their characters."""


def mark(live: EngineWorker, reference: Reference, texts: Sequence[Text], new_tokens: int) -> list[Sample]:
    """Give the samples with what their rows of the data set say that the model should say. Raises WorkerFailed where the worker is lost."""
    if not reference.readable:
        return reference.samples
    given = {text.text: text for text in texts}
    return [_marked(live, reference.subject, sample, given.get(sample.text), new_tokens) for sample in reference.samples]


def _marked(live: EngineWorker, subject: ValidatedTask, sample: Sample, text: Text | None, new_tokens: int) -> Sample:
    if text is None:
        return sample
    if subject.task == "text-classification":
        return replace(sample, label=label_number(text.label, subject.labels)) if subject.head == "choice" else sample
    if subject.kind == "encoder":
        return sample
    if subject.kind == "causal" and text.spans:
        sample = replace(sample, completion=_completion(live, sample, text))
    whole = len(sample.ids) == len(sample.encoded)
    if not text.completion or not whole or (subject.kind == "causal" and text.prompt is None):
        return sample
    answer = live.ask(Encode(texts=[text.completion])).ids[0]
    said = text.completion if len(answer) <= new_tokens else live.ask(Decode(ids=answer[:new_tokens])).text
    prompt = sample.ids if text.prompt is None else live.ask(Encode(texts=[text.prompt])).ids[0]
    if not prompt:
        return sample
    asked = text.prompt if subject.kind == "causal" else None
    steps = min(new_tokens, len(answer) + MARGIN)
    return replace(sample, prompt=prompt, answer=said, steps=steps, asked=asked, question=text.question)


def _completion(live: EngineWorker, sample: Sample, text: Text) -> list[int]:
    """Give numbers of the kept rows that predict a token of what the model should say."""
    ends = live.ask(Encode(texts=[text.text[:place] for span in text.spans for place in span])).ids
    tokens: set[int] = set()
    for before, until in zip(ends[::2], ends[1::2], strict=True):
        # What a tokenizer puts at the end of a text, or makes of a cut word, is not in the whole.
        tokens.update(range(same_start(before, sample.encoded), same_start(until, sample.encoded)))
    return [number for number, row in enumerate(sample.keep) if row + 1 in tokens and row + 1 < len(sample.ids)]


def label_number(label: str | None, names: Sequence[str] | None) -> int | None:
    """Give the number of a label that a row names, by its name in any case or by its number; None for one that the model does not have."""
    if label is None or not names:
        return None
    lowered = [name.lower() for name in names]
    if label.strip().lower() in lowered:
        return lowered.index(label.strip().lower())
    return int(label) if label.isdecimal() and int(label) < len(names) else None


def completion(reference: Reference, logits: Callable[[int], Path]) -> Likeness | None:
    """Give how near an artifact is to the live model where the data says that the model speaks; None where nothing is so marked.

    `logits`: the file of the artifact's rows of a sample, by its number.
    """
    comparison = Comparison(reference.subject.head)
    for number, sample in enumerate(reference.samples):
        if sample.completion:
            comparison.add(np.load(sample.logits)[sample.completion], np.load(logits(number))[sample.completion])
    return comparison.figures(reference.logit_std) if comparison.positions else None


def score(reference: Reference, answers: Answers, logits: Callable[[int], Path]) -> Scores | None:
    """Give a model's scores, whose rows of each sample lie in the file `logits`; None where the data has neither labels nor references."""
    labelled = [(number, sample.label) for number, sample in enumerate(reference.samples) if sample.label is not None]
    if labelled:
        said = [int(np.load(logits(number))[0].argmax()) for number, _ in labelled]
        right = [float(mine == label) for mine, (_, label) in zip(said, labelled, strict=True)]
        by_text = _by_text(reference.samples, [number for number, _ in labelled], right)
        return of_labels(said, [label for _, label in labelled]).plus(by_text={"accuracy": by_text})
    return _of_answers(reference.samples, answers)


def score_bare(live: EngineWorker, reference: Reference, answers: Answers | None, scratch: Path) -> Scores | None:
    """Give the same of the base without the adapter, for people to compare with; None where that can't be run."""
    try:
        labelled = [sample for sample in reference.samples if sample.label is not None]
        if labelled:
            rows = [teacher_forced(live, sample, scratch / "bare.npy", bare=True) for sample in labelled]
            return of_labels([int(row[0].argmax()) for row in rows], [sample.label for sample in labelled if sample.label is not None])
        return _of_answers(reference.samples, answers or {})
    except WorkerRefused:
        return None


def _of_answers(samples: Sequence[Sample], answers: Answers) -> Scores | None:
    pairs = [(answer.text, samples[number].answer or "") for number, answer in answers.items()]
    if not pairs:
        return None
    scores = [of_texts([mine], [theirs]) for mine, theirs in pairs]
    by_text = {
        name: _by_text(samples, list(answers), [value for value in values if value is not None])
        for name, values in (("exact_match", [own.exact_match for own in scores]), ("chrf", [own.chrf for own in scores]))
        if None not in values
    }
    return of_texts(*zip(*pairs, strict=True)).plus(by_text=by_text)


def _by_text(samples: Sequence[Sample], numbers: Sequence[int], values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Give (value, 1) of the samples with these numbers, and (0, 0) of the others."""
    scored = dict(zip(numbers, values, strict=True))
    return tuple((scored.get(number, 0.0), float(number in scored)) for number in range(len(samples)))


def of_labels(said: Sequence[int], wanted: Sequence[int]) -> Scores:
    """Give accuracy, and F1 as the plain mean over the classes that occur on either side."""
    pairs = list(zip(said, wanted, strict=True))
    scores = []
    for label in sorted({*said, *wanted}):
        hits = sum(pair == (label, label) for pair in pairs)
        scores.append(2 * hits / (said.count(label) + wanted.count(label)) if hits else 0.0)
    return Scores(texts=len(pairs), accuracy=sum(mine == theirs for mine, theirs in pairs) / len(pairs), macro_f1=sum(scores) / len(scores))


def of_texts(said: Sequence[str], wanted: Sequence[str]) -> Scores:
    """Give exact match, and chrF and BLEU of the corpus (0 to 100) by sacrebleu; both None in a Python that does not have it."""
    mine, theirs = ([" ".join(text.split()) for text in texts] for texts in (said, wanted))
    scores = Scores(texts=len(mine), exact_match=sum(a == b for a, b in zip(mine, theirs, strict=True)) / len(mine))
    try:
        import sacrebleu
    except ImportError:
        return scores.plus(chrf=None, bleu=None)
    tokenizer = "char" if _without_spaces(theirs) else "13a"
    return scores.plus(
        chrf=round(sacrebleu.corpus_chrf(mine, [theirs]).score, 3),
        bleu=round(sacrebleu.corpus_bleu(mine, [theirs], tokenize=tokenizer).score, 3),
    )


def _without_spaces(texts: Sequence[str]) -> bool:
    letters = [character for text in texts for character in text if character.isalpha()]
    return sum(unicodedata.name(letter, "").startswith(_WITHOUT_SPACES) for letter in letters) * 2 > len(letters)


def put_into(figures: CheckFigures, scores: Scores | None, marked: Likeness | None) -> CheckFigures:
    """Give the figures with what of both was measured."""
    return figures.plus(**({"scores": scores} if scores else {}), **({"completion": marked} if marked else {}))
