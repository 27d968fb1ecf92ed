"""What an adapter means for a model without its weights: which ones PEFT can put over it, and what they bring of their own.

Apart from `skeleton.py`, since importing peft takes as long as importing torch, and most who read a model part by part have no adapter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig
from peft.tuners.lora import LoraLayer
from peft.utils.other import TrainableTokensWrapper

from handlers.layerwise.skeleton import Skeleton, refuse
from handlers.merge.adapters.keys import without_wrappers

_PREPARES = (True, False, "gaussian", "orthogonal")
"""Values of init_lora_weights that leave the base as it is; all others compute with its weights when PEFT loads the adapter."""


def check_adapter(folder: Path) -> PeftConfig:
    """The configuration of an adapter. Permanent for one that PEFT can't put over a base without values."""
    config: Any = PeftConfig.from_pretrained(str(folder))
    kind = getattr(config.peft_type, "value", str(config.peft_type))
    if kind != "LORA":
        raise refuse(folder, f"its adapter is of the method {kind}, and only LORA is known to leave the base's weights alone")
    if config.init_lora_weights not in _PREPARES:
        raise refuse(folder, f"PEFT computes with all weights to load an adapter of init_lora_weights = {config.init_lora_weights!r}")
    for key in ("layer_replication", "target_parameters", "alora_invocation_tokens"):
        if getattr(config, key, None):
            raise refuse(folder, f"its adapter uses {key}")
    return config  # type: ignore[no-any-return]


def release(skeleton: Skeleton, saved: Mapping[str, tuple[int, ...]], replaced: Collection[str]) -> None:
    """Give real memory to the parameters that an adapter `saved` whole (name in the base → shape): PEFT writes them into the base.

    Not to modules whose name is among `replaced`: PEFT puts a module of its own beside these. Permanent for another vocabulary.
    """
    parameters = dict(skeleton.model.named_parameters(remove_duplicate=False))
    for key, shape in saved.items():
        name = without_wrappers(key)
        if name not in parameters:
            continue
        old = parameters[name]
        if shape != tuple(old.shape):
            raise refuse(skeleton.folder.path, f"the adapter changes the size of {name} from {list(old.shape)} to {list(shape)}")
        if name.split(".")[-2] in replaced:
            continue
        new = torch.nn.Parameter(torch.full(tuple(old.shape), float("nan")), requires_grad=False)
        for module in skeleton.model.modules():
            for key, value in module._parameters.items():
                if value is old:
                    module._parameters[key] = new
        skeleton.stored.pop(id(old), None)


def reads_weights(module: torch.nn.Module) -> bool:
    """Whether a wrapper of PEFT reads the weights of the layer inside of it, and doesn't only call it."""
    return isinstance(module, TrainableTokensWrapper) or (isinstance(module, LoraLayer) and any(module.use_dora.values()))
