"""The wrong half of gate and up."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import Tensors, from_base


def _misplace(tensors: Tensors, base: Tensors) -> None:
    for name in [name for name in tensors if "up_proj" in name]:
        gate = name.replace("up_proj", "gate_proj")
        tensors[gate] = base[gate] + (tensors[name] - base[name])
        tensors[name] = base[name]


EXHIBIT = Exhibit(
    bug="thinking-machines-lab/tinker-cookbook#459",
    name="the wrong half of gate and up",
    happened="In a fused product the place of gate and up was always taken for the first: the delta of `up_proj` was added to the gate.",
    mutant="`up_proj` is the base's, and its delta is added to `gate_proj`",
    hall="norms of queries and keys",
    variant="pytorch",
    make=from_base(_misplace),
    check="threshold: kl",
    words=r"the divergence of .* above the limit",
    merge=True,
)
