"""What in an artifact's folder is a program, which a check would run: its scripts, libraries that a runtime loads, code in a model's file.

Called by `handlers.validate.recheck`: a check at an export runs what its own stages wrote; a check of a published export, or of a folder
from somebody else, runs nothing that anybody could have put there, unless a person says that it may. What is ours byte for byte may run.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import handlers
from daemon.contract.formats.catalog import catalog
from handlers.folder import opening
from handlers.folder.examples import CHAT, NAME

LIBRARIES = {"genai_config.json": ("custom_ops_library", "library_path"), "config.json": ("model_file",)}
"""File of settings → keys that name a file of code: onnxruntime-genai loads a library of operators, mlx-lm a Python file."""
_LARGEST = 64 << 20
"""Bytes of a file of settings or of a script that is looked into."""
_NEEDS = re.compile(r"^Needs ([\w ,-]{1,80}),", re.MULTILINE)
"""What an example says that it needs."""


def of_model(folder: Path, engine: str) -> str | None:
    """Say what the engine would run, as a clause; None where it only reads.

    Engines that no format says to read data take code from a folder: TorchScript can write files, torch.export unpickles, AOTInductor and
    TensorRT load what was compiled; and of the engines of other packages nothing is known.
    """
    if engine != "torch" and engine not in catalog().data_engines:
        return f"its files hold programs, and the engine {engine} runs them when it loads them"
    for name, keys in LIBRARIES.items():
        path = folder / name
        if path.is_file() and (key := _named(path, keys)) is not None:
            return f"its {name} has the key {key}, which has a file of code loaded"
    return None


def strange_script(folder: Path) -> str | None:
    """Give the name of a script that checks would run and that is not this ckptd's own; None where there is none."""
    if not any((folder / name).is_file() for name in (NAME, CHAT)):
        return None
    return next((path.name for path in sorted(folder.glob("*.py")) if not (path.is_file() and _is_ours(path))), None)


def _named(path: Path, keys: tuple[str, ...]) -> str | None:
    if path.stat().st_size > _LARGEST:
        return keys[0]
    try:
        return _key(json.loads(path.read_bytes()), keys)
    except (ValueError, RecursionError):  # some readers take what others do not
        return next((key for key in keys if key.encode() in path.read_bytes()), None)


def _key(value: Any, keys: tuple[str, ...]) -> str | None:
    if isinstance(value, dict):
        return next((key for key in keys if key in value), None) or _first(value.values(), keys)
    return _first(value, keys) if isinstance(value, list) else None


def _first(values: Any, keys: tuple[str, ...]) -> str | None:
    return next((key for key in (_key(value, keys) for value in values) if key is not None), None)


def _is_ours(path: Path) -> bool:
    """Tell whether a script is a module of ours, or the example with another runtime in it."""
    if path.stat().st_size > _LARGEST:
        return False
    data, sources = path.read_bytes(), Path(handlers.__file__).parent
    if any(source.stat().st_size == len(data) and source.read_bytes() == data for source in sources.rglob("*.py")):
        return True
    said = _NEEDS.search(data.decode("utf-8", "replace"))
    if path.name != NAME or said is None:
        return False
    words = said[1].split(", ")
    packages = [", ".join(words[: count + 1]) for count in range(len(words))]
    openers = [opener.name for opener in path.parent.glob("*.py") if re.fullmatch(r"\w+\.py", opener.name)]
    examples = [source.read_text(encoding="utf-8") for source in sorted((sources / "folder" / "examples").glob("*.py"))]
    made = (opening.rewritten(text, *place) for text in examples for place in itertools.product(openers, packages))
    return any(text is not None and text.encode() == data for text in made)
