"""Distributions that logits stand for, and how far one is from another. Pure numpy.

Called where outputs of models are compared: by the checks, and where bits are chosen by measurement.
"""

from __future__ import annotations

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities that rows (P, V) of logits stand for, in the logits' own type."""
    return log_and_softmax(logits)[0]


def log_and_softmax(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logarithms of the probabilities that rows (P, V) of logits stand for, and these probabilities, in the logits' own type."""
    logs = logits - logits.max(axis=1, keepdims=True)
    probabilities = np.exp(logs)
    totals = probabilities.sum(axis=1, keepdims=True)
    probabilities /= totals
    logs -= np.log(totals)
    return logs, probabilities


def divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference ‖ other) in nats of each row (P,), of logarithms of probabilities (P, V)."""
    divergences: np.ndarray = np.maximum((np.exp(reference) * (reference - other)).sum(axis=1), 0.0)
    return divergences
