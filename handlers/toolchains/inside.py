"""How a module that runs inside a toolchain answers its caller: one JSON file, whatever happened.

Used by the modules that `handlers.toolchains.use` starts, and by the probes. Imports the standard library alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar, Protocol


class Answer(Protocol):
    """A dataclass of JSON values."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


Work = Callable[[argparse.Namespace], Answer]


@dataclasses.dataclass(frozen=True)
class Probed:
    """What the probe of a toolchain tried."""

    versions: dict[str, str]
    """Versions of the libraries that must fit each other."""
    error: float | None = None
    """How far what they computed was from what it should be, in the probe's own unit."""


def versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of distributions of this environment. Raises PackageNotFoundError for one that is missing."""
    return {name: importlib.metadata.version(name) for name in names}


def main(parser: argparse.ArgumentParser, work: Work) -> None:
    """Do `work` with the arguments and write {"answer": …} or {"error": {"type", "message"}} to `--answer`; ends the process.

    Exit code 0, or 1 after an error; the traceback goes to stderr.
    """
    parser.add_argument("--answer", required=True, type=Path)
    options = parser.parse_args()
    try:
        said: dict[str, object] = {"answer": dataclasses.asdict(work(options))}
    except Exception as error:
        traceback.print_exc()
        said = {"error": {"type": type(error).__name__, "message": str(error)[:4000]}}
    options.answer.write_text(json.dumps(said), encoding="utf-8")
    sys.stderr.flush()
    os._exit("error" in said)  # libraries that are taken down in order may hang or crash doing so
