"""A merge that is rounded too far."""

from __future__ import annotations

import torch

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import Tensors, weights


def _round(tensors: Tensors) -> None:
    for name, tensor in tensors.items():
        mantissa, exponent = torch.frexp(tensor.float())
        tensors[name] = torch.ldexp(torch.round(mantissa * 40) / 40, exponent).to(tensor.dtype)


EXHIBIT = Exhibit(
    bug="huggingface/peft#1388",
    name="a merge that is rounded too far",
    happened="The merged model gave another loss than the adapter over its base: sums were rounded to the base's 16 bits.",
    mutant="the merged weights keep little more than five bits of their mantissa",
    hall="adapter that learnt nothing yet",
    variant="pytorch",
    make=damaged(weights(_round)),
    check="threshold: agreement",
    words=r"agreement .* below the limit",
    merge=True,
)
