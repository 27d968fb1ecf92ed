"""Experts written over each other."""

from __future__ import annotations

import re

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import Tensors, weights


def _overwrite(tensors: Tensors) -> None:
    last = max(int(number) for name in tensors for number in re.findall(r"experts\.(\d+)\.", name))
    for name in [name for name in tensors if re.search(r"layers\.0\..*experts\.\d+\.", name)]:
        tensors[name] = tensors[re.sub(r"experts\.\d+\.", f"experts.{last}.", name)].clone()


EXHIBIT = Exhibit(
    bug="NVIDIA-NeMo/Megatron-Bridge#1871",
    name="experts written over each other",
    happened="On export each expert's weight was written to the same fused tensor, so that the last one was left.",
    mutant="every expert of the first layer has the weights of the last expert",
    hall="experts",
    variant="pytorch",
    make=damaged(weights(_overwrite)),
    check="threshold: kl",
    words=r"the divergence of .* above the limit",
    merge=True,
)
