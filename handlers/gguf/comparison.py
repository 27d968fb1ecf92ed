"""Whether a GGUF file has the weights of the merged model: every tensor of both, read in blocks of rows.

Called by the engine, in a worker, before the model is loaded: a form in few bits differs from the live model anyway, so that its answers
alone can't show one damaged block. What the stage writes itself must be there to the bit. What llama.cpp's quantizer made must lie near
its weight in every block: LIMITS says how near, in units of the block's own root mean square.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from handlers.child.variants import NotPossible
from handlers.gguf.file import architectures, projector, writing
from handlers.gguf.file.architectures import Planned
from handlers.gguf.file.weights import Weights
from handlers.gguf.reading import header, stored
from handlers.gguf.reading.stored import StoredTensor
from handlers.models.folder import ModelFolder

LIMITS = {
    "Q8_0": 0.03, "Q6_K": 0.3, "Q5_K": 0.3, "Q5_0": 0.3, "Q5_1": 0.3, "Q4_K": 0.6, "Q4_0": 0.6, "Q4_1": 0.6, "IQ4_NL": 0.6, "Q3_K": 0.8,
}  # fmt: skip
"""Largest root mean square of what was rounded away, over that of the weights, in a block.

Measured in matrices of normal and heavy-tailed numbers, some with rows or columns ten times as large: Q8_0 0.014; without importance Q6_K
0.04, Q5_K 0.07, Q5_0 0.11, Q4_K 0.13; with importances that span five orders of magnitude 0.18, 0.18, 0.19, 0.40. Weights of
another matrix are at 1.4, a block of zeros at 1."""
NOTHING = 1.3e-4
"""Root mean square of weights that may come to 0: the scale of scales of Q6_K, a half, has no number below 2⁻²⁴, and stands for up to
32 × 128 times as much."""
BLOCK = 256
"""Weights of a block, or a row's where it has fewer."""
NAMED = 3


def difference(folder: Path, merged: Path) -> str | None:
    """Why the file of a folder does not have the weights of the merged model, as a clause; None where it has."""
    model = ModelFolder(merged)
    config, shapes = architectures.config_of(model), {name: info.shape for name, info in model.headers.items()}
    try:
        planned = list(architectures.plan(config, architectures.find(config), shapes))
        planned += projector.plan(model.config, shapes) if "vision_config" in model.config else ()
        by_name = {tensor.name: tensor for file in folder.glob("*.gguf") for tensor in stored.tensors(file, header.read(file))}
    except NotPossible:
        return None  # which the stage has said
    except (ValueError, IndexError, KeyError, OSError) as error:
        return f"its weights are not those of the merge: its file can't be read ({type(error).__name__}: {str(error)[:200]})"
    weights, faults = Weights(model), []
    for tensor in planned:
        if fault := _compared(tensor, by_name.get(tensor.name), weights):
            faults.append(fault)
    faults += [f"{name} is there, which the merge does not give" for name in by_name.keys() - {tensor.name for tensor in planned}]
    if not faults:
        return None
    more = f", and {len(faults) - NAMED} more" if len(faults) > NAMED else ""
    return f"its weights are not those of the merge: {'; '.join(faults[:NAMED])}{more}. So it is damaged, or of another checkpoint"


def _compared(tensor: Planned, actual: StoredTensor | None, weights: Weights) -> str | None:
    if actual is None:
        return f"{tensor.name} is missing"
    if actual.shape != tensor.shape:
        return f"{tensor.name} has the shape {list(actual.shape)} instead of {list(tensor.shape)}"
    kind, row, rows = actual.kind, 0, actual.rows
    for block in writing.values(tensor, weights):
        exact = np.ascontiguousarray(block).reshape(-1, tensor.shape[-1])
        mine = rows[row : row + len(exact)]
        beyond = _beyond(exact, mine, kind)
        if beyond.any():
            return f"{tensor.name} is not that of the merge from row {row + int(np.argmax(beyond))} of {len(rows)} on"
        row += len(exact)
    return None


def _beyond(exact: np.ndarray, rows: np.ndarray, kind: Any) -> np.ndarray:
    """Which rows (n,) of fp32 weights (n, columns) are not what is stored for them."""
    if kind.name in ("F32", "F16", "BF16"):
        wanted = gguf.quants.quantize(exact, kind)
        return np.asarray((wanted.view(np.uint8) != np.ascontiguousarray(rows)).any(-1))
    values = gguf.quants.dequantize(np.ascontiguousarray(rows), kind).reshape(exact.shape)
    worst = np.zeros(len(exact), bool)
    for at, block in _blocks(exact):
        lost = np.sqrt(np.square(values[:, at : at + block.shape[1]] - block, dtype=np.float64).mean(-1))
        size = np.sqrt(np.square(block, dtype=np.float64).mean(-1))
        worst |= ~(lost <= LIMITS.get(kind.name, 0.0) * size + NOTHING * (kind.name in LIMITS))
    return worst


def _blocks(rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for at in range(0, rows.shape[1], BLOCK):
        yield at, rows[:, at : at + BLOCK]
