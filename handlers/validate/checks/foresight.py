"""Tells a model that is read layer by layer what it will be asked, so that its weights are read once for many prompts, not once for each.

Called while the prompts are gone through, before each group of them. It decides nothing: what is asked without having been told here gets
the same answer, and takes passes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from daemon.contract.formats.stages import LAYERWISE_PROMPTS
from handlers.validate.checks.samples import Sample
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import Ahead, Greedy, Padding, Request, Teacher

GROUP = LAYERWISE_PROMPTS
"""Prompts that are run together."""

_Progress = Callable[[float, str], None]


def of_reference(live: EngineWorker, prompts: Sequence[Greedy], adapted: bool, shown: int, progress: _Progress) -> None:
    """The prompts' decoding, that of the first `shown` by the base without the adapter, and the passes over all that was decoded."""
    bare = [request.model_copy(update={"bare": True}) for request in prompts[:shown]] if adapted else []
    _tell(live, [*prompts, *bare], progress)
    passes = [Teacher(ids=request.ids, targets=live.ask(request).tokens, keep=[], out="") for request in prompts]
    _tell(live, [*passes, *(request.model_copy(update={"bare": True}) for request in passes if adapted)], progress)


def of_examination(worker: EngineWorker, samples: Sequence[Sample], padding: Sequence[Padding], progress: _Progress) -> None:
    """What `examination.examine` asks of a language model about these samples, and `padding`."""
    requests: list[Request[Any]] = list(padding)
    for sample in samples:
        requests.append(Teacher(ids=sample.ids, targets=sample.tokens, keep=[], out=""))
        requests.append(Greedy(ids=sample.ids, tokens=len(sample.tokens), verify=True))
    _tell(worker, requests, progress)


def _tell(worker: EngineWorker, requests: Sequence[Request[Any]], progress: _Progress) -> None:
    going = worker.ask(Ahead(requests=[request.line for request in requests]))
    while going.more:
        progress(0.0, f"{worker.name}, layer by layer, {going.passes} passes over the weights")
        going = worker.ask(Ahead())
