"""What `ckptd verify --deep` checks, an export's variants or what another program made, and by whose answers and limits."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.disk.export_layout import ANSWERS, ANSWERS_FILE, MANIFEST, manifest_of
from daemon.contract.faults.errors import Fault, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.options import ValidateOptions, Work

OPERATION = "check the artifacts again"
_WEIGHTS = ("weights", "graphs")


@dataclass(frozen=True)
class Subject:
    """What is checked by the answers of one export."""

    export: Path
    """The export that keeps the answers."""
    work: Work | None
    """Its effective configuration, with the limits; None where there is a problem."""
    folders: Mapping[str, Path]
    """Variant → folder of each artifact to check, in plan order."""
    beside: Mapping[str, Path] = field(default_factory=dict)
    """Variant → folder of each artifact of the export with which these may be compared; none where another program made them."""
    foreign: bool = False
    """Another program made it."""
    trusted: bool = False
    """Code in it may be run."""
    problem: Fault | None = None
    """Why nothing of it can be checked."""

    @property
    def answers(self) -> Path:
        """The file of the kept answers."""
        return self.export / ANSWERS / ANSWERS_FILE

    @property
    def run(self) -> str:
        """The run's name."""
        return str(manifest_of(self.export).get("run") or "")


def of_export(export: Path, inside: str, named: Sequence[str], *, alone: bool = True) -> Subject:
    """The variants of an export: those that are named, the one that a path leads into, else all.

    Raises UsageError; of several exports (`alone` is False) one that can't be checked is a subject with the reason.
    """
    export = Path(os.path.abspath(export))
    there = _variants(export)
    wanted = list(named) or ([inside.partition("/")[0]] if inside else [])
    if not alone:
        folders = {name: folder for name, folder in there.items() if not wanted or name in wanted}
        try:
            return Subject(export, _work(export), folders, there)
        except UsageError as error:
            return Subject(export, None, folders, problem=error.fault)
    if unknown := [name for name in wanted if name not in there]:
        cause, remedy = f"the export has no variant {unknown[0]!r}", f"name some of these: {', '.join(there) or 'it has none'}"
        raise UsageError(FaultCode.BAD_OPTION, OPERATION, cause, remedy, path=export)
    if not there:
        remedy = "look into its report.html, which says why, and export the checkpoint again"
        raise UsageError(FaultCode.NO_EXPORT, OPERATION, "the export has no variant", remedy, path=export)
    work = _work(export)
    return Subject(export, work, {name: folder for name, folder in there.items() if not wanted or name in wanted}, there)


def of_artifact(folder: Path, like: Path, named: Sequence[str]) -> Subject:
    """A folder that another program made, checked as a variant of the export `like`. Raises UsageError."""
    folder, like = Path(os.path.abspath(folder)), Path(os.path.abspath(like))
    if not folder.is_dir():
        code, cause = (FaultCode.NOT_A_DIRECTORY, "it is a file") if folder.exists() else (FaultCode.NO_SUCH_PATH, "there is no such path")
        raise UsageError(code, OPERATION, cause, "give the folder of the artifact", path=folder)
    if not os.path.lexists(like / MANIFEST):
        remedy = "give the folder of an export of the same checkpoint"
        raise UsageError(FaultCode.NO_EXPORT, OPERATION, f"there is no {MANIFEST} in it", remedy, path=like)
    if len(named) > 1:
        raise UsageError(FaultCode.BAD_OPTION, OPERATION, "an artifact is of one variant", "give --variant once")
    known = catalog().variants
    if named and named[0] not in known:
        raise UsageError(FaultCode.BAD_OPTION, OPERATION, f"there is no variant {named[0]!r}", "`ckptd formats` lists their names")
    work = _work(like)
    return Subject(like, work, {named[0] if named else _guessed(folder, _variants(like)): folder}, foreign=True)


def _guessed(folder: Path, there: Mapping[str, Path]) -> str:
    """The variant that a folder is of: by its own name, else by its files, where only one fits of those that the export has, or at all.

    Raises UsageError where that is not clear.
    """
    known, operation = catalog(), "tell of which variant it is"
    if folder.name in known.variants:
        return folder.name
    names = [entry.name for entry in os.scandir(folder) if entry.is_file()]
    fitting = [
        variant.name for form in known.formats for variant in form.variants
        if any(kind in _WEIGHTS and fnmatch.filter(names, pattern) for pattern, kind in form.files.items())
    ]  # fmt: skip
    candidates = [name for name in fitting if name in there] or fitting
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise UsageError(FaultCode.BAD_OPTION, operation, "its files are of no format that is known", "name it with --variant", path=folder)
    cause = f"it may be {', '.join(candidates[:-1])} or {candidates[-1]}"
    raise UsageError(FaultCode.BAD_OPTION, operation, cause, "name the one whose limits are to count with --variant", path=folder)


def _variants(export: Path) -> dict[str, Path]:
    """Variant → folder, in plan order, of those that the manifest names; those of formats that nobody has come last."""
    files = manifest_of(export).get("files")
    rows = [str(row.get("path", "")) for row in files if isinstance(row, dict)] if isinstance(files, list) else []
    names = {path.partition("/")[0] for path in rows if "/" in path} - {ANSWERS, "rejected"}
    order = [name for name in catalog().variants if name in names]
    return {name: export / name for name in [*order, *sorted(names - {*order})]}


def _work(export: Path) -> Work:
    """The configuration that an export was made with. Raises UsageError where it keeps no answers, or can't be read."""
    if not (export / ANSWERS / ANSWERS_FILE).is_file():
        cause = "it keeps no answers of the live model: it was made by an earlier ckptd, or with validate.keep_answers = false"
        raise UsageError(FaultCode.NO_ANSWERS, OPERATION, cause, "export the checkpoint again", path=export)
    try:
        work = Work.recovered(json.dumps(json.loads((export / "report.json").read_bytes())["configuration"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        cause = f"its report.json can't be read: {type(error).__name__}"
        remedy = "run `ckptd verify` on the export; if it is damaged, export the checkpoint again"
        raise UsageError(FaultCode.NO_EXPORT, OPERATION, cause, remedy, path=export) from None
    # Where more prompts are read for what the first ones leave open, none are here: that takes the live model.
    none = dict.fromkeys(ValidateOptions.model_fields.keys() & {"most_samples"}, 1)
    return work.model_copy(update={"validation": work.validation.model_copy(update=none)})
