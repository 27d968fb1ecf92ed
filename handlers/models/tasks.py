"""What a model is for, found out from its configuration: one table of tasks, and which of them an architecture belongs to.

Read by the ONNX stages, validation and the reports. Light: the names of transformers' classes say it, so transformers itself
is not imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from daemon.contract.models.configs import model_config
from daemon.contract.models.media import Media, media_of
from daemon.contract.values import Json
from handlers.models.files import read_json

Kind = Literal["causal", "seq2seq", "encoder"]


@dataclass(frozen=True)
class Task:
    """One task; `name` is the one that model hubs use, as far as that tells apart what ckptd runs in unlike ways."""

    name: str
    kind: Kind
    """How it runs: tokens after tokens, an encoder and then tokens after tokens, or one pass."""
    auto: str
    """transformers' auto class that loads it."""
    endings: tuple[str, ...]
    """How the names of its architectures end."""
    media: Media | None = None
    """What it takes beside text, or instead of text: see `reads_text`."""

    @property
    def reads_text(self) -> bool:
        """Whether a text alone is an input: of models of media only those that write on after a prompt."""
        return self.media is None or self.kind == "causal"

    @property
    def engine(self) -> str:
        """The name under which engines say that they run it."""
        return self.kind if self.reads_text else f"media-{self.kind}"

    @property
    def hub_name(self) -> str:
        """The task as model hubs name it."""
        return _ON_HUBS.get(self.name, self.name)


TASKS: tuple[Task, ...] = (
    Task("text-generation", "causal", "AutoModelForCausalLM", ("ForCausalLM", "LMHeadModel")),
    Task("text2text-generation", "seq2seq", "AutoModelForSeq2SeqLM", ("ForConditionalGeneration", "MTModel")),
    Task("text-classification", "encoder", "AutoModelForSequenceClassification", ("ForSequenceClassification",)),
    Task("token-classification", "encoder", "AutoModelForTokenClassification", ("ForTokenClassification",)),
    Task("question-answering", "encoder", "AutoModelForQuestionAnswering", ("ForQuestionAnswering",)),
    Task("fill-mask", "encoder", "AutoModelForMaskedLM", ("ForMaskedLM", "WithLMHeadModel")),
    Task("feature-extraction", "encoder", "AutoModel", ("Model",)),
    Task("image-text-to-text", "causal", "AutoModelForImageTextToText", ("ForConditionalGeneration",), "image"),
    Task("image-classification", "encoder", "AutoModelForImageClassification", ("ForImageClassification",), "image"),
    Task("image-feature-extraction", "encoder", "AutoModel", ("Model",), "image"),
    Task("audio-text-to-text", "causal", "AutoModelForMultimodalLM", ("ForConditionalGeneration",), "audio"),
    Task("automatic-speech-recognition", "seq2seq", "AutoModelForSpeechSeq2Seq", ("ForConditionalGeneration",), "audio"),
    Task("audio-ctc", "encoder", "AutoModelForCTC", ("ForCTC",), "audio"),
    Task("audio-classification", "encoder", "AutoModelForAudioClassification",
         ("ForAudioClassification", "ForSequenceClassification"), "audio"),
    Task("audio-feature-extraction", "encoder", "AutoModel", ("Model",), "audio"),
)  # fmt: skip
_ON_HUBS = {"audio-ctc": "automatic-speech-recognition", "audio-feature-extraction": "feature-extraction"}
BY_NAME = {task.name: task for task in TASKS}


def task_of_config(config: Json) -> Task | None:
    """Return the task that a model's configuration names by its architecture; None where it names none that is known here.

    The longest ending wins: `XLMWithLMHeadModel` predicts masked tokens, `GPT2LMHeadModel` next ones.
    """
    names, media = config.get("architectures"), media_of(config)
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    fitting = [(len(ending), task) for task in TASKS if task.media == media for ending in task.endings if name.endswith(ending)]
    # An image-to-text model is "for conditional generation" too, and a bare encoder-decoder has no head to decode with.
    pair = bool(config.get("is_encoder_decoder"))
    fitting = [(length, task) for length, task in fitting if (task.kind == "seq2seq") == pair or not _decodes(task)]
    return max(fitting, key=lambda option: option[0])[1] if fitting else None


def _decodes(task: Task) -> bool:
    """Whether it matters if there is an encoder beside a decoder."""
    return task.kind != "encoder" or task.name.endswith("feature-extraction")


def task_of(folder: Path, operation: str = "read the model's configuration") -> Task | None:
    """Return the task of a transformers folder; None where its architecture is none that is known here. Permanent without a config.json."""
    return task_of_config(model_config(read_json(folder / "config.json", operation), folder / "config.json", operation))
