"""Whether the weights of a derived ONNX folder are those of the folder that it was made of.

Called by `integer_products`, in whose process the graphs are loaded already, for validation. A graph in few bits differs from the live
model anyway, so that its outputs alone can't show one matrix that was lost, or weights of another checkpoint: the weights can. The stages
that round name each weight after the one that it comes from, and leave the names of all others. What is not rounded must be the same, in
fp16 the nearest number. Of what is rounded two things are looked at: how far a row is from its source, as a share of the
row's length; and, of weights that are rounded to the nearest step, how many are farther than half a step. Of large models some rows of
each matrix stand for all. Free of torch and onnxruntime.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

ELEMENTS = 1 << 26
"""Weights that are compared of a graph, at most."""
ROW_LIMIT = 0.5
"""Largest length of a row's difference, over the row's own. Rounding to 4 bits stays below 0.25, even where one weight exceeds all."""
STEP_LIMIT = 0.05
"""Share of a matrix's weights that may be farther than half a step, as clipping leaves some: below 0.01 by rounding and by k-quant."""
_NOTHING = 1e-6
"""Share of the longest row's length below which a row may be rounded to nothing."""
_SLACK = 1.02
"""Half a step in fp32, with the rounding of scales."""
_SMALL = 1 << 16
"""Elements up to which all of a weight that is not rounded is compared."""
_LARGEST = float(np.finfo(np.float16).max)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_NAMES = re.compile(r"(?P<source>.+)\.int(?P<bits>[48])(?P<layout>\.rows|\.columns|\.turned|)")
_Weights = Mapping[str, ir.TensorProtocol]


@dataclass(frozen=True)
class _Rounded:
    """Rows (R, C) of a weight as they are computed with, with the step of each element, and the source's same rows."""

    values: np.ndarray
    steps: np.ndarray
    source: np.ndarray


def difference(derived: ir.Model, source: ir.Model, *, nearest: bool) -> str | None:
    """Return which weight of a graph is not its source's, as a clause; None where all are, or have other names.

    `nearest`: they were rounded to the nearest step, but for what is clipped.
    """
    wanted, weights = _weights(source), _weights(derived)
    names = [match for name in weights if (match := _NAMES.fullmatch(name)) and match["source"] in wanted]
    total = sum(wanted[name].size for name in (*(match["source"] for match in names), *(weights.keys() & wanted.keys())))
    for name in (name for name in weights if name in wanted):
        if not _is_kept(weights[name], wanted[name], min(1.0, ELEMENTS / max(1, total))):
            return f"its weight {name} is not that of the graph that it was made of: it is of another checkpoint, or damaged"
    beyond = elements = 0
    worst: tuple[float, str] | None = None
    for match in names:
        try:
            rounded = _rows(match, weights, wanted[match["source"]], min(1.0, ELEMENTS / max(1, total)))
        except ValueError:
            continue  # parts of other shapes: a form that only has names in common with those known here
        if rounded is None:
            continue
        apart = np.abs(rounded.values - rounded.source)
        length = np.linalg.norm(rounded.source, axis=1)
        error = float((np.linalg.norm(apart, axis=1) / np.maximum(length, 1e-20))[length > _NOTHING * length.max(initial=0)].max(initial=0))
        if not error <= ROW_LIMIT:
            return f"its weight {match['source']} is not that of the graph that it was made of: a row differs by {error:.2g} of its length"
        share = float((apart > _SLACK * rounded.steps / 2 + 1e-7).mean())
        beyond, elements = beyond + int(share * apart.size), elements + apart.size
        if worst is None or share > worst[0]:
            worst = share, match["source"]
    if not nearest or worst is None or worst[0] <= STEP_LIMIT:
        return None
    return (
        f"its weights were rounded from others than those of the graph beside it: {worst[0]:.1%} of {worst[1]} are farther than half a step"
        f" ({beyond / elements:.1%} of all): it is of another checkpoint, or damaged"
    )


def _is_kept(weight: ir.TensorProtocol, source: ir.TensorProtocol, share: float) -> bool:
    """Whether a weight that was not rounded to integers is its source's, as far as some of its rows say. True for what no stage keeps under
    its name: another shape, or a type that it was not cast to."""
    types = (source.dtype, weight.dtype)
    if tuple(weight.shape) != tuple(source.shape) or types[0] not in _FLOATS or types[1] not in (types[0], ir.DataType.FLOAT16):
        return True
    mine, theirs = weight.numpy(), source.numpy()
    if mine.ndim > 1 and mine.size > _SMALL:
        chosen = _chosen(len(mine), share)
        mine, theirs = mine[chosen], theirs[chosen]
    if types[0] != types[1]:
        theirs = np.clip(theirs, -_LARGEST, _LARGEST).astype(np.float16)
        with np.errstate(over="ignore"):  # the number after the largest
            step = np.spacing(np.abs(theirs)).astype(np.float32)
        return bool(np.all((np.abs(mine.astype(np.float32) - theirs) <= step) | ~np.isfinite(theirs)))
    return np.array_equal(mine, theirs, equal_nan=True)


def _weights(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    weights: dict[str, ir.TensorProtocol] = {}
    for graph in model.graphs():
        weights |= {name: value.const_value for name, value in graph.initializers.items() if value.const_value is not None}
        for node in graph:
            value = node.attributes.get("value") if node.op_type == "Constant" else None
            if value is not None and value.type is ir.AttributeType.TENSOR:
                weights[node.outputs[0].name or ""] = value.as_tensor()
    return weights


def _rows(match: re.Match[str], weights: _Weights, source: ir.TensorProtocol, share: float) -> _Rounded | None:
    """Return some rows of a weight; None where its parts do not fit its source."""
    whole, stem = source.numpy(), match[0]
    if whole.ndim != 2:
        return None
    if match["layout"] in (".rows", ".columns"):
        scales = next((weights[name].numpy().reshape(-1) for name in (f"{stem}.scale", f"{stem}.table_scale") if name in weights), None)
        values = weights[stem].numpy()
        if scales is None or values.shape != whole.shape:
            return None
        if match["layout"] == ".columns":
            values, whole = values.T, whole.T
        chosen = _chosen(len(whole), share)
        steps = np.broadcast_to(scales[chosen, None], values[chosen].shape)
        return _Rounded(values[chosen] * steps, steps, whole[chosen].astype(np.float32))
    whole = whole.T if match["layout"] == ".turned" else whole
    return _blocks(weights, stem, int(match["bits"]), whole, _chosen(len(whole), share))


def _blocks(weights: _Weights, stem: str, bits: int, whole: np.ndarray, chosen: np.ndarray) -> _Rounded | None:
    """Of weights in blocks: (value - zero point) · scale, as MatMulNBits computes."""
    if f"{stem}.scales" not in weights:
        return None
    rows = len(whole)
    scales = weights[f"{stem}.scales"].numpy().reshape(rows, -1)[chosen].astype(np.float32)
    values = _unpacked(weights[stem].numpy().reshape(rows, -1)[chosen], bits).reshape(len(chosen), scales.shape[1], -1).astype(np.float32)
    if f"{stem}.zeros" in weights:
        zeros = weights[f"{stem}.zeros"].numpy().reshape(rows, -1)[chosen]
        zeros = _unpacked(zeros, bits)[:, : scales.shape[1]].astype(np.float32) if zeros.dtype == np.uint8 else zeros
    else:
        zeros = np.full_like(scales, 1 << (bits - 1))
    columns = whole.shape[1]
    wide = ((values - zeros[..., None]) * scales[..., None]).reshape(len(chosen), -1)[:, :columns]
    steps = np.broadcast_to(np.abs(scales)[..., None], values.shape).reshape(len(chosen), -1)[:, :columns]
    return _Rounded(wide, steps, whole[chosen].astype(np.float32))


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    return packed if bits == 8 else np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)


def _chosen(rows: int, share: float) -> np.ndarray:
    """Evenly spaced rows, the first and the last among them."""
    return np.unique(np.linspace(0, rows - 1, max(2, round(rows * share))).round().astype(np.int64))
