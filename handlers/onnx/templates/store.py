"""Templates on disk: graphs without weights in the folder that jobs share, under a key of all that they depend on.

A template appears by one rename; of two jobs that make the same one, the second leaves the first one's in place. A template that is
damaged, or of another version, is as good as none. Free of torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from pydantic import Field

from daemon.contract import cpu
from daemon.contract.values import Frozen, Json, digest_of
from handlers.graphs.weights.shared_weights import initializers
from handlers.models.files import read_json
from handlers.onnx.templates.sources import Source
from handlers.onnx.templates.weights import Weights

FOLDER = "onnx-templates"
FILE = "template.json"
REFUSAL = "refused.json"
"""In the place of a template where none could be made."""
VERSION = 4
LIMIT = 64
"""Templates that are kept; those that were not used for the longest time go first."""
LIBRARIES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "onnxslim", "numpy")
_VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")
"""Keys of a configuration that no graph depends on: graphs are made in fp32, and say themselves whether there is a cache."""
_OPERATION = "find the template of the graph"


class Record(Frozen):
    """What a template says of itself."""

    version: int
    files: dict[str, str]
    """Graph → SHA-256 of its file."""
    roles: dict[str, str]
    """Role → graph."""
    sources: dict[str, dict[str, Source]]
    """Graph → weight → where it comes from."""
    opset: int
    seconds: float
    """What it took to make."""
    layers: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """Numbers of the layers that were traced, of each list of layers; nothing where all were."""
    error: float = 0.0
    """Largest error of the traced graph against torch, with random weights."""
    proved: tuple[str, ...] = ()
    """Roles of the graphs whose attention may be put into one operator."""
    why_whole: str = ""
    """Why all layers were traced."""
    warnings: tuple[str, ...] = ()
    optimization: Json = Field(default_factory=dict)


@dataclass(frozen=True)
class Template:
    """A template as it was read: whatever becomes of its folder, it can be used."""

    record: Record
    content: Mapping[str, bytes]
    """Graph → its file, as it was checked."""

    def graphs(self) -> dict[str, tuple[ir.Model, dict[str, Source]]]:
        """File → (graph, sources of its weights). KeyError or ValueError where it is damaged."""
        graphs = {}
        for name, content in self.content.items():
            sources = self.record.sources[name]
            model = ir.from_proto(onnx.load_model_from_string(content))
            if any(isinstance(value.const_value, ir.ExternalTensor) and value.name not in sources for value in initializers(model)):
                raise ValueError("a weight has no source")
            graphs[name] = model, sources
        return graphs


def read(folder: Path) -> Template:
    """The template in a folder. OSError, KeyError or ValueError where there is none that can be used."""
    record = Record.model_validate_json((folder / FILE).read_bytes())
    if record.version != VERSION:
        raise ValueError("another version")
    content = {name: (folder / name).read_bytes() for name in record.files}
    if any(hashlib.sha256(content[name]).hexdigest() != digest for name, digest in record.files.items()):
        raise ValueError("a graph is not what was written")
    template = Template(record, content)
    template.graphs()
    return template


def key_of(weights: Weights, strategy: str, opset: int, options: Json) -> str:
    """Digest of all that a template depends on: configuration, names and sizes of the weights, options, libraries, this code, the
    processor (on which the optimization was timed)."""
    source = weights.folder
    config = read_json(source / "config.json", _OPERATION)
    plain = {name: value for name, value in config.items() if name not in _VOLATILE}
    others = {
        str(path.relative_to(source)): path.read_text("utf-8")
        for path in sorted((*source.glob("modules.json"), *source.glob("sentence_bert_config.json"), *source.glob("*/config.json")))
    }
    known = {
        "version": VERSION, "config": plain, "others": others, "strategy": strategy, "opset": opset, "options": options,
        "weights": sorted((name, info.dtype, info.shape) for name, info in weights.infos.items()), "equal": weights.equal,
        "libraries": {name: version(name) for name in LIBRARIES}, "code": _code(), "cpu": [cpu.here().model, *cpu.here().key],
    }  # fmt: skip
    return digest_of(known)[:32]


def _code() -> str:
    """Digest of the package that makes templates, of which a checkout may have changed without another version."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parent.parent
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class Store:
    """The templates below a cache folder."""

    def __init__(self, cache: Path) -> None:
        self._root = cache / FOLDER

    def get(self, key: str) -> Template | None:
        """The template of a key; one that can't be used is removed."""
        folder = self._root / key
        try:
            template = read(folder)
        except Exception:  # of protobuf too
            shutil.rmtree(folder, ignore_errors=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(folder)
        return template

    def refused(self, key: str) -> str:
        """Why there is no template of a key, where that was found out before; else ""."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            return str(json.loads((self._root / key / REFUSAL).read_bytes())["reason"])
        return ""

    def refuse(self, key: str, reason: str) -> None:
        """Remember that there is no template of a key, so that it is not tried for each checkpoint."""
        self.remove(key)
        self._keep(key, {REFUSAL: json.dumps({"reason": reason}).encode()})

    def put(self, key: str, models: Mapping[str, tuple[ir.Model, Mapping[str, Source]]], facts: Mapping[str, Any]) -> Template:
        """Keep a template; where that can't be done, it is for this job alone."""
        content = {name: ir.to_proto(model).SerializeToString() for name, (model, _) in models.items()}
        record = Record(
            version=VERSION, files={name: hashlib.sha256(data).hexdigest() for name, data in content.items()},
            sources={name: dict(sources) for name, (_, sources) in models.items()}, **facts,
        )  # fmt: skip
        self._keep(key, {**content, FILE: record.model_dump_json().encode()})
        return Template(record, content)

    def _keep(self, key: str, files: Mapping[str, bytes]) -> None:
        arriving: Path | None = None
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            arriving = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=self._root))
            for name, content in files.items():
                (arriving / name).write_bytes(content)
            os.rename(arriving, self._root / key)
            self._limit()
        except OSError:  # another job was faster, or there is no room
            if arriving is not None:
                shutil.rmtree(arriving, ignore_errors=True)

    def remove(self, key: str) -> None:
        """Forget the template of a key, if there is one."""
        if key:
            shutil.rmtree(self._root / key, ignore_errors=True)

    def _limit(self) -> None:
        folders: Sequence[Path] = sorted((path for path in self._root.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
        for path in folders[:-LIMIT]:
            shutil.rmtree(path, ignore_errors=True)
