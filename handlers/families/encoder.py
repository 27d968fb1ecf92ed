"""Encoders with or without a head: one graph, one pass.

Chosen by `handlers.families.choice.choose` for every task whose kind is "encoder": BERT and its relatives, and the decoders
that end in a classifier or in none at all. Which inputs and outputs a model has is learnt from its forward pass. Models that read
something other than text are refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.families.base import OPERATION, Family, Form, NotApplicableError, Part, Tracing, architecture, load_model, unsupported
from handlers.families.sentence import SentenceModules
from handlers.graphs.comparison import GraphMismatchError, Opener, largest_relative, open_graph
from handlers.graphs.graph_file import MODEL_FILE
from handlers.graphs.rewriting import SENTENCE_OUTPUT as SENTENCE
from handlers.graphs.signature import BATCH, SEQUENCE, Ports, Signature
from handlers.models import sentence
from handlers.models.tasks import Task

OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "feature-extraction": ("last_hidden_state", "pooler_output", SENTENCE),
    "text-classification": ("logits",),
    "token-classification": ("logits",),
    "question-answering": ("start_logits", "end_logits"),
    "fill-mask": ("logits",),
}
"""What a task's graph gives, as transformers names it; a pooler_output, and a vector of the text, only where the model has them."""
_ONE_A_ROW = {("feature-extraction", "pooler_output"), ("feature-extraction", SENTENCE), ("text-classification", "logits")}
_ADDED = "sentence_modules"
"""Attribute of a loaded model that is followed by modules of sentence-transformers."""
"""Outputs that have no axis of tokens."""

POOLER = "pooler"
"""Module of a bare encoder that vectors of texts don't depend on; a base that was saved with a head has no weights for it."""
LONG = 19
"""Tokens of the longest check of a model that attends everywhere."""
LONGEST = 600
"""And of one with a window, which is checked beyond it if that is not longer than this."""


@dataclass(frozen=True)
class EncoderCase:
    """One call: int64 inputs (rows, tokens) and what torch answers, fp32, both by name."""

    feeds: dict[str, np.ndarray]
    answers: dict[str, np.ndarray]


@dataclass(frozen=True)
class EncoderReference:
    """torch's outputs for a few batches: one text and several, short and long, padded on the left and on the right."""

    signature: Signature
    cases: tuple[EncoderCase, ...]
    vocabulary: int
    untested: str = ""
    """A length beyond which the model computes differently and that is too long to be tried; "" if there is none."""


class OnePass(torch.nn.Module):
    """A model that takes tensors in the signature's order and gives tensors in its order."""

    def __init__(self, model: Any, signature: Signature) -> None:
        super().__init__()
        self.model = model
        self.signature = signature
        self.options = constants(model)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the signature's outputs."""
        output = _outputs(self.model, dict(zip(self.signature.inputs, tensors, strict=True)), self.options)
        return tuple(output[name] for name in self.signature.outputs)


def _outputs(model: Any, inputs: Mapping[str, torch.Tensor], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the model gives by name, and what the modules after it make of that."""
    output = dict(model(**inputs, **options))
    modules = getattr(model, _ADDED, None)
    return output if modules is None else {**output, SENTENCE: modules(output["last_hidden_state"], inputs["attention_mask"])}


def constants(model: Any) -> dict[str, Any]:
    """Arguments of every call: no cache, which some classes would make although nothing reads it."""
    return {"use_cache": False} if "use_cache" in inspect.signature(model.forward).parameters else {}


def input_names(model: Any) -> tuple[str, ...]:
    """Return the inputs that a graph of this model has; token_type_ids only where there is more than one type."""
    types = "token_type_ids" in inspect.signature(model.forward).parameters and (getattr(model.config, "type_vocab_size", 0) or 0) > 1
    return ("input_ids", "attention_mask", *(("token_type_ids",) if types else ()))


def _window(model: Any) -> int:
    """Tokens that attention reaches over in layers that have a window; 0 where none has."""
    config = model.config
    return int(getattr(config, "local_attention", None) or getattr(config, "sliding_window", None) or 0)


def _long(model: Any) -> int:
    """Tokens of the longest check: beyond a window of attention where there is one, within the positions that the model knows."""
    config, window = model.config, _window(model)
    wanted = window + 5 if LONG < window + 5 <= LONGEST else LONG
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions <= 0:
        return wanted
    # Some count positions from the padding token's number on, so that the table holds so many fewer.
    return min(wanted, max(1, positions - (config.pad_token_id or 0) - 1))


def example_inputs(names: Sequence[str], vocabulary: int, pad: int, rows: int, tokens: int) -> dict[str, torch.Tensor]:
    """Inputs (rows, tokens) by name; of several rows the second is padded on the left and the last on the right."""
    generator = torch.Generator().manual_seed(rows * 1000 + tokens)
    ids = torch.randint(0, vocabulary, (rows, tokens), generator=generator)
    ids = torch.where(ids == pad, (ids + 1) % vocabulary, ids)
    mask = torch.ones_like(ids)
    holes = min(2, tokens - 1)
    if rows > 1 and holes:
        mask[1, :holes] = 0
    if rows > 2 and holes:
        mask[-1, -holes:] = 0
    types = torch.zeros_like(ids)
    types[:, (tokens + 1) // 2 :] = 1
    given = {"input_ids": ids.masked_fill(mask == 0, pad), "attention_mask": mask, "token_type_ids": types}
    return {name: given[name] for name in names}


def _refuse_other_than_text(model: Any, folder: Path) -> None:
    parameters = inspect.signature(model.forward).parameters
    if "input_ids" not in parameters or getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise unsupported(folder, f"{architecture(folder)} does not read token ids but {getattr(model, 'main_input_name', 'other inputs')}")
    if "pixel_values" in parameters or "input_features" in parameters:
        raise unsupported(folder, f"{architecture(folder)} reads images or sound in addition to text")


def _signature(inputs: tuple[str, ...], outputs: tuple[str, ...], task: Task) -> Ports:
    both = {0: BATCH, 1: SEQUENCE}
    axes = {name: {0: BATCH} if (task.name, name) in _ONE_A_ROW else both for name in outputs}
    return Ports(inputs, outputs, dict.fromkeys(inputs, both) | axes)


def refer(model: Any, folder: Path, task: Task) -> EncoderReference:
    """Run the model over a few batches; Permanent for models that don't read text alone or can't take a batch."""
    _refuse_other_than_text(model, folder)
    config = model.config.get_text_config()
    is_decoder = getattr(model.config, "num_labels", 0) and task.name == "text-classification" and hasattr(model, "score")
    if is_decoder and config.pad_token_id is None:
        cause = f"{architecture(folder)} finds each text's last token by the padding token, and config.json names no pad_token_id"
        raise Permanent(FaultCode.NO_PADDING_TOKEN, OPERATION, cause, "set pad_token_id in the base's config.json", path=folder)
    names, vocabulary, pad = input_names(model), int(model.get_input_embeddings().num_embeddings), config.pad_token_id or 0
    long = _long(model)
    cases, outputs = [], OUTPUTS[task.name]
    for rows, tokens in dict.fromkeys(((1, 1), (1, min(7, long)), (3, min(7, long)), (3, long), (1, long))):
        feeds = example_inputs(names, vocabulary, pad, rows, tokens)
        with torch.inference_mode():
            answer = _outputs(model, feeds, constants(model))
        outputs = tuple(name for name in outputs if answer.get(name) is not None)
        cases.append(
            EncoderCase({name: feed.numpy() for name, feed in feeds.items()}, {name: answer[name].float().numpy() for name in outputs})
        )
    untested = f"beyond a window of {_window(model)} tokens" if _window(model) > long else ""
    return EncoderReference(_signature(names, outputs, task), tuple(cases), vocabulary, untested)


class Encoder(Family):
    """See `handlers.families.base.Family`."""

    name = "encoder"

    def shaped(self, form: Form) -> Encoder:
        """Itself, with or without a cache, since it has none; NotApplicableError for fixed axes."""
        if form.axes != "all":
            raise NotApplicableError("the graph of an encoder must have all axes dynamic")
        return self

    def tested(self, reference: EncoderReference) -> str:
        """Return the shapes of `verify`, in words."""
        sizes = [case.feeds["input_ids"].shape for case in reference.cases]
        rows, tokens = (" and ".join(map(str, sorted({size[axis] for size in sizes}))) for axis in (0, 1))
        return f"batch {rows}, {tokens} tokens, padding on the left and right"

    def load(self, folder: Path, tracing: Tracing) -> Any:
        chain = sentence.read(folder) if self.task.name == "feature-extraction" else None
        if chain is None or not chain.makes_vectors:
            return super().load(folder, tracing)
        model = load_model(folder, self.task, tracing, unused=POOLER)
        setattr(model, _ADDED, SentenceModules(folder, chain).eval().requires_grad_(False))
        return model

    def refer(self, model: Any, folder: Path) -> EncoderReference:
        """See `Family.refer`; Permanent for models that don't read text alone."""
        return refer(model, folder, self.task)

    def parts(self, model: Any, reference: EncoderReference) -> Sequence[Part]:
        signature = reference.signature
        pad = model.config.get_text_config().pad_token_id or 0
        example = tuple(example_inputs(signature.inputs, reference.vocabulary, pad, 2, 5).values())
        return [Part("model", MODEL_FILE, signature, OnePass(model, signature).eval(), example)]

    def signatures(self, reference: EncoderReference) -> Mapping[str, tuple[str, Signature]]:
        return {"model": (MODEL_FILE, reference.signature)}

    def verify(self, folder: Path, reference: EncoderReference, *, threads: int = 1, opened: Opener = open_graph) -> float:
        """See `Family.verify`. Outputs at padding tokens are not compared; they must only be finite."""
        session = opened(folder / MODEL_FILE, reference.signature, threads)
        largest = 0.0
        for case in reference.cases:
            try:
                answers = session.run(None, case.feeds)
            except RuntimeError as error:
                rows, tokens = case.feeds["input_ids"].shape
                first = str(error).strip().splitlines()[0]
                raise GraphMismatchError(f"the graph does not take {rows} rows of {tokens} tokens: {first}") from None
            for name, answer in zip(reference.signature.outputs, answers, strict=True):
                largest = max(largest, _difference(name, answer, case, reference.signature))
        return largest


def _difference(name: str, answer: np.ndarray, case: EncoderCase, signature: Signature) -> float:
    wanted, real = case.answers[name], case.feeds["attention_mask"].astype(bool)
    if answer.shape == wanted.shape and 1 in signature.axes[name]:
        if not np.isfinite(answer).all():
            raise GraphMismatchError(f"the graph's {name} hold values that are not finite")
        answer, wanted = answer[real], wanted[real]
    return largest_relative(answer, wanted, name)
