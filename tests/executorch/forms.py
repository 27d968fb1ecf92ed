"""The stages of ExecuTorch's formats, run in the test's process on programs that are made here."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

from daemon.contract.formats.catalog import catalog
from handlers.child.progress import StageOutput
from handlers.executorch.format import ExecuTorchOptions
from tests.merge import helpers

VARIANTS = ("executorch", "executorch-int8", "executorch-8da4w")


def make(variant: str, model: Path, programs: Path, work: Path, **options: Any) -> tuple[Path, StageOutput]:
    """The folder that a stage makes of a folder of `static-programs`, and what it says."""
    context = helpers.context(work, model, None, method="full", **{"static-programs": programs})
    chosen = context.work.with_options(ExecuTorchOptions(**options))
    run = pkgutil.resolve_name(catalog().variants[variant].entry)
    return work / "staging", run(context.model_copy(update={"work": chosen, "stage": variant}), helpers.reporter())
