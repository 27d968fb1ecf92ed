"""An alpha of 0."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.validate.damage_files import keys

EXHIBIT = Exhibit(
    bug="verl-project/verl#5325",
    name="an alpha of 0",
    happened="The tool that takes a LoRA adapter out of a checkpoint wrote `lora_alpha` 0: the adapter did nothing.",
    mutant="adapter_config.json says `lora_alpha` 0",
    hall="adapter",
    variant="pytorch-adapter",
    make=damaged(keys("adapter_config.json", lora_alpha=0)),
    check="share of the fine-tuning",
    words=r"a merged model without its adapter",
    quick=True,
)
