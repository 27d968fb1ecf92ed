"""Queries that are not permuted."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="huggingface/transformers#31766",
    name="queries that are not permuted",
    happened="GGUF files of Llama have the rows of queries and keys in another order; reading them back did not undo it.",
    mutant="the queries of a layer have transformers' order",
    hall="gguf Llama",
    variant="gguf-q8_0",
    make=like("gguf", "queries of one layer not permuted"),
    check="finding: weights",
    words=r"blk.1.attn_q.weight is not that of the merge",
)
