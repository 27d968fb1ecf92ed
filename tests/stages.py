"""The stages of variants, run in the test's process on models and folders that are made here."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.faults.errors import Fault, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.plan import spec_of
from handlers.child.progress import StageOutput
from tests.merge import helpers
from tests.validate.sabotage import VARIANTS, Lab


def make(stage: str, made_of: Path, work: Path, **options: Any) -> tuple[Path, StageOutput]:
    """The folder that a stage makes of the folder of the first stage that it needs, and what it says. `options`: of its format."""
    spec = spec_of(stage)
    context = helpers.context(work, made_of, None, method="full", **{spec.needs[0]: made_of})
    chosen = context.work
    if options:
        declared = next(declared for declared in catalog().formats if spec in (*declared.variants, *declared.stages))
        assert declared.options_class is not None
        chosen = chosen.with_options(declared.options_class(**options))
    run = pkgutil.resolve_name(spec.entry)
    return work / "staging", run(context.model_copy(update={"work": chosen, "stage": stage}), helpers.reporter())


def refused(words: str, make: Callable[..., object], *given: Any, **options: Any) -> Fault:
    """Why a stage can't make a variant (`form-not-possible`), in a sentence with these words."""
    with pytest.raises(Permanent, match=words) as raised:
        make(*given, **options)
    assert raised.value.fault.code == FaultCode.FORM_NOT_POSSIBLE
    return raised.value.fault


def made_in(lab: Lab, source: str, variants: Iterable[str], work: Path) -> dict[str, Path]:
    """Variant → its folder, of a source of the lab; what it is made of is made once. `work`: an empty folder."""
    folders: dict[str, Path] = {}

    def folder_of(stage: str) -> Path:
        if stage == "merge" or stage in VARIANTS:
            return lab.made(source, "pytorch" if stage == "merge" else stage)
        if stage not in folders:
            folders[stage] = make(stage, folder_of(spec_of(stage).needs[0]), work / stage)[0]
        return folders[stage]

    return {variant: folder_of(variant) for variant in variants}
