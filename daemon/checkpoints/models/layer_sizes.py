"""Whether a model can be run layer by layer, and what memory that takes, from its configuration and the headers of its files.

Called before a stage is admitted that could not hold the whole model. What can't be told from here, the stage itself finds out, and refuses
with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.checkpoints.completeness import read_json
from daemon.contract.formats.stages import LAYERWISE_PROMPTS, LONG_MOST, MIB, long_tokens
from daemon.contract.jobs.messages import ADDITIONS
from daemon.contract.models.safetensors import TensorInfo, parse_header

_LAYER = re.compile(r"^.*?\.\d+\.")
"""What the names of a layer's tensors begin with."""
_PROMPT_TOKENS = 128
"""Tokens of a prompt, for the size of caches: the built-in ones have fewer."""
_BESIDE = 8
"""Passes that run beside those of the prompts: the base without its adapter, padded batches."""
_BUFFERS = 192 * MIB
"""What is read at once, and what passes compute with."""


@dataclass(frozen=True)
class LayerSizes:
    """Numbers of elements."""

    layer: int
    """Of the largest layer."""
    outside: int
    """Of the largest tensor that is in no layer: the embedding, or the head."""
    cache: int
    """Of the caches of one position."""
    parameters: int = 0
    """Of the whole model."""

    def memory(self, pin: Path | None, new_tokens: int, layers: int = 1, *, long: bool = False) -> int:
        """Bytes that a stage takes beside its libraries and outputs. `pin`: of the adapters that act on the model; None without any.
        `layers`: those that it holds at once. `long`: it reads a long text too."""
        adapters = [*_adapter(pin), *(header for folder in (pin / ADDITIONS).glob("*") for header in _adapter(folder))] if pin else []
        held = sum(info.elements for header in adapters for info in header.values())
        # What acts on the embedding or the head may compute with all of it.
        touched = any(not _LAYER.match(name) for header in adapters for name in header)
        cached = self.cache * (LAYERWISE_PROMPTS + _BESIDE) * (_PROMPT_TOKENS + new_tokens)
        cached += self.cache * min(LONG_MOST, long_tokens(self.parameters)) * long
        return int(4 * (layers * self.layer + 1.5 * held + 2 * self.outside * touched + cached)) + _BUFFERS


def layers_of(model: Path, method: str) -> LayerSizes | str:
    """The sizes of a model's layers, or why it can't be run layer by layer, as a clause. `method`: of the adapter, "full" without one."""
    try:
        config = read_json(model / "config.json")
        headers = [parse_header(file) for file in sorted(model.glob("*.safetensors"))]
    except (OSError, ValueError) as error:
        return f"its files can't be read: {error}"
    if not isinstance(config, dict):
        return "its config.json is no object"
    if why := _unfit(config, method):
        return why
    if not headers:
        return "its weights are not in safetensors files"
    nested = config.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else {}
    layers, outside, whole = Counter[str](), 0, 0
    for name, info in ((name, info) for header in headers for name, info in header.items()):
        whole += info.elements
        if match := _LAYER.match(name):
            layers[match.group()] += info.elements
        else:
            outside = max(outside, info.elements)
    return LayerSizes(max(layers.values(), default=0), outside, _cache({**config, **text}, len(layers)), whole)


def _unfit(config: Mapping[str, Any], method: str) -> str | None:
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else "of an unknown class"
    if not name.endswith(("ForCausalLM", "LMHeadModel")) or config.get("is_encoder_decoder"):
        return f"only language models can be, and it is {name}"
    if config.get("auto_map"):
        return "it brings code of its own"
    if config.get("quantization_config"):
        return "its weights are stored quantized"
    if any(config.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        return "it is a mixture of experts, whose weights are stored otherwise than they are run"
    return None if method in ("LORA", "full") else f"its adapter is of the method {method}"


def _cache(config: Mapping[str, Any], layers: int) -> int:
    def number(*names: str) -> int:
        return next((value for name in names if isinstance(value := config.get(name), int) and value > 0), 0)

    heads = number("num_attention_heads", "n_head")
    size = number("head_dim") or number("hidden_size", "n_embd") // max(1, heads)
    return 2 * layers * size * (number("num_key_value_heads") or heads)


def _adapter(pin: Path) -> list[dict[str, TensorInfo]]:
    try:
        return [parse_header(file) for file in sorted(pin.glob("adapter_model*.safetensors"))]
    except (OSError, ValueError):
        return []
