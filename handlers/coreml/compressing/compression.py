"""Smaller forms of Core ML's packages: weights in 8 or 4 bits, as whole numbers with scales or as places in tables, by Core ML Tools.

Called by the stages. Runs inside the toolchain. Tables of cosines and of positions, which the conversion made, stay as they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from handlers.coreml import library
from handlers.coreml.compressing import tables
from handlers.coreml.converting import conversion
from handlers.coreml.converting.folding import TABLE
from handlers.coreml.evaluation import package
from handlers.coreml.evaluation.decompression import PREFIX, STORED, stored_as
from handlers.coreml.evaluation.package import Operator, Program

LEAST = 512
"""Numbers in the smallest weight that is made smaller."""


def int8(source: Path, target: Path) -> None:
    """Matrices and tables in 8 bits without zero points, a scale a row."""
    _quantize(source, target, _rows(), {})


def int4(source: Path, target: Path, block: int) -> Counter[str]:
    """Matrices in 4 bits, a scale a block of weights; tables of tokens and the head in 8 bits, a scale a row.

    A matrix whose rows are no multiple of `block` gets smaller blocks, or else 8 bits. Gives size of blocks, or "rows" → matrices.
    """
    program, chosen, sizes = package.read(source), dict[str, Any](), Counter[str]()
    outer = _outer(program)
    for name, shape in _matrices(program).items():
        size = next((size for size in (block, 64, 32, 16) if size <= block and shape[-1] % size == 0), 0)
        if name in outer or not size or len(shape) != 2:
            chosen[name] = _rows()
        else:
            chosen[name] = _config().OpLinearQuantizerConfig(
                mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=size, weight_threshold=LEAST
            )
        sizes["rows" if name in outer or not size else str(size)] += 1
    _quantize(source, target, None, chosen)
    return sizes


def palettized(source: Path, target: Path, rows: int) -> None:
    """Matrices as places in tables of 16 numbers, a table for some rows, found by k-means; tables of tokens and the head in 8 bits."""
    program, whole = package.read(source), library.coremltools()
    outer, chosen = _outer(program), dict[str, Any]()
    for name, shape in _matrices(program).items():
        if name not in outer:
            group = next(size for size in (rows, *(32, 16, 8, 4, 2, 1)) if size <= rows and shape[0] % size == 0)
            chosen[name] = _config().OpPalettizerConfig(
                mode="custom", lut_function=tables.of, granularity="per_grouped_channel", group_size=group, weight_threshold=LEAST
            )
    with conversion.quiet():
        model = whole.models.MLModel(str(source), skip_model_load=True)
        config = _config().OptimizationConfig(global_config=None, op_name_configs=chosen)
        model = _config().palettize_weights(model, config)
        rest = _config().OptimizationConfig(global_config=None, op_name_configs={name: _rows() for name in outer})
        model = _config().linear_quantize_weights(model, rest)
    conversion.save(model, target)


def weights(path: Path) -> dict[str, int]:
    """Type → weights of more than one dimension that a package stores so."""
    counts: Counter[str] = Counter()
    operators = package.read(path).operators
    types = {name: kind.dtype for operator in operators for name, kind in operator.outputs}
    inside = {bound for operator in operators if operator.kind.startswith(PREFIX) for bounds in operator.inputs.values()
              for bound in bounds if isinstance(bound, str)}  # fmt: skip
    for operator in operators:
        if not (operator.kind in STORED or (operator.kind == "const" and operator.outputs[0][0] not in inside)):
            continue
        name, kind = operator.outputs[0]
        stored = kind.dtype if operator.kind == "const" else stored_as(operator.inputs[STORED[operator.kind]][0], types)
        if len(kind.shape) > 1 and kind.dtype.startswith("float") and f"_{TABLE}_" not in name:
            counts[stored] += int(np.prod([size or 0 for size in kind.shape]))
    return dict(counts)


def _quantize(source: Path, target: Path, everywhere: Any, chosen: Mapping[str, Any]) -> None:
    """Round weights: as `chosen` by name, and all others of matrices as `everywhere`."""
    program = package.read(source)
    names = {**dict.fromkeys(_matrices(program), everywhere), **chosen} if everywhere is not None else dict(chosen)
    with conversion.quiet():
        model = library.coremltools().models.MLModel(str(source), skip_model_load=True)
        config = _config().OptimizationConfig(global_config=None, op_name_configs=names)
        model = _config().linear_quantize_weights(model, config)
    conversion.save(model, target)


def _matrices(program: Program) -> dict[str, tuple[int, ...]]:
    """Name → sizes of the weights that may be made smaller."""
    shapes = {}
    for operator in program.operators:
        if operator.kind != "const":
            continue
        name, kind = operator.outputs[0]
        shape = tuple(size or 0 for size in kind.shape)
        if kind.dtype.startswith("float") and len(shape) > 1 and np.prod(shape) >= LEAST and f"_{TABLE}_" not in name:
            shapes[name] = shape
    return shapes


def _outer(program: Program) -> set[str]:
    """The weights of tables that tokens are looked up in, and of products whose outcome is an output."""
    matrices, made = _matrices(program), {name: operator for operator in program.operators for name, _ in operator.outputs}
    looked_up = {_first(operator, "x") for operator in program.operators if operator.kind == "gather"}
    last = {_first(product, "weight") for name in program.outputs if (product := _product(made, name)) is not None}
    return (looked_up | last) & set(matrices)


def _product(made: Mapping[str, Operator], name: str) -> Operator | None:
    """The product behind an output, or behind its cast."""
    operator = made.get(name)
    while operator is not None and operator.kind in ("cast", "identity"):
        operator = made.get(_first(operator, "x"))
    return operator if operator is not None and operator.kind == "linear" else None


def _first(operator: Operator, name: str) -> str:
    bound = operator.inputs[name][0] if name in operator.inputs else ""
    return bound if isinstance(bound, str) else ""


def _rows() -> Any:
    return _config().OpLinearQuantizerConfig(mode="linear_symmetric", dtype="int8", granularity="per_channel", weight_threshold=LEAST)


def _config() -> Any:
    library.coremltools()
    from coremltools.optimize import coreml

    return coreml
