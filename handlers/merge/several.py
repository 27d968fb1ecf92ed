"""Several adapters merged at once: their deltas, each with a weight, added to the base and rounded once.

Called by `handlers.merge.api`. Only plain LoRA adds up; what replaces or rescales weights depends on the order, so it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from daemon.errors import Permanent
from handlers.merge.adapter import Adapter
from handlers.merge.kernels import LowRank, Sum
from handlers.merge.layout import Output
from handlers.merge.match import Matched
from handlers.merge.names import OPERATION

if TYPE_CHECKING:
    import torch


class Bundle:
    """The tensors of several adapters, or of none: `N:key` is the Nth's, a key without a number the first's."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self._adapters = adapters
        self.file: Path | None = adapters[0].file if adapters else None

    def tensor(self, key: str) -> torch.Tensor:
        """One tensor in fp32."""
        number, _, rest = key.partition(":")
        return self._adapters[int(number)].tensor(rest) if rest else self._adapters[0].tensor(key)


def _plain(adapter: Adapter, output: Output) -> LowRank:
    kernel = output.kernel
    if isinstance(kernel, LowRank) and kernel.magnitude is None and output.stored is not None and output.stored.shape == output.shape:
        return kernel
    raise Permanent(
        "adapters-not-additive",
        OPERATION,
        f"only plain LoRA adapters can be added to one another, and {adapter.folder.name} does something else to {output.module}",
        "merge the adapters one after another",
        path=adapter.folder,
    )


def combine(matches: Sequence[tuple[Adapter, Matched, float]]) -> Matched:
    """One plan out of those of several adapters for one base, each with its weight. Permanent when they do not add up."""
    tables = [{output.name: output for output in matched.outputs} for _, matched, _ in matches]
    for (adapter, matched, _), table in zip(matches, tables, strict=True):
        if matched.edits or table.keys() != tables[0].keys():
            raise Permanent(
                "adapters-not-additive",
                OPERATION,
                f"only plain LoRA adapters can be added to one another, and {adapter.folder.name} changes which tensors there are",
                "merge the adapters one after another",
                path=adapter.folder,
            )
    outputs = []
    for name, output in tables[0].items():
        kernels = []
        for number, ((adapter, _, weight), table) in enumerate(zip(matches, tables, strict=True)):
            if table[name].kernel is not None or table[name].origin:
                plain = _plain(adapter, table[name])
                middle = f"{number}:{plain.middle}" if plain.middle else None
                kernels.append(replace(plain, a=f"{number}:{plain.a}", b=f"{number}:{plain.b}", middle=middle, scale=plain.scale * weight))
                output = replace(output, module=table[name].module)
        outputs.append(replace(output, kernel=Sum(tuple(kernels)) if kernels else None))
    return Matched(outputs)
