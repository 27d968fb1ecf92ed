"""The engines of adapters: what training left behind, run as PEFT runs it. Imported only inside the live worker.

Apart from `torch_engine`, since importing peft takes longer than importing torch and transformers together.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# peft imports bitsandbytes, which asks torch to compile functions of its optimizers; that would load torch's whole compiler.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import numpy as np
from peft import PeftConfig, PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from transformers import GenerationConfig

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.merge.adapters.keys import without_wrappers
from handlers.merge.adapters.patterns import bound
from handlers.models.tasks import BY_NAME, task_of
from handlers.validate.engines import live_base
from handlers.validate.engines.arrays import largest_difference
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.engines.torch_causal import POOLER, TorchEngine, TorchModel, load_model
from handlers.validate.engines.torch_tasks import TorchEncoder, TorchSeq2Seq

_WRAPPER = "base_model.model."
"""What PEFT puts before the names of the base's modules in its files."""


class Adapted(TorchModel):
    """The base in fp32 with the adapter applied at run time, not merged.

    The tokenizer is the checkpoint's own where it has one, else the base's. Where the adapter brings the head of a task that the base
    has not, the base is loaded as that task's class. `rebase` gives it other values than those that are stored.
    """

    adapted = True

    def _plain(self) -> Any:
        return self._model.get_base_model()

    def _load(self, spec: EngineSpec) -> Any:
        assert spec.base is not None
        pin, base = Path(spec.folder), Path(spec.base)
        self._tokenizer_folders = [pin, base]
        saved = _saved_shapes(pin)
        model = self._load_base(base, spec, saved)
        _resize_as_saved(model, saved)
        if (pin / "generation_config.json").is_file() and model.can_generate():
            model.generation_config = GenerationConfig.from_pretrained(pin, local_files_only=True)
        self._base, self._pin = base, pin
        self._parameters, self._prefix = dict(model.named_parameters()), model.base_model_prefix  # PEFT keeps them, under other names
        try:
            wrapped = PeftModel.from_pretrained(model, str(pin), config=_config(pin, model), is_trainable=False)
        except ValueError as error:
            raise Permanent(
                FaultCode.ADAPTER_NOT_LOADABLE, "load the live model",
                f"PEFT itself can't put this adapter on the base {base}: {str(error).strip().splitlines()[0]}",
                "give the base that it was trained on, or save the adapter again with an adapter_config.json that fits its weights",
                path=pin,
            ) from error  # fmt: skip
        _mix(wrapped, spec)
        return wrapped

    def _load_base(self, base: Path, spec: EngineSpec, saved: dict[str, tuple[int, ...]]) -> Any:
        stored, task = task_of(base), spec.task
        if spec.sentence:  # a head that the base names takes no part in it
            return load_model(base, task, (*saved, *POOLER))
        if stored is None or stored.name == task or BY_NAME[task].kind != "encoder":
            return load_model(base, task)
        self.adapted = False  # without the adapter there is only a head of random values
        settings: dict[str, Any] = {}
        if task not in ("question-answering", "fill-mask", "feature-extraction"):
            settings["num_labels"] = _labels(base, task, saved)
        return load_model(base, task, saved, **settings)

    def rebase(self, values: str) -> int:
        """Put the adapter on the base that `merge.base` names; the number of tensors that were set."""
        self._values = values
        return live_base.rebase(self._base, self._parameters, self._prefix, values, partly=not self.adapted)

    def streams(self) -> str | None:
        """Why the merge could take no other base than the original, as a clause; None where it could."""
        return live_base.why_not(self._pin, self._base)

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
        """max |Δ| of a text's outputs between PEFT's wrapper and the model inside of it, both with the adapter and the segments `types`."""
        row, segments = np.array([ids], np.int64), np.array([types], np.int64)
        wrapped, inside = (self._outputs(model, row, np.ones_like(row), segments) for model in (self._model, self._plain()))
        return max(largest_difference(mine, theirs) for mine, theirs in zip(wrapped, inside, strict=True))


def _config(folder: Path, model: Any) -> Any:
    """An adapter's configuration, of which PEFT's matching of names comes to an end; Permanent for one of which it does not."""
    config = PeftConfig.from_pretrained(str(folder))
    bound(config, {name for name, _ in model.named_modules()}, folder)
    return config


def _mix(model: Any, spec: EngineSpec) -> None:
    """Let the additions act beside the adapter, each with its factor: PEFT adds the deltas of all active adapters up.

    Permanent where PEFT does not take one of them, or has no place for a tensor of it.
    """
    weights = dict(zip(model.peft_config, (spec.weight,), strict=True))
    for number, (folder, weight) in enumerate(spec.additions):
        name = f"addition-{number}"
        config = _config(Path(folder), model.get_base_model())
        config.inference_mode = True
        try:
            model.add_adapter(name, config)
            unplaced = model.load_adapter(folder, name, is_trainable=False).unexpected_keys
        except ValueError as error:
            unplaced = [str(error)]
        if unplaced:
            raise Permanent(
                FaultCode.ADAPTERS_NOT_ADDITIVE, "load the live model",
                f"PEFT can't load this adapter together with the checkpoint's: {unplaced[0]}", "leave it out of merge.add", path=folder,
            )  # fmt: skip
        weights[name] = weight
    if spec.additions:
        model.base_model.set_adapter(list(weights))
    for module in model.modules():
        if isinstance(module, LoraLayer):
            for name in weights.keys() & module.scaling.keys():
                module.scaling[name] *= weights[name]


def _saved_shapes(pin: Path) -> dict[str, tuple[int, ...]]:
    """Name in the base → shape of every tensor that the adapter saved; those that are replaced whole have their own names."""
    weights = pin / "adapter_model.safetensors"
    if not weights.is_file():
        return {}
    with safe_open(weights, framework="pt") as stream:
        shapes = {key: tuple(stream.get_slice(key).get_shape()) for key in stream.keys()}  # noqa: SIM118
    return {without_wrappers(key.removeprefix(_WRAPPER)): shape for key, shape in shapes.items()}


def _labels(base: Path, task: str, saved: dict[str, tuple[int, ...]]) -> int:
    """Number of labels of the head that the adapter brings: the rows of its last layer."""
    heads = [shape[0] for name, shape in saved.items() if name.endswith(".weight") and ".lora_" not in name and len(shape) == 2]
    if not heads:
        cause = f"the base is not a model for {task}, and the adapter brings no head for it"
        raise Permanent(FaultCode.NO_HEAD, "load the live model", cause, "train with modules_to_save naming the head", path=base)
    return min(heads)


def _resize_as_saved(base: Any, saved: dict[str, tuple[int, ...]]) -> None:
    """Give the base the vocabulary that the adapter's saved embeddings have: training may have added tokens."""
    rows = base.get_input_embeddings().weight.shape[0]
    for name, shape in saved.items():
        if name.endswith(("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")):
            if shape[0] != rows:
                base.resize_token_embeddings(shape[0], mean_resizing=False)
            return
