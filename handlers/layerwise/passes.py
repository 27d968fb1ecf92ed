"""Runs work on a model of which one layer at a time is in memory: the work calls the model as it would call any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from handlers.layerwise import skeleton
from handlers.layerwise.lockstep import Lockstep, Task
from handlers.layerwise.skeleton import Skeleton
from handlers.models import products
from handlers.tensors.sources import Source, StoredSource

Result = TypeVar("Result")


@dataclass(frozen=True)
class _AllPositions:
    """What the head's door asks of a task: the logits of every position are wanted."""

    def wanted(self, count: int) -> slice:
        """Return the index of the positions whose logits are wanted, of `count`."""
        return slice(count)


def run(made: Skeleton, work: Callable[[Any], Result]) -> Result:
    """Return `work(model)`, which may only run the model forward; each of its passes reads all weights once. Raises what the work raises,
    and Permanent for a model that can't be run in this way. The model is of no use afterwards.

    It is the model's own code on the same values; where its matrices lie in memory may change how a product is rounded.
    """

    def find(name: str) -> Source:
        info = made.folder.headers[name]
        return StoredSource(name, made.folder.path_of(info), info)

    def compute() -> Result:
        with products.faster():
            return work(made.model)

    skeleton.furnish(made.model, made, find)
    lockstep = Lockstep(lambda task: None)
    task = lockstep.add(Task(compute, _AllPositions()))
    lockstep.finish([task])
    result: Result = task.result()
    return result
