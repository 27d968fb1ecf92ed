"""onnx_ir without sympy, which it takes for sums of symbolic sizes alone and imports with itself: here it is imported when the first one is
made. That halves what the libraries of stages without PyTorch take to import.

Imported by the process that loads them (`handlers.child.warm`); where onnx_ir or sympy has been imported before, nothing is changed.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

_LATER = ("sympy", "onnx_ir._symbolic_shapes")
"""The library, and the module of onnx_ir that reads it as soon as it is imported."""


class _Later(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:  # fmt: skip
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target) if fullname in _LATER else None
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


if sys.modules.keys().isdisjoint({"onnx_ir", "sympy"}):
    sys.meta_path.insert(0, later := _Later())
    try:
        import onnx_ir  # noqa: F401
    finally:
        sys.meta_path.remove(later)
