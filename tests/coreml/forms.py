"""The stages of Core ML's formats, run in the test's process on programs that are made here."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import Any

from daemon.contract.formats.catalog import catalog
from handlers.child.progress import StageOutput
from handlers.coreml.format import CoreMlOptions
from tests.merge import helpers

VARIANTS = ("coreml", "coreml-int8", "coreml-int4", "coreml-palettized")


def make(variant: str, made_of: Path, work: Path, **options: Any) -> tuple[Path, StageOutput]:
    """The folder that a stage makes of what it needs, a folder of `static-programs` or of `coreml`, and what it says."""
    declared = catalog().variants[variant]
    context = helpers.context(work, made_of, None, method="full", **{declared.needs[0]: made_of})
    chosen = context.work.with_options(CoreMlOptions(**options))
    run = pkgutil.resolve_name(declared.entry)
    return work / "staging", run(context.model_copy(update={"work": chosen, "stage": variant}), helpers.reporter())
