"""Encoders of pictures and sounds, with a head or without, and of two towers: one graph, one pass.

Chosen by `handlers.families.choice.choose`: ViT and its relatives, ConvNeXt, Swin, CLIP, Wav2Vec2 and its relatives. What goes in is found
in `inputs`; what comes out has the names that optimum's graphs have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from handlers.families.base import Family, Form, NotApplicableError, Part, architecture, unsupported
from handlers.families.media.inputs import PICTURES, TEXTS, Inputs, of_model
from handlers.graphs.comparison import GraphMismatchError, Opener, largest_relative, open_graph
from handlers.graphs.graph_file import MODEL_FILE
from handlers.graphs.signature import BATCH, Ports, Signature

TOWERS = ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")
OUTPUTS = ("logits", "last_hidden_state", "pooler_output")
"""What the graph gives of what the model gives; of two towers, TOWERS."""
FRAMES = "frames"
"""Axis of outputs that grows with the input."""


@dataclass(frozen=True)
class MediaCase:
    """One call: inputs by name, and what torch answers, fp32."""

    feeds: dict[str, np.ndarray]
    answers: dict[str, np.ndarray]


@dataclass(frozen=True)
class MediaReference:
    """torch's outputs for batches of all sizes."""

    signature: Signature
    cases: tuple[MediaCase, ...]
    inputs: Inputs


class OnePass(torch.nn.Module):
    """A model that takes tensors in the signature's order and gives tensors in its order."""

    def __init__(self, model: Any, signature: Signature) -> None:
        super().__init__()
        self.model, self.names, self.outputs = model, signature.inputs, signature.outputs

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the signature's outputs."""
        output = self.model(**dict(zip(self.names, tensors, strict=True)))
        return tuple(output[name] for name in self.outputs)


class MediaEncoder(Family):
    """See `handlers.families.base.Family`."""

    name = "media-encoder"

    def shaped(self, form: Form) -> MediaEncoder:
        """Itself, with or without a cache, since it has none; NotApplicableError for fixed axes."""
        if form.axes != "all":
            raise NotApplicableError("the graph of an encoder must have all axes dynamic")
        return self

    def refer(self, model: Any, folder: Path) -> MediaReference:
        """See `Family.refer`; Permanent for a model that gives none of the known outputs."""
        inputs = of_model(model, folder)
        cases = []
        for feeds in inputs.cases():
            with torch.inference_mode():
                answer = model(**feeds)
            names = [name for name in (TOWERS if "image_embeds" in answer else OUTPUTS) if answer.get(name) is not None]
            if not names:
                raise unsupported(folder, f"{architecture(folder)} gives none of {', '.join(OUTPUTS)}")
            answers = {name: answer[name].float().numpy() for name in names}
            cases.append(MediaCase({name: feed.numpy() for name, feed in feeds.items()}, answers))
        return MediaReference(_signature(inputs, cases), tuple(cases), inputs)

    def parts(self, model: Any, reference: MediaReference) -> Sequence[Part]:
        signature = reference.signature
        example = reference.inputs.example()
        tensors = tuple(example[name].contiguous() for name in signature.inputs)
        return [Part("model", MODEL_FILE, signature, OnePass(model, signature).eval(), tensors)]

    def signatures(self, reference: MediaReference) -> Mapping[str, tuple[str, Signature]]:
        return {"model": (MODEL_FILE, reference.signature)}

    def tested(self, reference: MediaReference) -> str:
        """Return the shapes of `verify`, in words."""
        shapes = [" and ".join("×".join(map(str, feed.shape)) for feed in case.feeds.values()) for case in reference.cases]
        return f"{', '.join(reference.signature.inputs)} of {', '.join(dict.fromkeys(shapes))}"

    def verify(self, folder: Path, reference: MediaReference, *, threads: int = 1, opened: Opener = open_graph) -> float:
        """See `Family.verify`. What is computed at padding is compared too."""
        session, largest = opened(folder / MODEL_FILE, reference.signature, threads), 0.0
        for case in reference.cases:
            try:
                answers = session.run(None, case.feeds)
            except RuntimeError as error:
                shapes = ", ".join(f"{name} {feed.shape}" for name, feed in case.feeds.items())
                raise GraphMismatchError(f"the graph does not take {shapes}: {str(error).strip().splitlines()[0]}") from None
            for name, answer in zip(reference.signature.outputs, answers, strict=True):
                largest = max(largest, largest_relative(answer, case.answers[name], name))
        return largest


def _signature(inputs: Inputs, cases: Sequence[MediaCase]) -> Ports:
    outputs = {name: [case.answers[name].shape for case in cases] for name in cases[0].answers}
    rows = {"logits_per_image": {0: PICTURES, 1: TEXTS}, "logits_per_text": {0: TEXTS, 1: PICTURES}}
    rows |= {"text_embeds": {0: TEXTS}, "image_embeds": {0: PICTURES}}
    axes = {name: rows.get(name) or {0: BATCH, **_changing(shapes)} for name, shapes in outputs.items()}
    return Ports(tuple(inputs.axes), tuple(outputs), {**inputs.axes, **axes})


def _changing(shapes: Sequence[tuple[int, ...]]) -> dict[int, str]:
    """Return the axes behind the first one that differ between the cases, each with a name."""
    axes = [axis for axis in range(1, len(shapes[0])) if len({shape[axis] for shape in shapes}) > 1]
    return {axis: FRAMES if number == 0 else f"{FRAMES}_{number}" for number, axis in enumerate(axes)}
