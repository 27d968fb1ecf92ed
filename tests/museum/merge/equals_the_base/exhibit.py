"""A merge that is its base."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged

EXHIBIT = Exhibit(
    bug="verl-project/verl#7285",
    name="a merge that is its base",
    happened="The command that merges a LoRA checkpoint wrote the base's own bytes and left the adapter in a folder beside them,"
    " without a warning.",
    mutant="what the merge gave are the base's weights",
    hall="chat",
    variant="pytorch",
    make=damaged(source="unmerged"),
    check="share of the fine-tuning",
    words=r"a merged model without its adapter",
    merge=True,
    quick=True,
)
