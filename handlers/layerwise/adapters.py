"""PEFT over a model without its weights: which adapters it can be, and where what they bring of their own goes.

Apart from `skeleton.py`, since importing peft takes as long as importing torch, and most who read a model part by part have no adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig
from peft.tuners.lora import LoraLayer
from peft.utils.other import TrainableTokensWrapper

from handlers.layerwise.skeleton import Skeleton, refuse

_PREPARES = (True, False, "gaussian", "orthogonal")
"""Values of init_lora_weights that leave the base as it is; all others compute with its weights when PEFT loads the adapter."""


def check_adapter(folder: Path) -> PeftConfig:
    """Return the configuration of an adapter. Permanent for one that PEFT can't put over a base without values."""
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


def fill_while_loading(skeleton: Skeleton) -> None:
    """Let what PEFT writes into the base, when it loads an adapter, find memory: parameters that the adapter's file holds whole.

    Which ones they are, torch says when it loads them: just before it writes to a placeholder, real memory takes its place, in all modules
    that share it. Loading raises Permanent for one of another size.
    """
    for module in skeleton.model.modules():
        module.register_load_state_dict_pre_hook(_filling(skeleton))


def _filling(skeleton: Skeleton) -> Callable[..., None]:
    def fill(module: torch.nn.Module, state: Mapping[str, torch.Tensor], prefix: str, *_: Any) -> None:
        for name, old in list(module._parameters.items()):
            if old is None or id(old) not in skeleton.stored or (given := state.get(prefix + name)) is None:
                continue
            stored = skeleton.stored.pop(id(old))
            if given.shape != old.shape:
                cause = f"the adapter changes the size of {stored} from {list(old.shape)} to {list(given.shape)}"
                raise refuse(skeleton.folder.path, cause)
            new = torch.nn.Parameter(torch.full(tuple(old.shape), float("nan")), requires_grad=False)
            for other in skeleton.model.modules():
                for key, value in other._parameters.items():
                    if value is old:
                        other._parameters[key] = new

    return fill  # not an object with a state, since PEFT copies modules with all that belongs to them


def reads_weights(module: torch.nn.Module) -> bool:
    """Return whether a wrapper of PEFT reads the weights of the layer inside of it, and doesn't only call it."""
    return isinstance(module, TrainableTokensWrapper) or (isinstance(module, LoraLayer) and any(module.use_dora.values()))
