"""What an artifact must reach against the live model: three classes that formats name, and two that lie between them.

A declaration names a class. One whose form needs other numbers writes a `Thresholds` of its own and says why. What each class finds and
what published measurements of real models need: docs/validation.md, "Where the limits come from".
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from daemon.contract.language.catalog import to_translate
from daemon.contract.records import Record, Within

Strictness = Literal["strict", "normal", "loose"]
FACTORS: dict[Strictness, float] = {"strict": 0.5, "normal": 1.0, "loose": 2.0}
"""Strictness → by what the distances that a variant's class allows are multiplied: the divergence, the error, and the share of positions
whose most likely token differs."""

LIMIT_NAMES = {
    "kl": to_translate("KL"), "agreement": to_translate("agreement"), "perplexity": to_translate("perplexity ratio"),
    "fine_tuning": to_translate("fine-tuning in it"), "error": to_translate("largest error"),
}  # fmt: skip
"""Limit → what people call it."""


class Thresholds(Record):
    """What an artifact must reach against the live model to be published."""

    agreement: Annotated[float, Within(0, 1)]
    """Smallest share of positions whose most likely token is the reference's."""
    kl: Annotated[float, Within(0)]
    """Largest mean Kullback-Leibler divergence KL(reference ‖ artifact), in nats a token."""
    error: Annotated[float, Within(0)]
    """Largest |Δlogit|, in units of the standard deviation of the reference's logits."""
    perplexity: Annotated[float, Within(1)] | None = None
    """Largest perplexity of the texts' own tokens over the reference's; None for what follows from `kl` (`perplexity_ratio`)."""

    @property
    def perplexity_ratio(self) -> float:
        """The ratio that counts: `perplexity`, else exp(√(2 · kl)).

        By Pinsker's inequality a divergence of d nats moves a token's log-likelihood by about √(2d) either way, and a mean of such roots is
        at most the root of the mean: so what keeps the limit of `kl` misses this one only where it is worst at the texts' own tokens.
        """
        return math.exp(min(math.sqrt(2 * self.kl), 700.0)) if self.perplexity is None else self.perplexity

    def scaled(self, strictness: Strictness) -> Thresholds:
        """The same class, taken more or less strictly (`FACTORS`). "normal" is the class itself, to the last bit."""
        factor = FACTORS[strictness]
        if factor == 1.0:
            return self
        agreement = round(max(0.0, 1 - factor * (1 - self.agreement)), 9)
        perplexity = None if self.perplexity is None else self.perplexity**factor
        return Thresholds(agreement=agreement, kl=factor * self.kl, error=factor * self.error, perplexity=perplexity)


EXACT = Thresholds(agreement=0.97, kl=0.001, error=0.25)
"""The merged weights as they are, or stored in 16 bits and computed in fp32. What differs is the merge's own rounding, once, to the base's
dtype (bf16: 8 bits), which alone can change the most likely of two almost equally likely tokens: so agreement is not 1."""
EIGHT_BITS = Thresholds(agreement=0.9, kl=0.02, error=1.0)
"""Weights in 6 to 8 bits with a scale for each row or block; activations in fp32, or rounded to 8 bits a row at a time."""
FOUR_BITS = Thresholds(agreement=0.8, kl=0.1, error=3.0)
"""Weights in 4 bits in blocks."""

HALF = Thresholds(agreement=0.96, kl=0.002, error=0.3)
"""Like EXACT, but sums and activations are in fp16 too, or in TF32 (10 bits of mantissa)."""
COARSE_EIGHT_BITS = Thresholds(agreement=0.85, kl=0.05, error=2.0)
"""Like EIGHT_BITS, where one scale counts for all activations of a tensor, or where some of the weights have 4 or 5 bits."""
