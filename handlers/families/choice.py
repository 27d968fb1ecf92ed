"""One module for each family of models that the ONNX stage exports; `choose` finds the one for a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from daemon.contract.models.media import NOUNS
from handlers.families.base import Family, architecture, unsupported
from handlers.families.causal import Causal
from handlers.families.encoder import Encoder
from handlers.families.media.family import MediaEncoder
from handlers.families.seq2seq.family import Seq2Seq
from handlers.models.tasks import Task, task_of

FAMILIES: Mapping[str, Callable[[Task], Family]] = {
    "causal": Causal, "encoder": Encoder, "seq2seq": Seq2Seq, "media-encoder": MediaEncoder,
}  # fmt: skip
"""By `Task.engine`."""


def choose(folder: Path) -> Family:
    """The family of a transformers folder; Permanent `unsupported-architecture` where there is none."""
    name = architecture(folder)
    task = task_of(folder)
    if task is not None and task.media and (task.kind == "causal" or task.engine not in FAMILIES):
        raise unsupported(folder, f"{name} writes text about {NOUNS[task.media]}, and no graphs are made of such models")
    if task is None:
        known = ", ".join(sorted(FAMILIES))
        raise unsupported(folder, f"{name} is not a model of a kind that can be exported ({known})")
    return FAMILIES[task.engine](task)
