"""Smaller forms of OpenVINO's models: weights in 8 or 4 bits by nncf, which OpenVINO multiplies without unpacking them first.

Called by the stages. Runs inside the toolchain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from handlers.openvino import library
from handlers.openvino.converting.conversion import BEAM

MAX_TOKENS = 128
"""Tokens of a text that are used."""


def int8(model: Any) -> Any:
    """Matrices and tables in 8 bits with zero points, a scale a row."""
    nncf = library.nncf()
    return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)


def int4(model: Any, group: int, rows: Sequence[Sequence[int]]) -> Any:
    """Matrices in 4 bits with zero points, a scale a group of weights; tables and the head in 8.

    `rows`: token ids of texts to calibrate a language model's scales with; none for other models, whose scales follow the weights alone.
    A matrix that groups of this size don't fit gets smaller ones.
    """
    nncf = library.nncf()
    narrower = nncf.AdvancedCompressionParameters(group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST)
    calibrated: dict[str, Any] = {}
    if rows:
        names = {port.get_any_name() for port in model.inputs}
        given = [{name: array for name, array in feeds(row).items() if name in names} for row in rows]
        calibrated = {"dataset": nncf.Dataset(given), "scale_estimation": True, "subset_size": len(given)}
    mode = nncf.CompressWeightsMode.INT4_ASYM
    return nncf.compress_weights(model, mode=mode, group_size=group, ratio=1.0, advanced_parameters=narrower, **calibrated)


def feeds(row: Sequence[int]) -> dict[str, np.ndarray]:
    """One text (1, S) as a language model takes it."""
    ids = np.array([list(row)[:MAX_TOKENS]], np.int64)
    return {
        "input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(ids.shape[1], dtype=np.int64)[None],
        BEAM: np.zeros(1, np.int32),
    }  # fmt: skip


def bits(path: Path) -> dict[str, int]:
    """Type of weights → elements that are stored so, of the model in a file; constants of fewer than two dimensions are left out."""
    counts: dict[str, int] = {}
    for node in library.openvino().Core().read_model(str(path)).get_ops():
        if node.get_type_name() == "Constant" and len(node.get_output_shape(0)) > 1:
            kind = node.get_element_type().get_type_name()
            counts[kind] = counts.get(kind, 0) + int(np.prod(list(node.get_output_shape(0))))
    return counts
