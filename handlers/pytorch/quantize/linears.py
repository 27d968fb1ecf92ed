"""Which weights of a model are quantized: those of the linear layers that transformers would quantize, found without loading any weight.

Called by the stages of this room. As transformers does, the output head, what is tied to the embeddings and what a model keeps in fp32 stay
as they are. The class that config.json names is built on torch's meta device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge.weights.model_structure import model_class
from handlers.models.folder import ModelFolder


@dataclass(frozen=True)
class Linear:
    """A linear layer whose weight is quantized."""

    module: str
    """Its path in the model."""
    tensor: str
    """Its weight's name in the files."""
    transposed: bool
    """It is a Conv1D, whose weight is stored as inputs × outputs."""
    inputs: int
    outputs: int


@dataclass(frozen=True)
class Linears:
    """The linear layers of a model."""

    quantized: dict[str, Linear]
    """Name of the weight in the files → layer."""
    kept: tuple[str, ...]
    """Paths of those that stay as they are."""
    built: Any
    """The model, without weights."""


def find(model: ModelFolder, variant: str) -> Linears:
    """The linear layers of the merged model.

    Permanent where transformers can't build the model, where a layer's weight is not where its name says, or where there is none.
    """
    from transformers.pytorch_utils import Conv1D
    from transformers.quantizers.base import HfQuantizer
    from transformers.quantizers.quantizers_utils import should_convert_module

    operation = f"find the layers to quantize for {variant}"
    cls = model_class(model)
    with torch.device("meta"):
        built = cls(cls.config_class.from_pretrained(model.path))
    skipped = HfQuantizer.get_modules_to_not_convert(built, None, built._keep_in_fp32_modules)
    layers = {name: module for name, module in built.named_modules() if type(module) is torch.nn.Linear or type(module) is Conv1D}
    names = {name: f"{name}.weight" for name in layers if should_convert_module(name, skipped)}
    if not set(names.values()) <= model.headers.keys():
        stored = _stored_names(built, model)
        names = {name: stored.get(weight, weight) for name, weight in names.items()}
    if missing := sorted(name for name, tensor in names.items() if tensor not in model.headers):
        cause = f"{len(missing)} linear layers of the model are stored under other names, for example {missing[0]}"
        raise Permanent(FaultCode.FORM_NOT_POSSIBLE, operation, cause, f"use pytorch-bf16 and leave {variant} out", path=model.path)
    if not names:
        raise Permanent(
            FaultCode.FORM_NOT_POSSIBLE, operation, "the model has no linear layer beside its output head",
            f"use pytorch-bf16 and leave {variant} out", path=model.path,
        )  # fmt: skip
    quantized = {}
    for module, tensor in names.items():
        transposed, shape = type(layers[module]) is Conv1D, model.headers[tensor].shape
        outputs, inputs = reversed(shape) if transposed else shape
        quantized[tensor] = Linear(module, tensor, transposed, inputs, outputs)
    return Linears(quantized, tuple(sorted(layers.keys() - names.keys())), built)


def _stored_names(built: Any, model: ModelFolder) -> dict[str, str]:
    """Parameter → its tensor in the files, as transformers renames tensors when it loads a folder: hubs store models of several towers by
    the names of older releases, and a bare model's weights lack the model's own prefix."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    renamings = [change for change in get_model_conversion_mapping(built) if isinstance(change, WeightRenaming)]
    parameters = built.state_dict()
    return {rename_source_key(name, renamings, [], built.base_model_prefix, parameters)[0]: name for name in model.headers}


def split_while_loading(built: Any) -> str | None:
    """The pattern of tensors each of which transformers splits into several weights as it loads them, if the model has such.

    Of compressed-tensors' layers it would have to read several tensors for each, and its `WeightConverter` refuses many for many.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    splits = [
        change.source_patterns[0] for change in get_model_conversion_mapping(built)
        if isinstance(change, WeightConverter) and len(change.target_patterns) > 1
        and not any(getattr(operation, "supports_many_to_many", False) for operation in change.operations)
    ]  # fmt: skip
    return next((name for name in splits if name.endswith(".weight")), None)


def unfit_without_weight(built: Any, layers: Iterable[str]) -> dict[str, str]:
    """Module → class of its tower, of those `layers` that transformers can't load where they have packed tensors in place of a weight.

    Before it loads, transformers 5.23 lets each tower initialize its modules (`PreTrainedModel._init_weights`), and some, such as SigLIP's,
    read the weight of each linear layer. `built`: on the meta device, where this costs nothing.
    """
    named, taken = dict(built.named_modules()), list(layers)
    weights = {name: named[name]._parameters.pop("weight") for name in taken}
    try:
        failing = {path: "" if _initializes(tower) else type(tower).__name__ for path, tower in _towers(built)}
    finally:
        for name, weight in weights.items():
            named[name]._parameters["weight"] = weight
    owners = {name: max((path for path in failing if not path or name.startswith(f"{path}.")), key=len) for name in taken}
    return {name: failing[path] for name, path in owners.items() if failing[path]}


def _towers(built: Any) -> Iterator[tuple[str, Any]]:
    """Models inside a model, itself included, by their paths."""
    from transformers import PreTrainedModel

    return ((path, part) for path, part in built.named_modules() if isinstance(part, PreTrainedModel))


def _initializes(tower: Any) -> bool:
    """Whether a model initializes its own modules; those of models inside it are theirs."""
    from transformers import PreTrainedModel

    def apply(module: Any) -> None:
        for child in module.children():
            if not isinstance(child, PreTrainedModel):
                apply(child)
        tower._init_weights(module)

    try:
        apply(tower)
    except AttributeError:
        return False
    return True


def working_dtype(model: ModelFolder) -> torch.dtype:
    """The 16 bits in which a quantized model keeps its other weights and computes: the merged model's own, else bf16."""
    return torch.float16 if model.main_dtype == "float16" else torch.bfloat16
