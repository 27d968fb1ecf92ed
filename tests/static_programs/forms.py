"""The stage `static-programs`, run in the test's process on models that are made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from handlers.child.progress import StageOutput
from handlers.static_programs import stage
from handlers.static_programs.options import StaticOptions
from tests.merge import helpers


def programs(model: Path, work: Path, **options: Any) -> tuple[Path, StageOutput]:
    """The programs of a model, taken for a merged one, and what the stage says."""
    context = helpers.context(work, model, None, method="full", merge=model)
    chosen = context.work.with_options(StaticOptions(**options))
    return work / "staging", stage.run(context.model_copy(update={"work": chosen}), helpers.reporter())
