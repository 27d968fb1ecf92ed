"""The factor of rsLoRA in a runtime."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit, damaged
from tests.validate.damage_files import keys

EXHIBIT = Exhibit(
    bug="NVIDIA/TensorRT-LLM#1668",
    name="the factor of rsLoRA in a runtime",
    happened="A runtime divided alpha by the rank although the adapter was trained with rsLoRA.",
    mutant="adapter_config.json says `use_rslora`, and the adapter was trained without",
    hall="adapter",
    variant="pytorch-adapter",
    make=damaged(keys("adapter_config.json", use_rslora=True)),
    check="threshold: kl",
    words=r"the divergence of .* above the limit",
)
