"""The tensors of one or several adapters under the keys that a merge plan gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from handlers.merge.adapters.adapter import Adapter
from handlers.tensors.file_io import OpenFiles

if TYPE_CHECKING:
    import torch


class Bundle:
    """The tensors of several adapters, or of none: `N:key` is a key of adapter number N, a key without a number one of the first.

    Used in a `with`, at whose end the adapters' files are closed. May be read by several threads.
    """

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._adapters = adapters
        self._files = OpenFiles()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.__exit__(*error)

    def tensor(self, key: str) -> torch.Tensor:
        """One tensor in fp32."""
        adapter, own = self._owner(key)
        return adapter.tensor(own, self._files)

    def not_finite(self, keys: Iterable[str]) -> Path | None:
        """The first file in which one of these tensors holds NaN or infinity."""
        import torch

        for adapter, own in map(self._owner, keys):
            if not bool(torch.isfinite(adapter.tensor(own)).all()):
                return adapter.file
        return None

    def _owner(self, key: str) -> tuple[Adapter, str]:
        """The adapter that a key is of, and what it is called there."""
        number, _, rest = key.partition(":")
        return (self._adapters[int(number)], rest) if rest else (self._adapters[0], key)
