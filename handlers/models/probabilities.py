"""Distributions that logits stand for, and how far one is from another. Pure numpy.

Called where outputs of models are compared: by the checks, and where bits are chosen by measurement.
"""

from __future__ import annotations

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities that rows (P, V) of logits stand for, in the logits' own type."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalized: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalized


def divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference ‖ other) in nats of each row (P,), of logarithms of probabilities (P, V)."""
    divergences: np.ndarray = np.maximum((np.exp(reference) * (reference - other)).sum(axis=1), 0.0)
    return divergences
