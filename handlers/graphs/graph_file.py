"""Finishes an exported graph: readable axis names, no data about the exporter's machine, metadata, and writing it to disk.

Used by both ONNX stages; imports neither torch nor onnxruntime. Graphs are onnx_ir models, whose weights stay
where they are (torch's memory, a mapped file) until they are written.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as passes

from daemon.contract.version import __version__
from handlers.graphs.signature import PAST, SEQUENCE, TOTAL, Signature
from handlers.graphs.weights import shared_weights
from handlers.graphs.weights.turning import turned

MODEL_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"
SINGLE_FILE_LIMIT = 128_000_000
"""Bytes of weights above which they lie in a file of their own. Protobuf ends at 2 GiB, and one file is written from three copies of the
weights in memory."""

IN_FLIGHT_BYTES = 256 << 20
"""Weights that several threads may hold while they write."""

_SYMBOL = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class GraphFile:
    """A graph on disk; `size` is in bytes, weights included."""

    path: Path
    nodes: int
    size: int
    data: tuple[str, ...]
    """Names of the files beside it that hold its weights."""

    @property
    def external_data(self) -> bool:
        """Whether its weights lie in files of their own."""
        return bool(self.data)


def _renamed(text: str, names: Mapping[str, str], known: set[str]) -> str | None:
    """Return a dimension's expression in our names; None when it holds a symbol that no input explains."""
    symbols = set(_SYMBOL.findall(text))
    if not symbols <= names.keys() | known:
        return None
    renamed = _SYMBOL.sub(lambda match: names.get(match.group(), match.group()), text)
    return TOTAL if sorted(renamed.split(" + ")) == [PAST, SEQUENCE] else renamed


def name_axes(model: ir.Model, signature: Signature) -> None:
    """Give inputs, outputs and everything between them the signature's axis names instead of the exporter's."""
    names: dict[str, str] = {}
    known = {name for axes in signature.axes.values() for name in axes.values()}
    for value in (*model.graph.inputs, *model.graph.outputs):
        axes = signature.axes.get(value.name or "", {})
        if value.shape is None:
            continue
        for axis, name in axes.items():
            dimension = value.shape[axis]
            if isinstance(dimension, ir.SymbolicDim) and dimension.value and _SYMBOL.fullmatch(dimension.value):
                names.setdefault(dimension.value, name)
        value.shape = ir.Shape([axes.get(axis, dimension) for axis, dimension in enumerate(value.shape)])
    fixed = {*model.graph.inputs, *model.graph.outputs}
    for node in model.graph:
        for value in node.outputs:
            if value.shape is not None and value not in fixed:
                value.shape = ir.Shape(
                    [
                        _renamed(dimension.value, names, known) if isinstance(dimension, ir.SymbolicDim) and dimension.value else dimension
                        for dimension in value.shape
                    ]
                )


def _turned_lazily(source: ir.TensorProtocol, order: Sequence[int], name: str | None) -> ir.LazyTensor:
    """Return the transposed tensor, made when it is written: of several graphs, only one holds a turned copy at a time."""

    def turn() -> ir.TensorProtocol:
        values = source.numpy()
        made = turned(values) if values.dtype == np.float32 and list(order) == [1, 0] else values.transpose(order).copy()
        return ir.tensor(made, name=name)

    return ir.LazyTensor(turn, dtype=source.dtype, shape=ir.Shape([int(source.shape.numpy()[axis]) for axis in order]), name=name)


def fold_transposed_weights(model: ir.Model) -> int:
    """Store weights transposed where the graph transposes them; returns the number of transposed weights.

    A weight that another node reads too (above all a tied embedding) stays as it is: a transposed copy would be written in addition.
    """
    turned = 0
    for node in list(model.graph):
        weight = node.inputs[0] if node.op_type == "Transpose" else None
        if weight is None or not weight.is_initializer() or len(weight.uses()) != 1 or weight.const_value is None:
            continue
        order = node.attributes.get_ints("perm", list(reversed(range(len(weight.const_value.shape)))))
        result = node.outputs[0]
        turned_weight = _turned_lazily(weight.const_value, order, result.name)
        folded = ir.Value(name=result.name, const_value=turned_weight, shape=turned_weight.shape, type=weight.type)
        ir.convenience.replace_all_uses_with(result, folded)
        model.graph.remove(node, safe=True)
        del model.graph.initializers[weight.name or ""]
        weight.const_value = None  # see `let_go`
        model.graph.register_initializer(folded)
        turned += 1
    return turned


def _settle_views(models: Iterable[ir.Model]) -> None:
    """Make transposed views of matrices, which exporters leave, ones that are turned when they are written: numpy writes a view element by
    element."""
    for value in (value for model in models for value in shared_weights.initializers(model)):
        array = value.const_value.raw if isinstance(value.const_value, ir.Tensor) else None
        if isinstance(array, np.ndarray) and array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous:
            value.const_value = _turned_lazily(ir.tensor(array.T), (1, 0), value.name)


def tidy(model: ir.Model) -> None:
    """Drop what a runtime does not need: dead nodes, repeated subexpressions, and each node's stack trace.

    The traces hold paths of this machine, and in a small model they are most of the file.
    """
    passes.ClearMetadataAndDocStringPass()(model)
    passes.CommonSubexpressionEliminationPass()(model)
    passes.IdentityEliminationPass()(model)
    passes.RemoveUnusedNodesPass()(model)
    passes.RemoveUnusedFunctionsPass()(model)
    passes.RemoveUnusedOpsetsPass()(model)


def describe(model: ir.Model, facts: Mapping[str, object]) -> None:
    """Write facts into the model's metadata, so that the file alone says what it is; None is left out."""
    model.producer_name, model.producer_version = "ckptd", __version__
    model.metadata_props.update({name: str(value) for name, value in facts.items() if value is not None})


def opset(model: ir.Model) -> int:
    """Version of the standard operator set that the graph really uses."""
    return int(model.graph.opset_imports.get("", 0))


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of all initializers."""
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)


def write(models: Mapping[str, ir.Model], target: Path, scratch: Path, threads: int = 1) -> dict[str, Path]:
    """Write graphs and weights apart, and give each graph's path by its name; `place` then brings them into `target`.

    So the caller can let go of the weights before a second copy of them is made. What is too large for a single file, and
    several graphs, which share their weights, are written into `target` at once.
    """
    _settle_views(models.values())
    if len(models) > 1:
        shared_weights.write(models, target, DATA_FILE)
        return {name: target / name for name in models}
    ((name, model),) = models.items()
    folder = target if weight_bytes(model) > SINGLE_FILE_LIMIT else scratch
    workers = threads if threads > 1 else None
    ir.save(model, folder / name, external_data=f"{name}.data", max_workers=workers, max_in_flight_bytes=IN_FLIGHT_BYTES)
    return {name: folder / name}


def let_go(models: Iterable[ir.Model]) -> None:
    """Remove the weights from graphs that are on disk: onnxscript's rules keep a reference to the last graph until the process ends."""
    for model in models:
        for value in shared_weights.initializers(model):
            value.const_value = None


def place(written: Path, target: Path) -> GraphFile:
    """Bring a written graph into `target`, as one file unless it was too large for that.

    Works on protobuf itself: its peak is three times the weights, where onnx_ir would hold them four times.
    """
    path = target / written.name
    if written != path:
        proto = onnx.load(written)
        onnx.save_model(proto, path)
        written.unlink()
        written.with_name(f"{written.name}.data").unlink(missing_ok=True)
    else:
        proto = onnx.load(path, load_external_data=False)
    data = external_files(proto)
    size = sum((target / name).stat().st_size for name in (path.name, *data))
    return GraphFile(path, len(proto.graph.node), size, data)


def external_files(proto: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of the files that hold a loaded graph's weights."""
    tensors = onnx.external_data_helper._get_all_tensors(proto)
    locations = (entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location")
    return tuple(dict.fromkeys(locations))


def external_tensors(path: Path) -> list[onnx.TensorProto]:
    """The weights of a graph on disk that lie in files, without their contents. Reading only these is much quicker than `ir.load`."""
    proto = onnx.load(path, load_external_data=False)
    return [tensor for tensor in onnx.external_data_helper._get_all_tensors(proto) if tensor.data_location == onnx.TensorProto.EXTERNAL]


def clear(folder: Path) -> None:
    """Remove graphs that turned out wrong, with their weights."""
    for pattern in ("*.onnx", "*.onnx.data", "graphs.json"):
        for path in folder.glob(pattern):
            path.unlink()


def fresh_folder(path: Path) -> Path:
    """Return an empty folder at `path`; what was there is removed."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
