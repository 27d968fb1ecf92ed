"""An end token of config.json."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.museum.makers import config

EXHIBIT = Exhibit(
    bug="axolotl-ai-cloud/axolotl#801",
    name="an end token of config.json",
    happened="The tokenizer's end token had been changed for the training, and the config.json that was written kept the old one.",
    mutant="`eos_token_id` in the merge's config.json is another token",
    hall="chat",
    variant="pytorch",
    make=damaged(config(eos_token_id=7)),
    check="finding: special tokens",
    words=r"special tokens .* eos_token_id",
    merge=True,
    quick=True,
)
