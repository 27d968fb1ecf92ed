"""The engines of adapters: what training left behind, run as PEFT runs it. Imported only inside the live worker.

Apart from `torch_engine`, since importing peft takes longer than importing torch and transformers together.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# peft imports bitsandbytes, which asks torch to compile functions of its optimizers; that would load torch's whole compiler.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import numpy as np
import torch
from peft.tuners.lora import Embedding, LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import GenerationConfig

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.models.folder import ModelFolder
from handlers.models.tasks import BY_NAME, task_of
from handlers.validate.engines.adapters import loading, packed_base, vocabulary
from handlers.validate.engines.arrays import largest_difference
from handlers.validate.engines.media.encoders import MediaEncoder
from handlers.validate.engines.media.speech import TorchSpeech
from handlers.validate.engines.pytorch.folder import POOLER, load_model, renamed_tensors
from handlers.validate.engines.pytorch.torch_causal import TorchEngine, TorchModel
from handlers.validate.engines.pytorch.torch_tasks import TorchEncoder, TorchSeq2Seq
from handlers.validate.engines.registry import EngineSpec

_HALVES = {"BF16": "bfloat16", "F16": "float16"}
_FLOATS = ("F64", "F32", *_HALVES)
"""Dtypes of a safetensors header."""


class Adapted(TorchModel):
    """The base in fp32 with the adapter applied at run time, not merged.

    transformers loads the base and PEFT the adapter, both from the files as they are. The tokenizer is the checkpoint's own where it has
    one, else the base's. Where the adapter brings the head of a task that the base has not, the base is loaded as that task's class; where
    it brings embeddings of another size, the base's are resized. `rebase` gives the base other values than those that are stored.
    """

    adapted = True
    _again: Any = None
    """Loads the base once more, as it was loaded, with other settings."""
    _pin: Path
    _base: Path
    _summed: bool
    """There are several adapters, or a factor for the only one: then no delta is rounded before the sum."""
    deviations: tuple[str, ...] = ()
    """What was done beside the plain calls, and what PEFT reported, in sentences."""

    def _plain(self) -> Any:
        return self._model.get_base_model()

    def _load(self, spec: EngineSpec) -> Any:
        assert spec.base is not None
        pin, base = Path(spec.folder), Path(spec.base)
        self._pin, self._base, self._summed = pin, base, bool(spec.additions) or spec.weight != 1
        self._tokenizer_folders = [pin, base]
        shapes = loading.shapes_in(pin)
        model = self._load_base(base, spec, shapes)
        model, unpacked = packed_base.without_int8(model)
        resized = self._resize(model, shapes)
        if (pin / "generation_config.json").is_file() and model.can_generate():
            model.generation_config = GenerationConfig.from_pretrained(pin, local_files_only=True)
        self._rebasing = packed_base.Rebasing(model, self._again, base)  # asked now, since PEFT gives the parameters other names
        wrapped, deviations = loading.wrap(model, pin)
        self._rebasing.note_changes({loading.in_base(key) for key in shapes})
        self.deviations = (*unpacked, *(resized.settle(wrapped) if resized else ()), *deviations)
        _mix(wrapped, spec)
        return wrapped

    def _resize(self, model: Any, shapes: dict[str, tuple[int, ...]]) -> vocabulary.Resized | None:
        """Give the base the vocabulary that the adapter's embeddings have; None where it has it."""
        weight = vocabulary.wanted(model, shapes)
        return vocabulary.resize(model, weight.rows) if weight else None

    def _load_base(self, base: Path, spec: EngineSpec, shapes: dict[str, tuple[int, ...]]) -> Any:
        stored, task = task_of(base), spec.task
        held = {loading.in_base(key): shape for key, shape in shapes.items()}
        made: tuple[str, ...] = ()
        settings: dict[str, Any] = {}
        if spec.sentence:  # a head that the base names takes no part in it
            made = (*held, *POOLER)
        elif stored is not None and stored.name != task and BY_NAME[task].kind == "encoder":
            self.adapted = False  # without the adapter there is only a head of random values
            made = tuple(held)
            if task not in ("question-answering", "fill-mask", "feature-extraction"):
                settings["num_labels"] = _labels(base, task, held)
        self._again = functools.partial(load_model, base, task, made, **settings)
        model = self._again()
        packed_base.keep_order(model)
        return model

    def rebase(self, values: str) -> int:
        """Put the adapter on the base that `merge.base` names; the number of tensors that were set."""
        self._values = values
        return self._rebasing.take(values)

    def fixed(self) -> str | None:
        """Say why the adapter can't be put on another base, as a clause; None where it can."""
        return self._rebasing.obstacle

    def merge(self, dtype: str | None, folder: Path) -> int:
        """Merge by PEFT's own `merge_adapter`, and go on in fp32; the number of weights that it merged in 16 bits. PEFT merges as with a
        base loaded in `dtype`; without one in fp32, but for embeddings that base and merge, in `folder`, have in the same 16 bits: their
        deltas it rounds to these.

        Permanent where the adapter acts on one of two layers that share a weight, since PEFT would change both.
        """
        layers = [layer for layer in (self._plain().get_input_embeddings(), self._plain().get_output_embeddings()) if layer is not None]
        weights = [getattr(layer, "base_layer", layer).weight for layer in layers]
        if len(layers) == 2 and weights[0] is weights[1] and any(hasattr(layer, "base_layer") for layer in layers):
            cause = "the adapter changes the embedding or the head, which share a weight"
            raise Permanent(FaultCode.ADAPTER_NOT_MERGEABLE, "merge the live model", cause, "", path=self._pin)
        tables, kept, halved = {} if dtype or self._summed else self._tables(folder), _factors(self._model), 0
        floats = [weight for weight in self._model.parameters() if weight.is_floating_point() and id(weight) not in kept]
        for weight in floats:
            if (own := dtype or tables.get(id(weight))) is not None:
                weight.data, halved = weight.data.to(getattr(torch, own)), halved + 1
            else:
                weight.data = weight.data.clone()  # the old memory may be the base's file
        self._model.base_model.merge_adapter()
        for weight in floats:
            weight.data = weight.data.float()
        self._values += ", merged"
        return halved

    def _tables(self, folder: Path) -> dict[int, str]:
        """Give the ids of the embeddings whose delta PEFT rounds, with the 16 bits in which both the base and `folder` have them."""
        before, after = self._stored_in(self._base), self._stored_in(folder)
        layers = [item for item in self._model.named_modules() if isinstance(item[1], Embedding) and not item[1].lora_variant]
        dtypes = ((id(layer.weight), before(f"{name}.weight"), after(f"{name}.weight")) for name, layer in layers)
        return {weight: dtype for weight, dtype, written in dtypes if dtype is not None and dtype == written}

    def round(self, folder: Path) -> int:
        """Round each weight to the dtype in which `folder` has it, and go on in fp32; the number of those that it has in 16 bits.

        Permanent where it has weights in several dtypes, and one of the model's under a name of which nothing is known.
        """
        stored_in, kept, rounded = self._stored_in(folder), _factors(self._model), 0
        for name, weight in self._model.state_dict(keep_vars=True).items():
            if weight.is_floating_point() and id(weight) not in kept and (dtype := stored_in(name)) is not None:
                weight.data = weight.data.to(getattr(torch, dtype)).float()
                rounded += 1
        self._values += ", rounded"
        return rounded

    def _stored_in(self, folder: Path) -> Callable[[str], str | None]:
        """Give what says in which 16 bits a folder has a weight of the model, None for more; Permanent where nothing is known of it."""
        stored = {name: _HALVES.get(info.dtype) for name, info in ModelFolder(folder).headers.items() if info.dtype in _FLOATS}
        alike = len(set(stored.values())) == 1
        names = {} if alike else {name: as_stored for as_stored, name in renamed_tensors(self._plain(), folder).items()}

        def dtype_of(name: str) -> str | None:
            plain = loading.in_base(name).replace(f".{loading.NAME}", "")
            place = next(iter(stored)) if alike else names.get(plain, plain)
            if place not in stored:
                cause = f"it is not known in which dtype the merged model has {plain}"
                raise Permanent(FaultCode.UNKNOWN_LAYOUT, "round the live model", cause, "", path=folder)
            return stored[place]

        return dtype_of

    @contextlib.contextmanager
    def without_adapter(self) -> Iterator[None]:
        """Inside, the model is the bare base."""
        with self._model.disable_adapter():
            self._bare = True
            try:
                yield
            finally:
                self._bare = False


class LiveEngine(Adapted, TorchEngine):
    """A language model."""


class LiveSeq2Seq(Adapted, TorchSeq2Seq):
    """An encoder-decoder."""


class LiveEncoder(Adapted, TorchEncoder):
    """An encoder, with a head or without."""

    def wrapper_difference(self, ids: Sequence[int], types: Sequence[int]) -> float:
        """Give max |Δ| of a text's outputs between PEFT's wrapper and the model inside of it, both with adapter and segments `types`."""
        row, segments = np.array([ids], np.int64), np.array([types], np.int64)
        wrapped, inside = (self._outputs(model, row, np.ones_like(row), segments) for model in (self._model, self._plain()))
        return max(largest_difference(mine, theirs) for mine, theirs in zip(wrapped, inside, strict=True))


class LiveMediaEncoder(Adapted, MediaEncoder):
    """An encoder of pictures or sounds."""


class LiveMediaSeq2Seq(Adapted, TorchSpeech):
    """An encoder of sounds with a decoder of text."""


def _factors(model: Any) -> set[int]:
    """Give the ids of the parameters that an adapter added, of any method: beside a base in 16 bits PEFT keeps them in fp32."""
    layers = [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
    holders = [getattr(layer, name, None) for layer in layers for name in layer.adapter_layer_names]
    return {id(weight) for holder in holders if isinstance(holder, torch.nn.Module) for weight in holder.parameters()}


def _mix(model: Any, spec: EngineSpec) -> None:
    """Let the additions act beside the adapter, each with its factor: PEFT adds the deltas of all active adapters up.

    Permanent where PEFT does not take one of them, or has no place for a tensor of it.
    """
    weights = dict(zip(model.peft_config, (spec.weight,), strict=True))
    for number, (folder, weight) in enumerate(spec.additions):
        name = f"addition-{number}"
        loading.add(model, Path(folder), name)
        weights[name] = weight
    if spec.additions:
        model.base_model.set_adapter(list(weights))
    for module in model.modules():
        if isinstance(module, LoraLayer):
            for name in weights.keys() & module.scaling.keys():
                module.scaling[name] *= weights[name]


def _labels(base: Path, task: str, saved: dict[str, tuple[int, ...]]) -> int:
    """Give number of labels of the head that the adapter brings: the rows of its last layer."""
    heads = [shape[0] for name, shape in saved.items() if name.endswith(".weight") and ".lora_" not in name and len(shape) == 2]
    if not heads:
        cause = f"the base is not a model for {task}, and the adapter brings no head for it"
        raise Permanent(FaultCode.HEAD_INCOMPLETE, "load the live model", cause, "train with modules_to_save naming the head", path=base)
    return min(heads)
