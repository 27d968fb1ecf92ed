"""The weights of a folder's graphs that can be turned, and the layers that they belong to. Free of torch.

Called by the stage `onnx-mixed`. Exporters fold transposes into weights and rename them, so a weight is known by its content: the diagonal
of a matrix is that of its transpose too, and a model's own names are found by it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir

from handlers.graphs.graphset import GraphSet
from handlers.graphs.rewriting import array_of, find_lookups, find_products
from handlers.models.folder import ModelFolder

_DIAGONAL = 64
"""Elements by which a matrix is known."""
_STORED: Mapping[str, type] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
_LAYER = re.compile(r"^((?:\w+\.)*?)(?:layers?|h|blocks?)\.(\d+)\.")


@dataclass(frozen=True)
class Use:
    """Where a weight lies in a graph."""

    file: str
    name: str
    turned: bool
    """It lies there as (inputs, outputs), while it is quantized as (outputs, inputs)."""


@dataclass
class Weight:
    """One matrix, (outputs, inputs) or a table (rows, columns), however many graphs hold it."""

    key: str
    """The model's own name of the parameter; that of the first graph's initializer where it has none."""
    array: np.ndarray
    """fp32, as it is quantized."""
    table: bool = False
    """It is looked up in, too."""
    uses: list[Use] = field(default_factory=list)


@dataclass(frozen=True)
class Group:
    """Weights that are given the same number of bits."""

    name: str
    """As people read it: "layer 3", "encoder layer 0", or a parameter's name."""
    keys: tuple[str, ...]


def find(folder: Path, graphs: GraphSet, merged: Path | None) -> list[Weight]:
    """The weights that products and lookups of the graphs read, in the order of the graphs. `merged`: the model's own folder."""
    names = _names(merged) if merged else {}
    weights: dict[str, Weight] = {}
    for graph in graphs.graphs:
        model = ir.load(folder / graph.file)
        own = set(model.graph.initializers)
        uses = [(product.weight, not product.transposed, False) for product in find_products(model)]
        uses += [(lookup.table, False, True) for lookup in find_lookups(model)]
        for value, turned, table in uses:
            if value.name is None or value.name not in own:
                continue  # of a branch alone
            array = array_of(value)
            key = names.get(_signature(array)) or f"{graph.file}:{value.name}"
            weight = weights.setdefault(key, Weight(key, array.T if turned else array))
            weight.table = weight.table or table
            use = Use(graph.file, value.name, turned)
            if use not in weight.uses:
                weight.uses.append(use)
    return list(weights.values())


def grouped(weights: Iterable[Weight]) -> list[Group]:
    """The weights layer by layer; one that belongs to no layer is alone."""
    groups: dict[str, list[str]] = {}
    for weight in weights:
        groups.setdefault(layer_of(weight.key), []).append(weight.key)
    return [Group(name, tuple(keys)) for name, keys in groups.items()]


def layer_of(key: str) -> str:
    """The layer of a parameter as people read it; its own name where it belongs to none."""
    match = _LAYER.match(key)
    if match is None:
        return key.removesuffix(".weight")
    side = next((f"{part} " for part in ("encoder", "decoder") if part in match[1].split(".")), "")
    return f"{side}layer {match[2]}"


_Signature = tuple[tuple[int, ...], bytes]
"""The sides of a matrix, sorted, and the begin of its diagonal in fp32: what it has in common with its transpose."""


def _signature(matrix: np.ndarray) -> _Signature:
    return _signed(matrix.shape, matrix.diagonal()[:_DIAGONAL])


def _signed(shape: tuple[int, ...], diagonal: np.ndarray) -> _Signature:
    return tuple(sorted(shape)), np.ascontiguousarray(diagonal, np.float32).tobytes()


def _names(merged: Path) -> dict[_Signature, str]:
    """Signature → name of the model's matrices; without those that share one."""
    model = ModelFolder(merged)
    names: dict[_Signature, str] = {}
    twice: set[_Signature] = set()
    for name, info in ({} if model.pickled else model.headers).items():
        if len(info.shape) != 2 or info.dtype not in _STORED:
            continue
        stored = np.memmap(model.path_of(info), _STORED[info.dtype], mode="r", offset=info.start, shape=info.shape)
        diagonal = np.array(stored.diagonal()[:_DIAGONAL])
        if info.dtype == "BF16":
            diagonal = (diagonal.astype(np.uint32) << 16).view(np.float32)
        signature = _signed(info.shape, diagonal)
        if signature in names:
            twice.add(signature)
        names[signature] = name
    return {signature: name for signature, name in names.items() if signature not in twice}
