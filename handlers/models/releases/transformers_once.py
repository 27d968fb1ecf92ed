"""transformers, which is to look through the files of its models once: both of its packages that list them read all 1100 folders.

Whoever is the first to ask for a class of transformers takes the library from here. Where a version does something else, it is left alone.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import transformers
from transformers.utils import import_utils

__all__ = ["transformers"]

_PREFIX = "models."


def _listed(known: Any) -> dict[Any, Any]:
    """Of the list that `transformers` itself has: what is among its models, named as `transformers.models` names it."""
    named = {
        needs: {name.removeprefix(_PREFIX): set(objects) for name, objects in modules.items() if name.startswith(_PREFIX)}
        for needs, modules in known.items()
    }
    return {needs: modules for needs, modules in named.items() if modules}


def _list_once() -> None:
    listed = import_utils.define_import_structure
    folder = Path(transformers.__file__).parent / "models"

    def define_import_structure(path: str, prefix: str | None = None) -> Any:
        if prefix is None and Path(path) == folder / "__init__.py":
            hits = listed.cache_info().hits
            known = listed(folder, prefix="models")
            if listed.cache_info().hits > hits:  # else it has not been asked for in this way, and a folder's list is not a package's
                return _listed(known)
        return listed(path, prefix)

    with mock.patch.object(import_utils, "define_import_structure", define_import_structure):
        importlib.import_module("transformers.models")


if "transformers.models" not in sys.modules:
    with contextlib.suppress(AttributeError, TypeError, ImportError):
        _list_once()
