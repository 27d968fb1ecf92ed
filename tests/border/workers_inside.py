"""A worker of the validation that runs in the stage's own process, so that a case costs no start of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from handlers.validate.engines.registry import EngineSpec
from tests.validate.bench import Direct


class Inside(Direct):
    """It takes what `client.EngineWorker` takes."""

    def __init__(self, name: str, spec: EngineSpec, folder: Path, limits: Any, *, toolchain: Path | None = None) -> None:
        super().__init__(name, spec)

    def __enter__(self) -> Inside:
        return self

    def __exit__(self, *_: object) -> None:
        return None
