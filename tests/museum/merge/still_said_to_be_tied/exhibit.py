"""Untied weights that are said to be tied."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import config

EXHIBIT = Exhibit(
    bug="huggingface/transformers#45127",
    name="untied weights that are said to be tied",
    happened="After the merge of a trained embedding and head config.json still said `tie_word_embeddings`: readers took one for both.",
    mutant="config.json says that the head is the embedding, and both are stored",
    hall="tied, head and embedding trained",
    variant="pytorch",
    make=damaged(config(tie_word_embeddings=True)),
    check="finding: config",
    words=r"tie_word_embeddings",
    merge=True,
    quick=True,
)
