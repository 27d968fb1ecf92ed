"""Tells a model what it will be asked, so that many prompts are run in little more time than one.

A model that is read layer by layer then reads its weights once for all of them; another decodes them as the rows of one batch. Called
while the prompts are gone through, before each group of them. It decides nothing: what is asked without having been told here gets the same
answer, and takes passes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from daemon.contract.formats.stages import LAYERWISE_PROMPTS
from handlers.validate.checks.live.samples import Sample
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import Ahead, Decoding, Greedy, LongPass, Padding, Request, Teacher

GROUP = LAYERWISE_PROMPTS
"""Prompts that are run together."""

Progress = Callable[[float, str], None]


def of_reference(
    live: EngineWorker,
    prompts: Sequence[Greedy],
    adapted: bool,
    drafts: Sequence[list[int]],
    beside: Sequence[LongPass],
    progress: Progress,
) -> list[Decoding | None]:
    """Give the prompts' decoding, that of the first ones by the base alone, the passes over all that was decoded, and `beside`.

    `drafts`: what the base will probably say, if it is known, of each prompt that it is asked. Gives what was decoded, where a model had to
    be asked for it before its passes: asked again, it would decode again.
    """
    pairs = zip(prompts, drafts, strict=False) if adapted else ()
    bare = [request.model_copy(update={"bare": True, "draft": draft}) for request, draft in pairs]
    if _tell(live, [*prompts, *bare, *beside], progress) == 0:
        return [None] * len(prompts)
    decoded = [live.ask(request) for request in prompts]
    passes = [Teacher(ids=request.ids, targets=text.tokens, keep=[], out="") for request, text in zip(prompts, decoded, strict=True)]
    _tell(live, [*passes, *(request.model_copy(update={"bare": True}) for request in passes if adapted)], progress)
    return list(decoded)


def of_examination(
    worker: EngineWorker, samples: Sequence[Sample], drafts: Sequence[list[int]], beside: Sequence[Padding | LongPass], progress: Progress
) -> None:
    """Tell a language model what `examination.examine` asks about these samples, of which it probably says `drafts`, and `beside`."""
    requests: list[Request[Any]] = list(beside)
    for sample, draft in zip(samples, drafts, strict=True):
        requests.append(Teacher(ids=sample.ids, targets=sample.tokens, keep=[], out=""))
        requests.append(Greedy(ids=sample.ids, tokens=len(sample.tokens), verify=True, draft=draft, along=sample.tokens))
    _tell(worker, requests, progress)


def of_answers(worker: EngineWorker, requests: Sequence[Greedy]) -> None:
    """Tell a model that it will be asked for answers to prompts of the data."""
    _tell(worker, requests, lambda share, what: None)


def of_passes(worker: EngineWorker, samples: Sequence[Sample], progress: Progress, *, bare: bool) -> None:
    """Tell a model that it will be asked for one pass over each of these samples, and for one without the adapter."""
    passes = [Teacher(ids=sample.ids, targets=sample.tokens, keep=[], out="") for sample in samples]
    _tell(worker, [*passes, *(request.model_copy(update={"bare": True}) for request in passes if bare)], progress)


def _tell(worker: EngineWorker, requests: Sequence[Request[Any]], progress: Progress) -> int:
    """Tell a model what it will be asked; give the passes that it went ahead with over its weights."""
    going = worker.ask(Ahead(requests=[request.line for request in requests]))
    while going.more:
        progress(0.0, f"{worker.name}, layer by layer, {going.passes} passes over the weights")
        going = worker.ask(Ahead())
    return going.passes
