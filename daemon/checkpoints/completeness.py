"""Whether a checkpoint is whole: its adapter or model, by the structure of each file alone. Problems are returned as sentences.

The rows of `daemon.checkpoints.layouts` name these rules. Reads headers, ends and small JSON files, never whole weights, and never
unpickles anything.
"""

from __future__ import annotations

import errno
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.checkpoints.files import ADAPTER_CONFIG, MODULE_FOLDER, MODULES, SENTINELS, TRAINER_STATE, Look, absent
from daemon.checkpoints.names import ADAPTERS
from daemon.checkpoints.parts import unfinished_step
from daemon.checkpoints.unsupported import refuse_outside
from daemon.contract.disk.files import check_values, open_plain, read_bounded
from daemon.contract.faults.errors import Fault, Permanent
from daemon.contract.models.configs import adapter_config
from daemon.contract.models.safetensors import find_hole, has_zero_tail, parse_header
from daemon.contract.sharded.archives import BoundedReader
from daemon.contract.values import Json

MOST_JSON = 32 << 20
"""Bytes of a JSON file that is read: an index of 200,000 tensors has less. (Trainer's state is read in pieces.)"""
MOST_VALUES = 1_000_000
"""Values of such a file: such an index has fewer."""
MOST_PROBLEMS = 20
"""Files of an index that are said to be missing."""
INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WHOLE_JSON = 1 << 20
"""JSON files up to this many bytes are parsed; of larger ones only the end is looked at."""
_CONFIGURED = frozenset({"Pooling", "Dense", "LayerNorm", "Dropout"})
"""Classes that write a config.json into their folder."""
_FEW = 256
"""Names of target modules that are shown."""
_LONGEST_NAME = 255
"""Bytes of a file's name."""
_STAGING = re.compile(r"tmp-checkpoint-[0-9]+")
_NOT_THERE = (errno.ENOENT, errno.ELOOP)


@dataclass
class Weights:
    """What a rule found of a model: what is missing, and what it says of itself."""

    missing: list[str] = field(default_factory=list)
    method: str = ""
    base_name: str | None = None
    base_revision: str | None = None
    metadata: Json = field(default_factory=dict)
    borrowed: tuple[Path, ...] = ()
    """Files of the run's directory that it can't do without."""
    refusal: Fault | None = None
    """Why it is not exported, whatever else it lacks."""
    step: int | None = None
    """The step that the name of its file tells."""


def whole_adapter(look: Look) -> Weights:
    """Look at an adapter: its configuration, its weights and the files beside them."""
    weights = Weights()
    config = read_object(look.path, ADAPTER_CONFIG, weights.missing)
    file = next((name for name in ADAPTERS if name in look.names), None)
    weights.missing += weight_problems(look.path, file) if file else [absent(look.path, *ADAPTERS)]
    weights.missing += side_file_problems(look.path, look.names - {ADAPTER_CONFIG, TRAINER_STATE})
    if config is not None:
        describe(weights, config, look.path)
    return weights


def whole_model(look: Look) -> Weights:
    """Look at a model: its configuration, the files of its weights, by their index if there is one, and those beside them."""
    missing: list[str] = []
    read_object(look.path, "config.json", missing)
    index = _index_of(look)
    if index:
        mapped = read_object(look.path, index, missing)
        if mapped is not None:
            if (refusal := _refusal_by_index(look, index, mapped)) is not None:
                return Weights(missing, "full", refusal=refusal)
            missing += _shard_problems(look, index, mapped.get("weight_map"))
    else:
        single = next((name for name in ("model.safetensors", "pytorch_model.bin") if name in look.names), None)
        if single is None:
            why = " or its index is not there yet"
            missing.append(absent(look.path, "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", why=why))
        else:
            missing += weight_problems(look.path, single)
    missing += side_file_problems(look.path, look.names - {"config.json", TRAINER_STATE, index or ""})
    return Weights(missing, "full")


def refusal_by_config(look: Look) -> Fault | None:
    """Why a checkpoint is not exported, by an adapter's adapter_config.json or a model's index alone; None where that is no reason."""
    weights = Weights()
    if ADAPTER_CONFIG in look.names:
        if (config := read_object(look.path, ADAPTER_CONFIG, weights.missing)) is not None:
            describe(weights, config, look.path)
        return weights.refusal
    index = _index_of(look)
    mapped = read_object(look.path, index, weights.missing) if index else None
    return _refusal_by_index(look, index, mapped) if index and mapped is not None else None


def unfinished(look: Look) -> list[str]:
    """Return by what names the trainer tells that it has not finished, and which modules are missing."""
    problems = []
    if _STAGING.fullmatch(look.path.name):
        problems.append(f"{look.path.name} is the name under which older releases of transformers stage; they rename it when it is whole")
    problems += [f"{name} says that it is still being written" for name in SENTINELS if name in look.files]
    problems += unfinished_step(look.path)
    return problems + _module_problems(look)


def describe(weights: Weights, config: Json, folder: Path) -> None:
    """Put down what an adapter says of itself, or why nobody can use what it says."""
    try:
        typed = adapter_config(config, folder / ADAPTER_CONFIG)
    except Permanent as error:
        weights.method, weights.refusal = "unknown", error.fault
        return
    targets = config.get("target_modules")
    few = isinstance(targets, str) or len(targets or ()) <= _FEW
    known = {"rank": config.get("r"), "alpha": config.get("lora_alpha"), "target_modules": targets if few else None}
    weights.method = typed.peft_type
    weights.base_name, weights.base_revision = typed.base_model_name_or_path, typed.revision
    weights.metadata = {key: value for key, value in known.items() if value is not None and not _unwritable(value)}


def _unwritable(value: Any) -> bool:
    """Whether a value of a method that is not typed here can't be shown as a number or names."""
    return not isinstance(value, str | list) and (isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30)


def weight_problems(path: Path, name: str, tensors: set[str] | None = None) -> list[str]:
    """Why a weight file is not complete; `tensors`: names that it must hold."""
    file = path / name
    try:
        if name.endswith(".bin"):
            return archive_problems(path, name)
        header = parse_header(file)
        if (hole := find_hole(file)) is not None:
            return [f"{name} has a hole at byte {hole}: it was preallocated and is not written yet"]
        if has_zero_tail(file, header):
            return [f"{name} ends with zeros in the middle of a tensor: it is not completely written"]
    except ValueError as error:
        return [f"{name}: {error}"]
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return [absent(path, name)]
    lacking = sorted((tensors or set()) - set(header))
    return [f"{name} lacks {len(lacking)} tensors that the index maps to it, the first {lacking[0]!r}"] if lacking else []


def archive_problems(path: Path, name: str) -> list[str]:
    """Why a file of torch.save is not complete: a zip has its directory at the end, so a truncated file has none."""
    try:
        with open_plain(path / name) as stream, BoundedReader(stream.raw) as bounded, zipfile.ZipFile(bounded):
            return []
    except ValueError as error:
        return [f"{name}: {error}"]
    except (zipfile.BadZipFile, NotImplementedError) as error:
        return [f"{name}: it is truncated, or is not a file of torch.save ({error})"]
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        return [absent(path, name)]


def side_file_problems(path: Path, names: Iterable[str]) -> list[str]:
    """Why another JSON file is not complete: small files must parse, large ones (tokenizers) must at least end as JSON does."""
    problems: list[str] = []
    for name in sorted(names):
        if not name.endswith(".json"):
            continue
        if (path / name).stat().st_size <= _WHOLE_JSON:
            _read_json(path, name, problems)
            continue
        with open(path / name, "rb") as stream:
            stream.seek(-64, os.SEEK_END)
            if not stream.read().rstrip().endswith((b"}", b"]")):
                problems.append(f"{name} does not end like JSON: it is not completely written")
    return problems


def read_json(path: Path) -> Any:
    """The JSON value in a file. OSError; ValueError or RecursionError for what is no JSON, no regular file, or too long."""
    text = read_bounded(path, MOST_JSON)
    check_values(text, MOST_VALUES)
    return json.loads(text)


def read_object(path: Path, name: str, missing: list[str], read: Callable[[Path], Any] = read_json) -> Json | None:
    """The JSON object in the file `name`, as `read` reads it; None, with the reason appended to `missing`, where there is none."""
    value = _read_json(path, name, missing, read)
    if isinstance(value, dict):
        return value
    if not any(problem.startswith(name) for problem in missing):
        missing.append(f"{name} is not a JSON object")
    return None


def _read_json(path: Path, name: str, missing: list[str], read: Callable[[Path], Any] = read_json) -> Any:
    try:
        return read(path / name)
    except OSError as error:
        if error.errno not in _NOT_THERE:
            raise
        missing.append(absent(path, name))
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        missing.append(f"{name} is not valid JSON ({error})")
    except ValueError as error:
        missing.append(f"{name} can't be read: {error}")
    return None


def _index_of(look: Look) -> str | None:
    return next((name for name in INDEXES if name in look.names), None)


def _refusal_by_index(look: Look, index: str, mapped: Json) -> Fault | None:
    outside = _names_outside(mapped.get("weight_map"))
    return None if outside is None else refuse_outside(look.path, index, outside)


def _names_outside(weight_map: Any) -> str | None:
    """The first name of an index that can be none of a file beside it: no file of that name will ever come."""
    names = weight_map.values() if isinstance(weight_map, dict) else ()
    return next((str(name) for name in names if not isinstance(name, str) or not _is_file_name(name)), None)


def _is_file_name(name: str) -> bool:
    return name.isprintable() and os.sep not in name and name not in ("", ".", "..") and len(os.fsencode(name)) <= _LONGEST_NAME


def _shard_problems(look: Look, index: str, weight_map: Any) -> list[str]:
    """Problems where a file of the index is missing or does not hold the names that are mapped to it."""
    if not isinstance(weight_map, dict) or not weight_map:
        return [f"{index} maps no weights to files"]
    wanted: dict[str, set[str]] = {}
    for tensor, name in weight_map.items():
        wanted.setdefault(str(name), set()).add(tensor)
    problems: list[str] = []
    for name, tensors in sorted(wanted.items()):
        if name in look.names:
            problems += weight_problems(look.path, name, tensors)
        else:
            problems.append(absent(look.path, name, why=f", which {index} names, is not there yet"))
        if len(problems) > MOST_PROBLEMS:
            return [*problems[:MOST_PROBLEMS], f"and more of the {len(wanted):,} files that {index} names"]
    return problems


def _module_problems(look: Look) -> list[str]:
    """Which modules that sentence-transformers' modules.json names are not there, or not whole.

    A module without settings (Normalize) has an empty folder, which not every copy keeps: it is not asked for.
    """
    if MODULES not in look.names:
        return []
    listed = _read_json(look.path, MODULES, [])
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    problems = []
    for row in rows:
        folder, kind = str(row.get("path", "")), str(row.get("type", "")).rpartition(".")[2]
        if not MODULE_FOLDER.fullmatch(folder) or kind == "Normalize":
            continue  # the model itself, or what is no folder of its own
        needed = f"{folder}/config.json" if kind in _CONFIGURED else folder
        if needed not in look.names and needed not in look.folders:
            problems.append(f"{needed}, which {MODULES} names, is not there yet")
        weights = (f"{folder}/{name}" for name in ("model.safetensors", "pytorch_model.bin"))
        problems += [problem for name in weights if name in look.names for problem in weight_problems(look.path, name)]
    return problems
