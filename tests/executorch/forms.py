"""The stages of ExecuTorch's formats, run in the test's process on programs that are made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from handlers.child.progress import StageOutput
from handlers.executorch.options import ExecuTorchOptions
from tests import stages
from tests.exports.formats import FORMATS

VARIANTS = FORMATS["executorch"].variants


def make(variant: str, made_of: Path, work: Path, **options: Any) -> tuple[Path, StageOutput]:
    """See `stages.make`."""
    return stages.make(variant, made_of, work, ExecuTorchOptions(**options))
