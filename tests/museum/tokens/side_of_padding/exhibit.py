"""Padding on the other side."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import like

EXHIBIT = Exhibit(
    bug="unslothai/unsloth#1006",
    name="padding on the other side",
    happened="The tokenizer that was saved with the merged model pads on the left, whatever side it was set to.",
    mutant="`padding_side` in tokenizer_config.json is the other one",
    hall="chat",
    variant="pytorch",
    make=like("files", "padding on the other side"),
    check="finding: tokenizer",
    words=r"padding_side is 'left'",
    quick=True,
)
