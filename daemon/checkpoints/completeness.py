"""Checks whether a file is complete: weights, JSON and archives, by their structure alone; problems are returned as sentences.

Called by the rules of `daemon.checkpoints.layouts`. Reads headers, ends and small JSON files, never whole weights, and never
unpickles anything.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import zipfile
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from daemon.contract.files import check_values, open_plain, read_bounded
from daemon.contract.safetensors import find_hole, has_zero_tail, parse_header
from daemon.contract.sharded.archives import BoundedReader
from daemon.contract.text import printable
from daemon.contract.values import Json

MOST_JSON = 32 << 20
"""Bytes of a JSON file that is read: an index of 200,000 tensors has less. (Trainer's state is read in pieces.)"""
MOST_VALUES = 1_000_000
"""Values of such a file: such an index has fewer."""
_WHOLE_JSON = 1 << 20
"""JSON files up to this many bytes are parsed; of larger ones only the end is looked at."""
MODULES = "modules.json"
"""sentence-transformers' list of the modules that follow a model. Each lies in a folder of its own beside it."""
MODULE_FOLDER = re.compile(r"[0-9]{1,2}_\w+")
_CONFIGURED = frozenset({"Pooling", "Dense", "LayerNorm", "Dropout"})
"""Classes that write a config.json into their folder."""


_NOT_THERE = (errno.ENOENT, errno.ELOOP)


def absent(path: Path, *names: str, why: str = " is not there yet") -> str:
    """Why there is no file of these names in a directory, as a sentence: the first and `why`, unless one names what is no file."""
    return no_file(path, *names) or f"{names[0]}{why}"


def no_file(path: Path, *names: str) -> str | None:
    """What has one of these names in a directory and is no file, as a sentence; None where nothing has."""
    for name in names:
        with contextlib.suppress(OSError):
            mode = os.lstat(path / name).st_mode
            if not stat.S_ISREG(mode):
                return f"{name} is {_what_it_is(path / name, mode)}"
    return None


def _what_it_is(file: Path, mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory, not a file"
    if not stat.S_ISLNK(mode):
        return "not a regular file"
    target = printable(os.readlink(file))
    try:
        os.stat(file)
    except OSError as error:
        return (
            f"a link to {target}, which leads back to itself" if error.errno == errno.ELOOP else f"a link to {target}, which is not there"
        )
    return f"a link to {target}, and links are not followed: put the file itself there"


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


def hollow_adapters(path: Path, names: Iterable[str]) -> list[str]:
    """Which of `names` are adapter files without a byte of weights: Trainer leaves one beside ZeRO-3's state that was not gathered."""
    hollow = []
    for name in names:
        if name == "adapter_model.safetensors":
            with contextlib.suppress(FileNotFoundError, ValueError), open_plain(path / name) as stream:
                head = stream.read(8)
                hollow += [name] if len(head) == 8 and os.fstat(stream.fileno()).st_size == 8 + int.from_bytes(head, "little") else []
    return hollow


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


def module_problems(path: Path, names: Collection[str], folders: Collection[str]) -> list[str]:
    """Which modules that sentence-transformers' modules.json names are not there, or not whole. `names`: files that an export reads,
    those in the modules' `folders` too.

    A module without settings (Normalize) has an empty folder, which not every copy keeps: it is not asked for.
    """
    if MODULES not in names:
        return []
    listed = _read_json(path, MODULES, [])
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    problems = []
    for row in rows:
        folder, kind = str(row.get("path", "")), str(row.get("type", "")).rpartition(".")[2]
        if not MODULE_FOLDER.fullmatch(folder) or kind == "Normalize":
            continue  # the model itself, or what is no folder of its own
        needed = f"{folder}/config.json" if kind in _CONFIGURED else folder
        if needed not in names and needed not in folders:
            problems.append(f"{needed}, which {MODULES} names, is not there yet")
        weights = (f"{folder}/{name}" for name in ("model.safetensors", "pytorch_model.bin"))
        problems += [problem for name in weights if name in names for problem in weight_problems(path, name)]
    return problems


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
