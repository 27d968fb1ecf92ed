"""What kind of model is validated: its task, what its rows of outputs are, the names of its labels, how long a text may be. Pure.

Called by the stage, which reads it from the merged folder, and by the engines (`context_length`). A *row* is what is compared at one
position: the logits of one token, of one text, of all possible places of an answer, or one vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from daemon.contract.models.media import Media
from daemon.contract.values import Json
from handlers.models import sentence
from handlers.models.files import read_json
from handlers.models.tasks import BY_NAME, Kind, task_of_config

Head = Literal["choice", "labels", "value", "vector"]
"""One of several (softmax), each label for itself (sigmoid), numbers, or a vector whose direction counts."""

_OPERATION = "read the model's configuration"
_OFFSET_POSITIONS = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "data2vec-text", "longformer", "mpnet", "ibert"}
)
"""Model types that count positions from behind the padding token's number on."""
_RELATIVE_POSITIONS = frozenset({"t5", "mt5", "umt5", "longt5", "switch_transformers"})
"""Model types that address any number of positions."""


@dataclass(frozen=True)
class ValidatedTask:
    """The task of the model that is validated."""

    task: str = "text-generation"
    """Name in `handlers.models.tasks`."""
    head: Head = "choice"
    labels: tuple[str, ...] | None = None
    """Names of what a classifier chooses from, by number; None where the task has none."""
    sentence: bool = False
    """A vector is one of a text, made by the modules of sentence-transformers, and not one of a token."""
    thresholds: tuple[float, ...] | None = None
    """Probability from which on a text has a label, by number, where the configuration sets it; None where it is one half for all."""

    @property
    def kind(self) -> Kind:
        """How it runs."""
        return BY_NAME[self.task].kind

    @property
    def engine(self) -> str:
        """What an engine must say that it runs."""
        return BY_NAME[self.task].engine

    @property
    def media(self) -> Media | None:
        """What it reads beside text, or instead of it."""
        return BY_NAME[self.task].media

    @property
    def reads_text(self) -> bool:
        """Whether texts are what it is asked."""
        return BY_NAME[self.task].reads_text

    @property
    def one_answer(self) -> bool:
        """A text gets one answer, not one at each token."""
        return self.sentence or self.task in ("text-classification", "question-answering", "image-classification", "audio-classification")


LANGUAGE_MODEL = ValidatedTask()


def subject_of(folder: Path) -> ValidatedTask:
    """Give the subject of a transformers folder. What names no known task is taken for a language model: loading it will tell."""
    config = read_json(folder / "config.json", _OPERATION)
    task = task_of_config(config)
    if task is None:
        return LANGUAGE_MODEL
    labels = labels_of(folder) if task.name.endswith("-classification") else None
    chain = sentence.read(folder) if task.name == "feature-extraction" else None
    head = _head(task.name, config)
    return ValidatedTask(
        task.name, head, labels, chain is not None and chain.makes_vectors, thresholds_of(folder) if head == "labels" else None
    )


def _head(task: str, config: Json) -> Head:
    if task.endswith("feature-extraction"):
        return "vector"
    if task not in ("text-classification", "image-classification", "audio-classification"):
        return "choice"
    problem = config.get("problem_type")
    if problem == "multi_label_classification":
        return "labels"
    return "value" if problem == "regression" or _count(config) == 1 else "choice"


def _count(config: Json) -> int:
    """Give number of labels; transformers' own default is two."""
    table = config.get("id2label")
    return len(table) if isinstance(table, dict) and table else int(config.get("num_labels") or 2)


def labels_of(folder: Path) -> tuple[str, ...] | None:
    """Give names of labels in the order of their numbers; None where a folder has no config.json, or one without usable numbers."""
    if not (folder / "config.json").is_file():
        return None
    config = read_json(folder / "config.json", _OPERATION)
    table = config.get("id2label") or {number: f"LABEL_{number}" for number in range(_count(config))}
    try:
        return tuple(str(table[key]) for key in sorted(table, key=int))
    except (TypeError, ValueError):
        return None


def thresholds_of(folder: Path) -> tuple[float, ...] | None:
    """Give the labels' thresholds as config.json sets them: `threshold` for all, or `thresholds` by number or name; None where it does not.

    A label without one of its own has one half, and so has one with something that is no number.
    """
    labels = labels_of(folder)
    if labels is None:
        return None
    config = read_json(folder / "config.json", _OPERATION)
    said = config.get("thresholds", config.get("threshold"))
    if isinstance(said, dict):
        listed = [said.get(name, said.get(str(number))) for number, name in enumerate(labels)]
    else:
        listed = said if isinstance(said, list) else [said] * len(labels)
    thresholds = [float(value) if isinstance(value, (int, float)) else 0.5 for value in [*listed, *[None] * len(labels)][: len(labels)]]
    return None if said is None else tuple(thresholds)


def live_labels(subject: ValidatedTask, base: Path | None) -> tuple[str, ...] | None:
    """Give the names that an artifact's labels must have: the base's own where the head is the base's, else the merged model's."""
    if subject.labels is None or base is None:
        return subject.labels
    task = task_of_config(read_json(base / "config.json", _OPERATION))
    own = labels_of(base) if task is not None and task.name == subject.task else None
    return own if own is not None and len(own) == len(subject.labels) else subject.labels


def context_length(config: Json) -> int | None:
    """Give tokens of one text that a model with this configuration can address; None where it sets no bound."""
    kind = config.get("model_type")
    length = config.get("max_position_embeddings", config.get("n_positions"))
    if kind in _RELATIVE_POSITIONS or not isinstance(length, int) or length < 1:
        return None
    return length - int(config.get("pad_token_id") or 0) - 1 if kind in _OFFSET_POSITIONS else length
