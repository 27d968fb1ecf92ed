"""The factor of rsLoRA."""

from __future__ import annotations

from tests.museum.exhibit import Exhibit
from tests.museum.makers import merged_as

EXHIBIT = Exhibit(
    bug="vllm-project/vllm#6909",
    name="the factor of rsLoRA",
    happened="An adapter's factor was taken as alpha / r, whatever its configuration said of rank-stabilized LoRA (alpha / sqrt(r)).",
    mutant="the same the other way round: alpha / sqrt(r), where the training had alpha / r",
    hall="chat",
    variant="pytorch",
    make=merged_as(use_rslora=True),
    check="threshold: kl",
    words=r"the divergence of .* above the limit",
    merge=True,
    quick=True,
)
