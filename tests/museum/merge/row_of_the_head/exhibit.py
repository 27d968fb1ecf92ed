"""A row of the head."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import Tensors, weights


def _lose_a_row(tensors: Tensors) -> None:
    tensors["lm_head.weight"][300] /= 2


EXHIBIT = Exhibit(
    bug="unslothai/unsloth-zoo#923",
    name="a row of the head",
    happened="When tokens were added, rows behind the tokenizer's length were lost from embedding and head.",
    mutant="the head's row of a token that is seldom likely is half as large",
    hall="adapter that learnt nothing yet",
    variant="pytorch",
    make=damaged(weights(_lose_a_row)),
    check="threshold: error",
    words=r"the largest logit error",
    merge=True,
)
