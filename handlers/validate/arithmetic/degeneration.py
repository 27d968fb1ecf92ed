"""Whether what the live model says still depends on what it is asked. A model that has lost that equals every artifact of it.

Called by `reference` while the live model answers. Pure numpy.
"""

from __future__ import annotations

import numpy as np

from handlers.validate.engines.task_profile import Head

SAME = 1e-5
"""Share of the largest output by which rows may differ and still are one row: more than rounding in fp32 makes of it."""
CERTAIN = 104.0
"""Difference of logits at which the lower one's probability is 0 in fp32: the smallest number there is e^-103.3."""


class Degeneration:
    """An accumulator of rows of outputs over prompts; holds one row of each width: a question's answer has one logit for each position."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._first: dict[int, np.ndarray] = {}
        self._rows = self._prompts = 0
        self._apart = self._largest = 0.0
        self._doubt = np.inf
        """Smallest difference of a row's largest logit from its next."""

    def add(self, rows: np.ndarray) -> None:
        """Take in the finite outputs (P, V) for one prompt."""
        if not rows.size:
            return
        first = self._first.setdefault(rows.shape[-1], rows[0].astype(np.float64))
        self._prompts += 1
        self._rows += len(rows)
        for row in rows:
            self._apart = max(self._apart, float(np.abs(row - first).max()))
            self._largest = max(self._largest, float(np.abs(row).max()))
            if self._head == "choice" and len(row) > 1:
                least, most = np.partition(row, -2)[-2:]
                self._doubt = min(self._doubt, float(most) - float(least))

    def warnings(self) -> list[str]:
        """Give what has to be said in the report; nothing of a model that answers as models do."""
        if self._rows < 2:
            return []
        compared = self._rows > len(self._first)
        where = f"at all {self._rows} positions of {self._prompts} prompts"
        remedy = "Look at the run's loss and at the weights of the adapters, and export an earlier checkpoint."
        if compared and self._apart <= SAME * self._largest:
            return [
                f"The live model gives the same output {where}: it no longer depends on its input. The checks compare with"
                f" this model, so they prove nothing. {remedy}"
            ]
        if np.inf > self._doubt > CERTAIN:
            return [
                f"The live model gives one choice all of the probability {where}: its outputs are saturated. The checks"
                f" compare with this model, so they prove little. {remedy}"
            ]
        return []
