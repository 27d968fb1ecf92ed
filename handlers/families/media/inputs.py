"""What encoders of pictures and sounds take: names, dynamic axes, and made-up batches of several sizes.

Called by the family of such encoders. The names and the axes are those of optimum's graphs (optimum-onnx 0.1, `exporters/onnx/
model_configs.py`): pixel_values, input_values, and for two towers input_ids, pixel_values, attention_mask. Sounds have their attention_mask
besides where their processor gives one: without it, what fills up a batch would be heard. What is dynamic beside the number of rows is
learnt from the model: a picture's size where it takes another one than its own.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch

from handlers.families.base import OPERATION, architecture, unsupported
from handlers.graphs.signature import BATCH, SEQUENCE
from handlers.models.files import read_json

HEIGHT, WIDTH, SAMPLES, TEXTS, PICTURES = "height", "width", "samples", "text_batch", "image_batch"
Axes = Mapping[int, str]
Tensors = dict[str, torch.Tensor]
_PREPARED = "preprocessor_config.json"
_LAID_OUT = ("window_size", "use_relative_position_bias")
"""In configurations of models that lay out windows or positions for a size of picture while they run (Swin, BEiT): a trace keeps it."""


class Inputs(Protocol):
    """What a model takes, and batches of it."""

    @property
    def axes(self) -> Mapping[str, Axes]:
        """Input → its dynamic axes, in the order of the graph's inputs."""

    def example(self) -> Tensors:
        """What is traced: every dynamic axis above 1 and unlike the others."""

    def cases(self) -> list[Tensors]:
        """Batches of one and of several, of each size that the graph must take."""


@dataclass(frozen=True)
class Pictures:
    """pixel_values (rows, channels, height, width) float32."""

    channels: int
    sizes: tuple[tuple[int, int], ...]
    """The model's own size first, then others that it takes."""

    @property
    def axes(self) -> Mapping[str, Axes]:
        return {"pixel_values": {0: BATCH, **({2: HEIGHT, 3: WIDTH} if self.sizes[1:] else {})}}

    def example(self) -> Tensors:
        return self.batch(2, self.sizes[-1])

    def cases(self) -> list[Tensors]:
        return [self.batch(rows, size) for rows, size in ((1, self.sizes[0]), (3, self.sizes[0]), *((2, size) for size in self.sizes[1:]))]

    def batch(self, rows: int, size: tuple[int, int]) -> Tensors:
        """Return unlike pictures, whose channels have unlike means."""
        shape = (rows, self.channels, *size)
        values = torch.randn(shape, generator=torch.Generator().manual_seed(rows * 1000 + size[1]))
        return {"pixel_values": values + torch.linspace(-1, 1, self.channels)[:, None, None]}


@dataclass(frozen=True)
class Sounds:
    """input_values (rows, samples) float32, or (rows, frames, bins) of a fixed size; the mask of samples where the processor gives it."""

    shortest: int
    """Samples of a few frames; 0 where the size is fixed."""
    masked: bool
    fixed: tuple[int, ...] = ()
    """Frames and bins."""

    @property
    def axes(self) -> Mapping[str, Axes]:
        both = {0: BATCH, 1: SAMPLES}
        return {"input_values": {0: BATCH} if self.fixed else both, **({"attention_mask": both} if self.masked else {})}

    def example(self) -> Tensors:
        return self.batch((self.shortest + 37, self.shortest * 2 + 11))

    def cases(self) -> list[Tensors]:
        short, long = self.shortest, self.shortest * 3 + 57
        if self.fixed:
            return [self.batch((0,)), self.batch((0, 0, 0))]
        return [self.batch((short,)), self.batch((long,)), self.batch((short * 2, short + 5, long)), self.batch((short, short))]

    def batch(self, lengths: Sequence[int]) -> Tensors:
        """Return sounds of these lengths, filled up with zeros on the right, as processors do."""
        generator = torch.Generator().manual_seed(sum(lengths) + len(lengths))
        values = torch.randn((len(lengths), *(self.fixed or (max(lengths),))), generator=generator)
        if self.fixed:
            return {"input_values": values}
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        values = torch.where(mask, values, 0.0)
        return {"input_values": values, **({"attention_mask": mask.long()} if self.masked else {})}


@dataclass(frozen=True)
class Both:
    """input_ids and attention_mask (texts, tokens) int64, and pictures: any number of each."""

    pictures: Pictures
    vocabulary: int
    longest: int
    """Tokens of a text."""
    end: int

    @property
    def axes(self) -> Mapping[str, Axes]:
        tokens = {0: TEXTS, 1: SEQUENCE}
        pixels = {axis: PICTURES if axis == 0 else name for axis, name in self.pictures.axes["pixel_values"].items()}
        return {"input_ids": tokens, "pixel_values": pixels, "attention_mask": tokens}

    def example(self) -> Tensors:
        return self._with(self.pictures.example(), 3, 5)

    def cases(self) -> list[Tensors]:
        texts = ((1, min(7, self.longest)), (2, min(4, self.longest)), (3, self.longest))
        pictures = self.pictures.cases()
        return [self._with(pictures[place % len(pictures)], *texts[place % 3]) for place in range(max(3, len(pictures)))]

    def _with(self, pictures: Tensors, rows: int, tokens: int) -> Tensors:
        """Return texts that end with the end token beside pictures, the last text padded with it. Of the others a token before the end is
        hidden: whether a graph reads the mask of what is behind the end, no output shows."""
        generator = torch.Generator().manual_seed(rows * 1000 + tokens)
        ids = torch.randint(0, self.vocabulary, (rows, tokens), generator=generator)
        ids = torch.where(ids == self.end, (ids + 1) % self.vocabulary, ids)
        mask = torch.ones_like(ids)
        if rows > 1:
            mask[-1, tokens // 2 + 1 :] = 0
        ends = mask.sum(1) - 1
        ids = torch.where(torch.arange(tokens) >= ends[:, None], self.end, ids)
        mask[: rows - 1, 1] = 0
        return {"input_ids": ids, "pixel_values": pictures["pixel_values"], "attention_mask": mask}


def of_model(model: Any, folder: Path) -> Inputs:
    """What the model of `folder` takes; Permanent where that is something else."""
    parameters = inspect.signature(model.forward).parameters
    if "pixel_values" in parameters and "input_ids" in parameters:
        return _both(model)
    if model.main_input_name == "pixel_values":
        return _pictures(model, model.config)
    if model.main_input_name == "input_values":
        return _sounds(model, folder)
    raise unsupported(folder, f"{architecture(folder)} reads {model.main_input_name}")


def _both(model: Any) -> Both:
    text = model.config.text_config
    pictures = _pictures(model.vision_model, model.config.vision_config)
    return Both(pictures, int(text.vocab_size), min(19, int(text.max_position_embeddings)), int(text.eos_token_id or 0))


def _pictures(model: Any, config: Any) -> Pictures:
    size = getattr(config, "image_size", None) or 224
    own = (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))
    channels, step = int(getattr(config, "num_channels", 3)), _step(config)
    other = (own[0] + step, own[1] + 3 * step)
    if any(hasattr(config, name) for name in _LAID_OUT) or not _takes(model, {"pixel_values": torch.zeros(1, channels, *other)}):
        return Pictures(channels, (own,))
    return Pictures(channels, (own, (own[0] + 2 * step, own[1]), other))


def _step(config: Any) -> int:
    """Return a size by which a picture grows by whole patches."""
    patch = getattr(config, "patch_size", None) or 32
    return int(patch) if isinstance(patch, int) and patch > 4 else 32


def _takes(model: Any, inputs: Tensors) -> bool:
    with contextlib.suppress(Exception), torch.inference_mode():  # whatever it is, the model takes no such picture
        model(**inputs)
        return True
    return False


def _sounds(model: Any, folder: Path) -> Sounds:
    config = model.config
    if (strides := getattr(config, "conv_stride", None)) is None:  # a spectrogram
        return Sounds(0, masked=False, fixed=(int(config.max_length), int(config.num_mel_bins)))
    return Sounds(prod(strides) * 12 + sum(config.conv_kernel), masked=_masked(config, folder))


def _masked(config: Any, folder: Path) -> bool:
    """Whether the model's processor gives the mask of a batch, and so the model must read it.

    Where it does not say so, by transformers' documentation of these models: those with a group norm were trained without one.
    """
    path = folder / _PREPARED
    said = read_json(path, OPERATION).get("return_attention_mask") if path.is_file() else None
    return bool(said) if said is not None else getattr(config, "feat_extract_norm", "") == "layer"
