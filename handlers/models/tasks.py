"""What a model is for, found out from its configuration: one table of tasks, and which of them an architecture belongs to.

Read by the ONNX stages, validation and the reports. Light: the names of transformers' classes say it, so transformers itself
is not imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from daemon.contract.models.configs import model_config
from daemon.contract.values import Json
from handlers.models.files import read_json

Kind = Literal["causal", "seq2seq", "encoder"]


@dataclass(frozen=True)
class Task:
    """One task; `name` is the one that model hubs use."""

    name: str
    kind: Kind
    """How it runs: tokens after tokens, an encoder and then tokens after tokens, or one pass."""
    auto: str
    """transformers' auto class that loads it."""
    endings: tuple[str, ...]
    """How the names of its architectures end."""


TASKS: tuple[Task, ...] = (
    Task("text-generation", "causal", "AutoModelForCausalLM", ("ForCausalLM", "LMHeadModel")),
    Task("text2text-generation", "seq2seq", "AutoModelForSeq2SeqLM", ("ForConditionalGeneration", "MTModel")),
    Task("text-classification", "encoder", "AutoModelForSequenceClassification", ("ForSequenceClassification",)),
    Task("token-classification", "encoder", "AutoModelForTokenClassification", ("ForTokenClassification",)),
    Task("question-answering", "encoder", "AutoModelForQuestionAnswering", ("ForQuestionAnswering",)),
    Task("fill-mask", "encoder", "AutoModelForMaskedLM", ("ForMaskedLM", "WithLMHeadModel")),
    Task("feature-extraction", "encoder", "AutoModel", ("Model",)),
)
BY_NAME = {task.name: task for task in TASKS}


def task_of_config(config: Json) -> Task | None:
    """Return the task that a model's configuration names by its architecture; None where it names none that is known here.

    The longest ending wins: `XLMWithLMHeadModel` predicts masked tokens, `GPT2LMHeadModel` next ones.
    """
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    fitting = [(len(ending), task) for task in TASKS for ending in task.endings if name.endswith(ending)]
    if not fitting:
        return None
    task = max(fitting, key=lambda pair: pair[0])[1]
    pair = bool(config.get("is_encoder_decoder"))
    # An image-to-text model is "for conditional generation" too, and a bare encoder-decoder has no head to decode with.
    if (task.kind == "seq2seq") != pair and task.name in ("text2text-generation", "feature-extraction", "text-generation"):
        return None
    return task


def task_of(folder: Path, operation: str = "read the model's configuration") -> Task | None:
    """Return the task of a transformers folder; None where its architecture is none that is known here. Permanent without a config.json."""
    return task_of_config(model_config(read_json(folder / "config.json", operation), folder / "config.json", operation))
