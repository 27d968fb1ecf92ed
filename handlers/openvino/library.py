"""OpenVINO and what belongs to it, imported so that nothing is sent to anybody. Runs inside the toolchain `openvino`."""

from __future__ import annotations

import importlib
import logging
import sys
from types import ModuleType
from typing import Any


def openvino() -> Any:
    """The library. Its packages report their use to their maker unless the package that does it is missing, which they allow for."""
    sys.modules.setdefault("openvino_telemetry", _none())
    return importlib.import_module("openvino")


def nncf() -> Any:
    """Its quantizer, which says no more than what is wrong."""
    openvino()
    library = importlib.import_module("nncf")
    library.set_log_level(logging.ERROR)
    return library


def tokenizers() -> Any:
    """Its tokenizers; to import them is what lets the library load such files."""
    openvino()
    return importlib.import_module("openvino_tokenizers")


def genai() -> Any:
    """OpenVINO GenAI."""
    openvino()
    return importlib.import_module("openvino_genai")


def _none() -> ModuleType:
    """What makes an import of the module fail, see the documentation of `sys.modules`."""
    missing: Any = None
    return missing  # type: ignore[no-any-return]
