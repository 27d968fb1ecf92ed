"""The folder while its graphs are optimized: small files of nodes beside files of weights that no step touches.

Used by `run`. Weights that stand inside a graph are taken out first and put back at the end, so that a step reads and writes kilobytes.
A graph changes by one rename, and until `close` each graph finds its weights whatever interrupts the work.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx.external_data_helper import ExternalDataInfo

from handlers.graphs import graph_file as graphs_on_disk
from handlers.graphs.graphset import GraphSet
from handlers.graphs.weights import shared_weights

SCRATCH = ".optimizing"
"""Folder within the folder, gone at the end."""


@dataclass(frozen=True)
class CandidateGraph:
    """A graph that a step made, beside the one that it is to replace."""

    path: Path
    target: Path
    own_data: Path | None
    """Weights that it does not share with the graph before."""

    def take(self) -> None:
        """Put it in the other's place."""
        os.replace(self.path, self.target)

    def discard(self) -> None:
        """Leave no trace of it."""
        self.path.unlink(missing_ok=True)
        if self.own_data is not None:
            self.own_data.unlink(missing_ok=True)


class Bench:
    """Opens a folder for work; `close` brings it back into the form that it had."""

    def __init__(self, folder: Path, graphs: GraphSet) -> None:
        self.folder = folder
        self.files = [graph.file for graph in graphs.graphs]
        self._whole = not any(graph.data for graph in graphs.graphs)
        self._number = 0
        self.scratch = graphs_on_disk.fresh_folder(folder / SCRATCH)
        for name in self.files if self._whole else ():
            model = ir.load(folder / name)
            shared_weights.write({name: model}, self.scratch, f"{name}.data")
            del model
            os.replace(self.scratch / f"{name}.data", folder / f"{name}.data")
            os.replace(self.scratch / name, folder / name)
        self._stored = self.weight_bytes()

    def candidate(self, file: str, model: ir.Model) -> CandidateGraph:
        """Write what a step made of a graph beside it, new weights into a file of their own."""
        self._number += 1
        path, data = self.folder / f"{file}.{self._number}.onnx", self.folder / f"{file}.{self._number}.data"
        loaded = [value for value in shared_weights.initializers(model) if _is_new(value)]
        known = _stored(ir.load(self.folder / file)) if loaded else {}
        new = [value for value in loaded if not _linked(value, known)]
        if new:
            tensors = [value.const_value for value in new if value.const_value is not None]
            for value, tensor in zip(new, ir.external_data.convert_tensors_to_external(tensors, self.folder, data.name), strict=True):
                value.const_value = tensor
        ir.save(model, path)
        return CandidateGraph(path, self.folder / file, data if new else None)

    def copy(self, file: str) -> CandidateGraph:
        """The graph as it is, to come back to; its weights stay where they are."""
        self._number += 1
        path = self.folder / f"{file}.{self._number}.onnx"
        shutil.copyfile(self.folder / file, path)
        return CandidateGraph(path, self.folder / file, None)

    def size(self, candidate: CandidateGraph | None = None) -> int:
        """Bytes of all graphs and of the weights that they refer to, each once; with a candidate in its graph's place."""
        replaced = {candidate.target.name: candidate.path.name} if candidate is not None else {}
        names = [replaced.get(name, name) for name in self.files]
        return sum((self.folder / name).stat().st_size for name in names) + self.weight_bytes(names)

    def weight_bytes(self, names: Iterable[str] | None = None) -> int:
        """Bytes of the weights that graphs refer to, each once."""
        stored = (tensor for name in names or self.files for tensor in graphs_on_disk.external_tensors(self.folder / name))
        places = {(info.location, info.offset): info.length for info in map(ExternalDataInfo, stored)}
        return sum(length or 0 for length in places.values())

    def close(self) -> dict[str, graphs_on_disk.GraphFile]:
        """Put weights back where they were, without those that nothing reads any more; gives each graph as it now is."""
        if self._whole or self.weight_bytes() != self._stored:
            self._rewrite()
        self.tidy()
        return {name: _described(self.folder / name) for name in self.files}

    def _rewrite(self) -> None:
        before = self._data_files()
        models = {name: ir.load(self.folder / name) for name in self.files}
        shared_weights.write(models, self.scratch, graphs_on_disk.DATA_FILE)
        models.clear()
        if self._whole:
            for name in self.files:
                proto = onnx.load(self.scratch / name)
                onnx.save_model(proto, self.scratch / f"{name}.whole")
                del proto
                os.replace(self.scratch / f"{name}.whole", self.scratch / name)
        else:
            os.replace(self.scratch / graphs_on_disk.DATA_FILE, self.folder / graphs_on_disk.DATA_FILE)
        for name in self.files:
            os.replace(self.scratch / name, self.folder / name)
        for name in before - self._data_files():
            (self.folder / name).unlink(missing_ok=True)

    def _data_files(self) -> set[str]:
        protos = (onnx.load(self.folder / name, load_external_data=False) for name in self.files)
        return {name for proto in protos for name in graphs_on_disk.external_files(proto)}

    def tidy(self) -> None:
        """Remove what candidates left behind."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        used = {*self.files, *self._data_files()}
        for name in self.files:
            for path in (*self.folder.glob(f"{name}.*.onnx"), *self.folder.glob(f"{name}.*.data")):
                if path.name not in used:
                    path.unlink()


def _described(path: Path) -> graphs_on_disk.GraphFile:
    proto = onnx.load(path, load_external_data=False)
    data = graphs_on_disk.external_files(proto)
    return graphs_on_disk.GraphFile(
        path, len(proto.graph.node), sum((path.parent / name).stat().st_size for name in (path.name, *data)), data
    )


def _key(tensor: ir.TensorProtocol) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype.name, tuple(int(size) for size in tensor.shape.numpy())


def _stored(model: ir.Model) -> dict[tuple[str, tuple[int, ...]], list[ir.ExternalTensor]]:
    """Type and shape → tensors of the graph that lie in files."""
    tensors: dict[tuple[str, tuple[int, ...]], list[ir.ExternalTensor]] = {}
    for value in shared_weights.initializers(model):
        if isinstance(value.const_value, ir.ExternalTensor):
            tensors.setdefault(_key(value.const_value), []).append(value.const_value)
    return tensors


def _linked(value: ir.Value, known: dict[tuple[str, tuple[int, ...]], list[ir.ExternalTensor]]) -> bool:
    """Let a tensor that a tool loaded, or renamed, be the stored one again; False where there is none with these bytes."""
    tensor = value.const_value
    assert tensor is not None
    for stored in known.get(_key(tensor), ()):
        if np.array_equal(stored.numpy(), tensor.numpy()):
            value.const_value = stored
            return True
    return False


def _is_new(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.nbytes > shared_weights.INLINE_BYTES and not isinstance(tensor, ir.ExternalTensor)
