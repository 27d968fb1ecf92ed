"""Whether an artifact behaves as the fine-tuned model does, or as its base: how much of the fine-tuning's effect is in it. Pure numpy.

Called by `reference`, which keeps the base's outputs where the adapter changes them most, and by `examination` for every artifact. With d
as the divergence (of other heads another distance that grows with the square of a difference), the share is

    1/2 + (d(base ‖ artifact) - d(live ‖ artifact)) / (2 d)

where d is that between base and live. It is 1 of the live model and 0 of its base. What a conversion changes in other directions, as
rounding does, adds to both distances alike and leaves the share where it is: so the share tells a missing adapter from rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from daemon.contract.jobs.figures import CheckFigures
from handlers.validate.arithmetic import intervals
from handlers.validate.arithmetic.comparison import distances
from handlers.validate.engines.task_profile import Head

ROWS = 16
"""Rows of a prompt, at most, at which the base's outputs are kept."""
BYTES = 32 << 20
"""Bytes of the base's outputs, at most, that are kept of all prompts."""
NOISE = 1e-6
"""Mean distance of base and live model, in nats (of vectors, in what the cosine lacks of 1), that may be rounding in fp32."""


def most_changed(apart: np.ndarray, most: int) -> list[int]:
    """Give the rows, at most `most`, ascending, that are `apart` (P,) most."""
    return sorted(np.argsort(-apart, kind="stable")[:most].tolist())


@dataclass
class _Text:
    """Sums over the rows of one text."""

    rows: int = 0
    from_live: float = 0.0
    from_base: float = 0.0
    there: float = 0.0
    """Distance of the base from the live model."""
    back: float = 0.0
    """Distance of the live model from the base."""

    @property
    def sums(self) -> tuple[float, ...]:
        return float(self.rows), self.from_live, self.from_base, self.there, self.back


@dataclass
class FineTuning:
    """An accumulator over prompts."""

    head: Head
    _texts: list[_Text] = field(default_factory=list)

    def add(self, live: np.ndarray, base: np.ndarray, artifact: np.ndarray, *, same_text: bool) -> None:
        """Take in the same rows (P, V) of the three; `same_text`: they are of the text that the prompt before is of too."""
        if not (same_text and self._texts):
            self._texts.append(_Text())
        text = self._texts[-1]
        text.rows += len(live)
        text.from_live += float(distances(self.head, live, artifact).sum())
        text.from_base += float(distances(self.head, base, artifact).sum())
        text.there += float(distances(self.head, live, base).sum())
        text.back += float(distances(self.head, base, live).sum())

    def figures(self) -> CheckFigures:
        """Give the share and both distances; nothing where no base was given, or where it does not differ from the live model."""
        sums = np.array([text.sums for text in self._texts])
        if not len(sums):
            return CheckFigures()
        rows, from_live, from_base, there, back = sums.sum(axis=0)
        if min(there, back) / rows <= NOISE:
            return CheckFigures()
        figures = CheckFigures(
            fine_tuning=float(_shares(sums.sum(axis=0, keepdims=True))[0]),
            fine_tuning_interval=intervals.middle(_shares(intervals.drawn(sums))) if len(sums) > 1 else None,
            distance_from_live=float(from_live / rows),
            distance_from_base=float(from_base / rows),
        )
        return figures if math.isfinite(figures.fine_tuning or 0.0) else CheckFigures()

    def by_limit(self) -> dict[str, list[tuple[float, float]]]:
        """Give for each text what the share is a ratio of, over all texts; nothing where `figures` gives nothing."""
        if not self.figures().has("fine_tuning"):
            return {}
        _, from_live, from_base, there, back = np.array([text.sums for text in self._texts]).T
        apart = there if from_live.sum() > from_base.sum() else back
        parts = (apart + from_base - from_live) / 2
        return {"fine_tuning": [(float(part), float(weight)) for part, weight in zip(parts, apart, strict=True)]}


def _shares(sums: np.ndarray) -> np.ndarray:
    """Give the share of each row (N, 5) of sums. A distance is not symmetric: the one that makes both ends exact is taken."""
    _, from_live, from_base, there, back = sums.T
    apart = np.maximum(np.where(from_live > from_base, there, back), 1e-30)
    shares: np.ndarray = 0.5 + (from_base - from_live) / (2 * apart)
    return shares
