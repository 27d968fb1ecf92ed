"""Does the graph on disk say what torch said? The stage's own check, before anyone else sees the file.

Called by the onnx stage for each strategy's graph. It runs a handful of tokens; the validate stage judges
the model on text. It knows torch's answers as arrays, so torch itself may be gone by then.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime

from handlers.onnx.causal import STEPS, Reference
from handlers.onnx.session import open_session
from handlers.onnx.signature import Signature

TOLERANCE = 1e-3
"""Largest |Δlogit| allowed, in units of the largest |logit| of the reference."""


class GraphMismatchError(Exception):
    """The graph is malformed, has other inputs than it should, or computes something else than torch."""


def _check_names(session: onnxruntime.InferenceSession, signature: Signature) -> None:
    for kind, found, wanted in (
        ("inputs", session.get_inputs(), signature.inputs),
        ("outputs", session.get_outputs(), signature.outputs),
    ):
        names = tuple(value.name for value in found)
        if names != wanted:
            lost, foreign = sorted(set(wanted) - set(names)), sorted(set(names) - set(wanted))
            raise GraphMismatchError(f"the graph's {kind} differ from those asked for: missing {lost}, unexpected {foreign}")
        for value in found:
            for axis, name in signature.axes[value.name].items():
                if value.shape[axis] != name:
                    raise GraphMismatchError(f"axis {axis} of {value.name} is {value.shape[axis]}, not {name}")


def _run_in_steps(session: onnxruntime.InferenceSession, reference: Reference) -> np.ndarray:
    """Logits (rows, tokens, vocabulary) of the reference's tokens, fed in STEPS with the graph's own cache."""
    signature = reference.signature
    rows = len(reference.ids)
    cache = [np.zeros((rows, heads, 0, size), np.float32) for heads, size in signature.cache_sizes]
    logits, start = [], 0
    for step in STEPS:
        end = start + step
        feeds = {"input_ids": reference.ids[:, start:end], "attention_mask": reference.mask[:, :end]}
        if signature.position_ids:
            feeds["position_ids"] = reference.positions[:, start:end]
        answer, *cache = session.run(None, {**feeds, **dict(zip(signature.past, cache, strict=True))})
        logits.append(answer)
        start = end
    return np.concatenate(logits, axis=1)


def verify(path: Path, reference: Reference, *, threads: int = 1) -> float:
    """Check the graph's names and its answers; gives the largest |Δlogit| over the largest |logit|.

    Raises GraphMismatchError. Padding positions may say anything that is finite: what a masked token sees is undefined.
    """
    try:
        session = open_session(path, threads)
    except RuntimeError as error:
        raise GraphMismatchError(f"onnxruntime does not take the graph: {str(error).strip().splitlines()[0]}") from None
    _check_names(session, reference.signature)
    logits = _run_in_steps(session, reference)
    if not np.isfinite(logits).all():
        raise GraphMismatchError("the graph's logits hold values that are not finite")
    real = reference.mask.astype(bool)
    largest = float(np.abs(logits[real] - reference.logits[real]).max() / max(float(np.abs(reference.logits[real]).max()), 1e-9))
    if largest > TOLERANCE:
        raise GraphMismatchError(f"the graph's logits differ from torch's by {largest:.2g} of the largest logit, more than {TOLERANCE:g}")
    return largest
