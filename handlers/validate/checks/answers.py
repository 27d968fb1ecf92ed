"""What models answer where the data has a prompt with its answer: a question of a conversation, or the beginning of a text.

Called by the stages `reference`, `merged` and `check-VARIANT` while a worker holds the model. The comparison reads the whole row, with the
answer that stands in the data; what a model would go on with after that answer tells nobody anything. So people are shown, and greedy texts
are counted by, what each model answers to the prompt alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from daemon.contract.jobs.figures import CheckFigures, SampleFigures
from handlers.validate.checks.live.foresight import GROUP, of_answers
from handlers.validate.checks.live.reference import Reference, greedy_likeness
from handlers.validate.checks.live.samples import SHOWN, Sample
from handlers.validate.workers.client import EngineWorker, WorkerRefused
from handlers.validate.workers.protocol import Decode, Greedy


@dataclass(frozen=True)
class Answer:
    """What a model says after a sample's prompt."""

    tokens: list[int]
    text: str


Answers = Mapping[int, Answer]
"""By the sample's number; nothing for a sample without a prompt."""


def given(worker: EngineWorker, samples: Sequence[Sample], *, exact: bool, bare: bool = False) -> Answers:
    """Give a model's greedy answers; `bare`: without the adapter, `exact`: see `examination.examine`. Raises WorkerFailed where the worker
    fails."""
    asked = {
        number: Greedy(ids=sample.prompt, tokens=sample.steps, least=1, stop=True, bare=bare)
        for number, sample in enumerate(samples)
        if sample.prompt is not None and sample.answer is not None
    }
    answers = {}
    for place, (number, request) in enumerate(asked.items()):
        if place % GROUP == 0 and exact and worker.load().together:
            of_answers(worker, list(asked.values())[place : place + GROUP])
        tokens = worker.ask(request).tokens
        answers[number] = Answer(tokens, worker.ask(Decode(ids=tokens)).text)
    return answers


def of_live(live: EngineWorker, reference: Reference) -> Answers:
    """Ask the live model and keep its answers with the samples. Where it can't answer, as at the end of a short context, no model is
    asked, and a warning says so. Raises WorkerFailed where the worker is lost."""
    try:
        answers = given(live, reference.samples, exact=True)
    except WorkerRefused as error:
        reference.samples = [replace(sample, prompt=None, answer=None, asked=None) for sample in reference.samples]
        reference.warnings.append(f"The live model could not answer the prompts of the data, so nothing was scored on them: {error.cause}.")
        return {}
    for number, answer in answers.items():
        sample = replace(reference.samples[number], said=answer.tokens)
        reference.samples[number] = sample if sample.asked is None else replace(sample, continuation=answer.text)
    return answers


def of_base(live: EngineWorker, reference: Reference) -> Answers | None:
    """Give the same of the base without the adapter, for people to compare with; None where it can't answer."""
    try:
        answers = given(live, reference.samples, exact=True, bare=True)
    except WorkerRefused:
        return None
    shown = [number for number in answers if number < SHOWN and reference.samples[number].asked is not None]
    for number in shown:
        reference.samples[number] = replace(reference.samples[number], base=answers[number].text)
    if shown and reference.adapter is not None:
        pairs = [(answers[number].tokens, reference.samples[number].said or []) for number in shown]
        reference.adapter = reference.adapter.plus(**greedy_likeness(pairs).given)
    return answers


def put_into(figures: CheckFigures, tokens: Sequence[list[int] | None], reference: Reference, answers: Answers) -> CheckFigures:
    """Give the figures of a check with an artifact's answers in place of what it went on with after whole rows, in `tokens`."""
    asked = {number for number in answers if reference.samples[number].asked is not None}
    if not asked:
        return figures
    pairs = [
        (answers[number].tokens, sample.said or []) if number in asked else (tokens[number] or [], sample.tokens)
        for number, sample in enumerate(reference.samples)
    ]
    samples = tuple(
        SampleFigures(prompt=sample.asked, question=sample.question, reference=sample.continuation, text=answers[number].text)
        if number in asked else shown
        for number, (shown, sample) in enumerate(zip(figures.samples, reference.samples, strict=False))
    )  # fmt: skip
    return figures.plus(
        greedy_identical=sum(mine == theirs for mine, theirs in pairs),
        greedy_prompts=len(pairs),
        **greedy_likeness(pairs).given,
        sample=samples[0] if samples else None,
        samples=samples,
    )
