"""Replacements for model code that can't be traced, in force during the trace: they compute the same without branches.

Called by the onnx stage around an exporter; afterwards the original code is restored. The graph is compared with the unchanged model, so a
wrong replacement is found.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from handlers.families.base import NotApplicableError


def _allowed(
    batch_size: int, q_length: int, kv_length: int, q_offset: int = 0, kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function, attention_mask: torch.Tensor | None = None,
    device: torch.device | str = "cpu", **_: Any,
) -> torch.Tensor:  # fmt: skip
    """Which token may see which, bool (batch, 1, new tokens, all tokens), by broadcasting positions: no vmap and no shortcut."""
    rows = torch.arange(batch_size, device=device)[:, None, None, None]
    heads = torch.arange(1, device=device)[None, :, None, None]
    queries = (torch.arange(q_length, device=device) + q_offset)[None, None, :, None]
    keys = torch.arange(kv_length, device=device) + kv_offset
    allowed = mask_function(rows, heads, queries, keys[None, None, None, :])
    if attention_mask is not None:
        allowed = allowed & attention_mask.bool()[:, keys][:, None, None, :]
    expanded: torch.Tensor = allowed.expand(batch_size, -1, q_length, kv_length)
    return expanded


def _additive(*arguments: Any, dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
    """The same as numbers to add: 0, or the least of `dtype`."""
    allowed = _allowed(*arguments, **options)
    return torch.where(allowed, torch.zeros((), dtype=dtype, device=allowed.device), torch.finfo(dtype).min)


MASKS: Mapping[str, Callable[..., torch.Tensor]] = {"eager": _additive, "sdpa": _allowed}
"""transformers' attention implementation → what makes its masks."""


@contextlib.contextmanager
def _plain_masks() -> Iterator[None]:
    for name, make in MASKS.items():
        ALL_MASK_ATTENTION_FUNCTIONS[name] = make
    try:
        yield
    finally:
        for name in MASKS:
            del ALL_MASK_ATTENTION_FUNCTIONS[name]


def _dynamic(module: Any, length: torch.Tensor) -> torch.Tensor:
    """Frequencies for a text of `length` tokens; shorter ones than the original length change nothing."""
    frequencies: torch.Tensor = ROPE_INIT_FUNCTIONS["dynamic"](module.config, length.device, seq_len=length)[0]
    return frequencies


def _longrope(module: Any, length: torch.Tensor) -> torch.Tensor:
    """The long set of frequencies beyond the original length, else the short one."""
    original = module.config.rope_parameters["original_max_position_embeddings"]
    beyond, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, length.device, seq_len=original + 1)
    return torch.where(length > original, beyond, module.original_inv_freq)


ROTARY: Mapping[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {"dynamic": _dynamic, "longrope": _longrope}
"""Type of rotary embedding whose frequencies depend on the length → those frequencies, as a function of it."""


class _With:
    """A module as its own forward sees it, with other frequencies."""

    def __init__(self, module: Any, frequencies: torch.Tensor) -> None:
        self._module, self.inv_freq = module, frequencies

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _stateless(module: Any, compute: Callable[[Any, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    """A rotary embedding's forward that looks its frequencies up instead of updating the module by a branch."""
    plain = inspect.unwrap(type(module).forward)

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return plain(_With(module, compute(module, position_ids.max() + 1)), x, position_ids)

    return forward


@contextlib.contextmanager
def _plain_rotary(model: torch.nn.Module) -> Iterator[None]:
    changed = []
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        if isinstance(kind, str) and kind in ROTARY and hasattr(module, "original_inv_freq"):
            module.forward = _stateless(module, ROTARY[kind])
            changed.append(module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward


@contextlib.contextmanager
def _masks_and_rotary(model: torch.nn.Module) -> Iterator[None]:
    with _plain_masks(), _plain_rotary(model):
        yield


def _by_positions(module: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """GPT-Neo's attention with a mask that is computed from positions.

    The model cuts its mask out of a buffer, by the numbers of tokens; with eight layers that do so, torch.export does not come to an end.
    """
    window = module.config.window_size if module.attention_type == "local" else None

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.matmul(query.float(), key.float().transpose(-1, -2))
        new, total = query.size(-2), key.size(-2)
        keys, queries = torch.arange(total)[None, :], (torch.arange(new) + (total - new))[:, None]
        seen = keys <= queries if window is None else (keys <= queries) & (keys > queries - window)
        scores = torch.where(seen, scores, torch.finfo(scores.dtype).min)
        if attention_mask is not None:
            scores = scores + attention_mask
        weights = torch.softmax(scores, dim=-1).to(value.dtype)
        return torch.matmul(weights, value), weights

    return attend


@contextlib.contextmanager
def _masks_by_positions(model: torch.nn.Module) -> Iterator[None]:
    attentions: list[Any] = [module for module in model.modules() if type(module).__name__ == "GPTNeoSelfAttention"]
    for module in attentions:
        module._attn = _by_positions(module)
    try:
        yield
    finally:
        for module in attentions:
            del module._attn


@contextlib.contextmanager
def _operators(model: torch.nn.Module) -> Iterator[None]:
    """transformers' own replacements for operators that have no translation, where this release of it has them."""
    if importlib.util.find_spec("transformers.exporters") is None:
        raise NotApplicableError("this release of transformers replaces no operators")
    importlib.import_module("transformers.exporters.exporter_onnx")  # registers what it replaces
    from transformers.exporters.utils import apply_patches

    with apply_patches("onnx"):
        yield


REWRITES: Mapping[str, Callable[[torch.nn.Module], contextlib.AbstractContextManager[None]]] = {
    "": lambda model: contextlib.nullcontext(),
    "masks-and-rotary": _masks_and_rotary,
    "operators": _operators,
}


@contextlib.contextmanager
def rewritten(name: str, model: torch.nn.Module) -> Iterator[None]:
    """`model` is traced with a replacement, and with those of code that no tracer gets through."""
    with _masks_by_positions(model), REWRITES[name](model):
        yield
