"""A delta that is added to codes."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged

EXHIBIT = Exhibit(
    bug="mflux-community/mflux#440",
    name="a delta that is added to codes",
    happened="A LoRA was folded into a layer whose weights are raw codes: the small delta was cut to nothing, and the adapter was gone.",
    mutant="the 8-bit form is made of the base's weights",
    hall="chat",
    variant="pytorch-bnb-int8",
    make=damaged(source="unmerged"),
    check="finding: weights",
    words=r"is not that of the merge",
)
