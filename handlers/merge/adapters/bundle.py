"""The tensors of one or several adapters under the keys that a merge plan gives them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from handlers.merge.adapters.adapter import Adapter

if TYPE_CHECKING:
    import torch


class Bundle:
    """The tensors of several adapters, or of none: `N:key` is a key of adapter number N, a key without a number one of the first."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._adapters = adapters
        self.file: Path | None = adapters[0].file if adapters else None

    def tensor(self, key: str) -> torch.Tensor:
        """One tensor in fp32."""
        number, _, rest = key.partition(":")
        return self._adapters[int(number)].tensor(rest) if rest else self._adapters[0].tensor(key)
