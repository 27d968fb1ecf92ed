"""A cache of fixed length that is a function of its inputs: nothing grows, nothing is written in place.

Used by the programs of language models and of decoders. New keys and values lie at the rows that their positions name. They come there by
a product with ones and zeros, which every runtime has, unlike a write at an index that is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


class FixedLayer(CacheLayerMixin):
    """Keys and values (1, heads, length, width) of one layer; `positions` (tokens) are the rows of what comes next."""

    is_sliding = False  # a window is the mask's matter: all rows are kept
    is_compileable = True  # else transformers may leave a mask out
    keys: torch.Tensor
    values: torch.Tensor

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values, self._positions = keys, values, positions
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing: it holds all of its rows from the start."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The whole cache, with the new rows in it."""
        rows = torch.arange(self.keys.shape[2], dtype=self._positions.dtype)
        hits = (rows[:, None] == self._positions[None, :]).to(key_states.dtype)
        written = hits.sum(dim=1)[None, None, :, None] > 0.5
        self.keys = torch.where(written, torch.matmul(hits, key_states), self.keys)
        self.values = torch.where(written, torch.matmul(hits, value_states), self.values)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All rows, from the first one on: the mask hides those that come later."""
        return self.keys.shape[2], 0

    def get_seq_length(self) -> Any:
        """The first new row, as a tensor: a number would be fixed in the program."""
        return self._positions[0]

    def get_max_length(self) -> int:
        return int(self.keys.shape[2])


def fixed_cache(past: Sequence[torch.Tensor], positions: torch.Tensor) -> Cache:
    """A cache of key and value of each layer in turn."""
    return Cache(layers=[FixedLayer(keys, values, positions) for keys, values in zip(past[::2], past[1::2], strict=True)])
