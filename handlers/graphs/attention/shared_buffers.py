"""Runs a decoder whose past and present are the same buffers, longer than what is in them, so that a step copies no cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

PAST, PRESENT = "past_key_values.", "present."
ROOM = 5
"""Tokens for which a buffer has room beyond those that are fed."""


def takes(feeds: Mapping[str, np.ndarray]) -> bool:
    """Return whether a step is one that can be run so: with one row, or one new token in each, or nothing in the cache yet."""
    pasts = [array for name, array in feeds.items() if name.startswith(PAST)]
    new = feeds.get("input_ids", feeds.get("hidden_states"))
    return bool(pasts) and new is not None and (1 in new.shape[:2] or pasts[0].shape[2] == 0)


def run(session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Return all outputs of a step; presents are cut to the tokens that are in them.

    Each past is put at the beginning of a buffer with ROOM for more, in which all else is NaN, or the least integer, so that what reads it
    is found out.
    """
    binding = session.io_binding()
    total = feeds["attention_mask"].shape[1]
    buffers: dict[str, Any] = {}
    for name, array in feeds.items():
        if not name.startswith(PAST):
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
            continue
        rows, heads, length, width = array.shape
        unused = np.nan if array.dtype.kind == "f" else np.iinfo(array.dtype).min
        buffer = np.full((rows, heads, total + ROOM, width), unused, array.dtype)
        buffer[:, :, :length] = array
        buffers[name.replace(PAST, PRESENT, 1)] = value = onnxruntime.OrtValue.ortvalue_from_numpy(buffer)
        binding.bind_ortvalue_input(name, value)
    names = [output.name for output in session.get_outputs()]
    for name in names:
        if name in buffers:
            binding.bind_ortvalue_output(name, buffers[name])
        else:
            binding.bind_output(name, "cpu")
    session.run_with_iobinding(binding)
    outputs = dict(zip(names, binding.get_outputs(), strict=True))
    # Copied: an array of an OrtValue may be a view of memory that goes with it.
    return [np.array(outputs[name].numpy()[:, :, :total] if name in buffers else outputs[name].numpy()) for name in names]
