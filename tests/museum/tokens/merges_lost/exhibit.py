"""Merges that are lost."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="unslothai/unsloth#1065",
    name="merges that are lost",
    happened="A release of transformers wrote the merges of tokenizer.json in another form, and converters found none.",
    mutant="tokenizer.json has a third of its merges",
    hall="chat",
    variant="pytorch",
    make=like("files", "40 merges lost"),
    check="finding: tokenizer",
    words=r"has 22 merges instead of 62",
    quick=True,
)
