"""The stages of LiteRT's formats, run in the test's process on programs that are made here."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

from daemon.contract.formats.catalog import catalog
from handlers.child.progress import StageOutput
from handlers.litert.format import LiteRtOptions
from tests.merge import helpers

VARIANTS = ("litert", "litert-int8", "litert-int4")


def make(variant: str, model: Path, made_of: Path, work: Path, **options: Any) -> tuple[Path, StageOutput]:
    """The folder that a stage makes of what it needs, a folder of `static-programs` or of `litert`, and what it says."""
    declared = catalog().variants[variant]
    context = helpers.context(work, model, None, method="full", **{declared.needs[0]: made_of})
    chosen = context.work.with_options(LiteRtOptions(**options))
    run = pkgutil.resolve_name(declared.entry)
    return work / "staging", run(context.model_copy(update={"work": chosen, "stage": variant}), helpers.reporter())
