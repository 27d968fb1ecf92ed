"""A model's folder: its configuration, its weight files, and what their headers say, each read once.

`ModelFolder` is what the merge hands on from one step to the next, and what stages ask that need to know a model's size or layout before
anything is loaded. Only JSON and headers are read, so neither torch nor safetensors is imported. Pickled `.bin` files are recognized
by name; what they hold can't be known without unpickling, which is not done here.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.configs import model_config
from daemon.contract.models.safetensors import DTYPES, TensorInfo, read_header
from daemon.contract.values import Json
from handlers.models.files import Edits, edited, read_json, setting

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
GENERATION = "generation_config.json"
BIN_SINGLE = "pytorch_model.bin"
BIN_INDEX = "pytorch_model.bin.index.json"

CONV1D_MODELS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
"""Model types whose linear layers are Conv1D: their weights are stored as inputs × outputs."""

_PLAIN = re.compile(r"[\w-][\w. +=@-]*\.(safetensors|bin)")


@dataclass(frozen=True)
class WeightFiles:
    """The files that hold a model's weights, as transformers would choose them."""

    kind: str
    """"safetensors" or "bin"."""
    names: tuple[str, ...]
    index: str | None = None


@dataclass(frozen=True)
class ModelFolder:
    """A transformers model on disk. What it says is read when it is first asked for, and kept.

    It describes the folder as it was then: make a new one after the files have changed.
    """

    path: Path
    noun: str = "model"
    """What errors call it: "model", "base" or "checkpoint"."""

    @classmethod
    def opened(cls, path: Path, noun: str = "model") -> ModelFolder:
        """The model in `path`, with configuration and list of weight files read now. Permanent when one of them is missing or damaged."""
        model = cls(path, noun)
        model.config  # noqa: B018
        model.files  # noqa: B018
        return model

    @functools.cached_property
    def config(self) -> Json:
        """config.json. Permanent when it is missing, is not JSON, or holds a field of a wrong kind."""
        path, operation = self.path / "config.json", f"read the {self.noun}'s configuration"
        return model_config(read_json(path, operation), path, operation)

    @functools.cached_property
    def files(self) -> WeightFiles:
        """The weight files, in transformers' order of preference; Permanent when there is none."""
        return _weight_files(self.path)

    @functools.cached_property
    def headers(self) -> dict[str, TensorInfo]:
        """Name → tensor of safetensors weights, single or sharded, without reading any weight.

        Permanent when a file is missing or cut short, when index and headers differ, or when the weights are `.bin`.
        """
        return _headers(self.path, self.files)

    def check(self) -> None:
        """Read the headers now, if there are any. Permanent for damaged weights, as `headers` says."""
        if not self.pickled:
            self.headers  # noqa: B018

    @property
    def pickled(self) -> bool:
        """Whether the weights are `.bin` files, so that there are no headers."""
        return self.files.kind == "bin"

    @property
    def weight_names(self) -> tuple[str, ...]:
        """Names of the weight files and of their index, if there is one."""
        return (*self.files.names, *([self.files.index] if self.files.index else []))

    @property
    def file_bytes(self) -> int:
        """Bytes of the weight files, headers included."""
        return sum((self.path / name).stat().st_size for name in self.files.names)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors, headers left out (`.bin`: of the files)."""
        return self.file_bytes if self.pickled else sum(info.size for info in self.headers.values())

    @property
    def parameters(self) -> int:
        """Number of elements of all tensors."""
        return sum(info.elements for info in self.headers.values())

    @property
    def main_dtype(self) -> str:
        """Torch's name of the dtype that holds most of the bytes, "bfloat16" for example; "none" without tensors."""
        sizes: Counter[str] = Counter()
        for info in self.headers.values():
            sizes[info.dtype] += info.size
        if not sizes:
            return "none"
        name = sizes.most_common(1)[0][0]
        return DTYPES.get(name, (name.lower(), 0))[0]

    @property
    def uses_conv1d(self) -> bool:
        """Whether the linear layers are Conv1D, whose weights are stored as inputs × outputs."""
        return self.config.get("model_type") in CONV1D_MODELS

    def setting(self, key: str) -> Any:
        """Return a model-wide setting of config.json: from the top level, else from `text_config`; None when unset."""
        return setting(self.config, key)

    def path_of(self, info: TensorInfo) -> Path:
        """Return the file that holds a tensor of this model."""
        return self.path / info.file

    def file_key(self, name: str) -> str:
        """Identify the current state of a file without reading it: device, inode, size, mtime in nanoseconds."""
        status = os.stat(self.path / name)
        return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}"


def copy_config(model: ModelFolder, target: Path, edits: Edits | None = None) -> None:
    """Put the model's config.json and generation_config.json into `target`: byte by byte, or edited as JSON.

    They never go through transformers' own classes: those drop or rename what another release relies on.
    """
    config, source = model.config, model.path
    if edits:
        (target / "config.json").write_text(json.dumps(edited(config, edits), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        shutil.copyfile(source / "config.json", target / "config.json")
    copy_generation(source, target)


def copy_generation(source: Path, target: Path) -> None:
    """Put the generation_config.json of `source`, if it has one, into `target`; one that is there is replaced."""
    if (source / GENERATION).is_file():
        shutil.copyfile(source / GENERATION, target / GENERATION)


def _bad_index(path: Path, cause: str) -> Permanent:
    return Permanent(FaultCode.BAD_INDEX, "read the weights' index", cause, "restore the model's index file", path=path)


def _weight_files(folder: Path) -> WeightFiles:
    for kind, single, index in (("safetensors", SINGLE, INDEX), ("bin", BIN_SINGLE, BIN_INDEX)):
        if (folder / single).is_file():
            return WeightFiles(kind, (single,))
        if (folder / index).is_file():
            table = read_json(folder / index, "read the weights' index")
            mapping = table.get("weight_map") if isinstance(table, dict) else None
            if not isinstance(mapping, dict) or not mapping:
                raise _bad_index(folder / index, "it has no weight_map")
            names = {name if isinstance(name, str) else repr(name) for name in mapping.values()}
            # The same names are written below the output: a path would lead out of it.
            if wrong := sorted(name for name in names if not _PLAIN.fullmatch(name)):
                raise _bad_index(folder / index, f"it names the file {wrong[0][:80]!r}, which is not a plain name of a weight file")
            return WeightFiles(kind, tuple(sorted(names)), index)
    raise Permanent(
        FaultCode.NO_WEIGHTS,
        "find the model's weights",
        f"there is no {SINGLE}, {INDEX}, {BIN_SINGLE} or {BIN_INDEX}",
        "point to a folder that holds a transformers model",
        path=folder,
    )


def _headers(folder: Path, files: WeightFiles) -> dict[str, TensorInfo]:
    if files.kind != "safetensors":
        raise Permanent(
            FaultCode.NOT_SAFETENSORS,
            "read the weights' headers",
            "the weights are pickled .bin files",
            "convert them to safetensors",
            path=folder,
        )
    headers: dict[str, TensorInfo] = {}
    for name in files.names:
        header = read_header(folder / name)
        if twice := sorted(headers.keys() & header.keys()):
            raise _bad_index(folder / str(files.index), f"{headers[twice[0]].file} and {name} both hold {twice[0]}")
        headers.update(header)
    if files.index:
        mapping = read_json(folder / files.index, "read the weights' index")["weight_map"]
        wrong = sorted(name for name in mapping if name not in headers or headers[name].file != mapping[name])
        wrong += sorted(headers.keys() - mapping.keys())
        if wrong:
            raise Permanent(
                FaultCode.BAD_INDEX,
                "check the weights against their index",
                f"{len(wrong)} of {len(headers)} tensors are not where the index says, for example {wrong[0]}",
                "copy or download the model again",
                path=folder / files.index,
            )
    return headers
