"""What the options of `ckptd export` change in the settings: another output, another base, other adapters to add."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from daemon.checkpoints.inspection import Inspection
from daemon.checkpoints.models.base_models import find_base, is_model
from daemon.checkpoints.pinning.additions import FULL
from daemon.config.loading import lies_in
from daemon.config.places.paths import refuse_file
from daemon.config.settings import LARGEST_FACTOR, AddedAdapter, BaseModelSettings, OutputSettings, Settings
from daemon.contract.disk.answers import real_path
from daemon.contract.disk.export_layout import MANIFEST
from daemon.contract.faults.errors import Permanent, UsageError
from daemon.contract.faults.fault_codes import FaultCode


def over(settings: Settings, inspection: Inspection, *, output: Path | None, base: Path | None, add: Sequence[str]) -> Settings:
    """The command line over the configuration; output never goes into the checkpoint. Raises UsageError and Permanent."""
    checkpoint = inspection.path
    if output is not None:
        settings = settings.model_copy(
            update={"output": OutputSettings(**{**settings.output.model_dump(), "directory": Path(os.path.abspath(output))})}
        )
    folder = settings.output.directory
    if output is not None:
        refuse_file(folder, "use --output", "give a directory; it does not have to exist yet")
    if (inside := _why_not_in(folder, checkpoint, settings.watch.roots if output is not None else ())) is not None:
        raise UsageError(
            FaultCode.OUTPUT_IN_CHECKPOINT,
            "export",
            f"the output would be inside {inside}",
            "give another folder with --output",
            path=folder,
        )
    if base is not None:
        if not is_model(base):
            raise UsageError(
                FaultCode.BASE_NOT_FOUND,
                "use --base",
                "it has no config.json with weights",
                "give the folder of the base model",
                path=base,
            )
        name = inspection.base_name or ""
        mapped = {**settings.base.map, name: base.absolute()}
        settings = settings.model_copy(update={"base": BaseModelSettings(search=settings.base.search, map=mapped)})
    if add:
        if inspection.method == FULL:
            raise Permanent(
                FaultCode.ADAPTERS_NOT_ADDITIVE, "use --add",
                "the checkpoint is a whole model without an adapter, and --add is for adapters over one base",
                "leave --add out; to merge an adapter into this model, train the adapter with this model as its base, and export it",
                path=checkpoint,
            )  # fmt: skip
        settings = settings.model_copy(update={"merge": settings.merge.model_copy(update={"add": tuple(map(_added, add))})})
    return settings


def base_here(settings: Settings, inspection: Inspection) -> Path | None:
    """The base that a relative path in the checkpoint means below the current directory, as its trainer took it; None where the base is
    found by the configuration, or where no model is there."""
    name = inspection.base_name or ""
    here = Path(os.path.abspath(name))
    if not name or os.path.isabs(name) or inspection.method == FULL or not is_model(here):
        return None
    try:
        find_base(name, inspection.base_revision, settings.base.search, settings.base.map)
    except (Permanent, OSError):
        return here
    return None


def _why_not_in(folder: Path, checkpoint: Path, roots: Sequence[Path]) -> str | None:
    """What an output may not be inside of, and why; None where it may lie there."""
    if (root := next((root for root in roots if lies_in(folder, root, real_path(root))), None)) is not None:
        return f"the watched root {root}, where only trainers may write"
    around = (folder, *folder.parents)
    if checkpoint in around:
        return "the checkpoint, where only the trainer may write"
    export = next((place for place in around if os.path.isfile(place / MANIFEST)), None)
    return None if export is None else f"the export {export}, and go when that is replaced"


def _added(text: str) -> AddedAdapter:
    """An adapter of --add: PATH, or PATH=WEIGHT where PATH=WEIGHT is no folder. Raises UsageError for a weight that is none."""
    path, equals, weight = text.rpartition("=")
    if not equals or Path(text).is_dir():
        return AddedAdapter(path=Path(text).absolute())
    try:
        return AddedAdapter.model_validate({"path": Path(path).absolute(), "weight": weight})
    except ValidationError:
        raise UsageError(
            FaultCode.BAD_OPTION,
            "use --add",
            f"its weight {weight!r} is not a number, or is 0, or is beyond {LARGEST_FACTOR:g}, so that nothing of the base would remain",
            "write PATH=WEIGHT, for example style=0.5",
            path=path,
        ) from None
