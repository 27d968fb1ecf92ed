"""What the comparison with the twin asks of an artifact: its stored weights, and its outputs with and without the rounding of activations.

A format whose variants are compared with their twins names its form in `Limits.twin`. Nothing in it may come from the code that writes the
format: what the stored numbers mean follows from the format's own specification. numpy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from handlers.validate.twins.messages import Order, Text
from handlers.validate.twins.weights import Stored
from handlers.validate.workers.protocol import PaddedBatch


class Form(Protocol):
    """An artifact, as `form(order)` opens it in the comparison's process, beside PyTorch."""

    def __init__(self, order: Order) -> None: ...

    @property
    def limit(self) -> float:
        """Largest |Δ| between its outputs in float and the twin's that a sound one may have, in standard deviations of the outputs."""

    @property
    def told_positions(self) -> bool:
        """Whether the runtime is told positions, so that a text may begin at any of them."""

    def weights(self) -> Sequence[Stored]:
        """Give its matrices and tables that are stored in fewer bits, each once for each use. Raises UnreadableError."""

    def halves(self) -> set[bytes]:
        """Give the bytes of each small tensor in half precision (norms, biases) that the twin must have as halves too."""

    def outputs(self, texts: Sequence[Text], *, in_float: bool) -> list[dict[str, np.ndarray]]:
        """Give for each text: way of running it → fp32 rows (P, V) at `Text.places`.

        `in_float`: with the stored weights, and no other rounding than that of fp32. Otherwise as the artifact is used. Raises what the
        runtime raises, and UnreadableError.
        """

    def padding_error(self, batch: PaddedBatch, side: str) -> float | None:
        """Give largest |Δ| in float between rows of a batch that is padded on a side and the same texts alone. None where rows of a batch
        don't change each other's rounding, so that the artifact as it is used shows as much."""
