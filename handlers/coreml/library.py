"""Core ML Tools, imported so that it says no more than what is wrong. Runs inside the toolchain `coreml`."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any


@functools.cache
def coremltools() -> Any:
    """The library. Outside of macOS it has no runtime, and tells so of each of its parts; it also tells of each newer torch."""
    logger = logging.getLogger("coremltools")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        library = importlib.import_module("coremltools")
    finally:
        logger.setLevel(max(before, logging.ERROR))
    return library


def proto() -> Any:
    """The messages that a package's model is written in."""
    coremltools()
    return importlib.import_module("coremltools.proto.Model_pb2")
