"""graphs.json: what graphs an ONNX folder holds, what each is for, and what goes in and out.

Written by the onnx stage and by each stage that derives another form from its folder; read by those, by validation and by
the example scripts. Free of torch and onnx.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

from pydantic import Field, ValidationError

from daemon.contract.disk.export_layout import README
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Frozen, Json

FILE = "graphs.json"
OPERATION = "read what an ONNX folder holds"
MEDIA = frozenset({"pixel_values", "input_values", "input_features"})
"""Inputs of pictures and sounds, of which texts make none."""


class Port(Frozen):
    """One input or output."""

    name: str
    dtype: str
    """As numpy names it: "int64", "float32", "float16", "bool"."""
    shape: tuple[int | str, ...]
    """Sizes; a dynamic axis has its name: batch, sequence, past, total, …"""


class Graph(Frozen):
    """One graph of the folder."""

    role: str
    """"model" where there is one; "encoder", "decoder", "decoder_with_past", "decoder_merged" of an encoder-decoder; …"""
    file: str
    data: tuple[str, ...] = ()
    """Files beside it that hold its weights; graphs may share them."""
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    nodes: int = 0


class GraphSet(Frozen):
    """All graphs of a folder."""

    version: int = 1
    task: str
    """Name in `handlers.models.tasks`."""
    family: str
    dtype: str
    """Of the weights: "float32", "float16", "int8", "int4"."""
    opset: int
    """0: they are no ONNX graphs but programs of PyTorch, or models of OpenVINO."""
    graphs: tuple[Graph, ...]
    extra: Json = Field(default_factory=dict)
    """Facts of one family or variant."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all graphs and of the files of their weights, each once."""
        return tuple(dict.fromkeys(name for graph in self.graphs for name in (graph.file, *graph.data)))

    def graph(self, role: str) -> Graph | None:
        """The graph with that role."""
        return next((graph for graph in self.graphs if graph.role == role), None)

    def size(self, folder: Path) -> int:
        """Bytes of all files in `folder`."""
        return sum((folder / name).stat().st_size for name in self.files)

    def write(self, folder: Path) -> None:
        """Write graphs.json."""
        (folder / FILE).write_text(json.dumps(self.model_dump(mode="json"), indent=1) + "\n", encoding="utf-8")


def read(folder: Path) -> GraphSet:
    """The graphs of a folder; Permanent when it has no graphs.json, or one that can't be understood."""
    path = folder / FILE
    try:
        return GraphSet.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        cause = f"it holds no {FILE}"
    except (ValidationError, OSError) as error:
        cause = f"its {FILE} can't be read ({str(error).splitlines()[0]})"
    raise Permanent(FaultCode.GRAPH_UNREADABLE, OPERATION, cause, "export the model to ONNX again", path=folder)


def copy_beside(folder: Path, target: Path, graphs: GraphSet, without: Collection[str] = ()) -> None:
    """Copy all of such a folder but its graphs, their description, a published one's README, and the names in `without`."""
    for path in sorted(folder.iterdir()):
        if path.name not in (*graphs.files, FILE, README, *without):
            (shutil.copytree if path.is_dir() else shutil.copyfile)(path, target / path.name)
