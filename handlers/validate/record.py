"""What one stage of the validation hands to the next, and to people: `reference.json`, `check.json`, and logits beside them.

The files are a stage's output like any other: sealed with digests, verified by the daemon before they are used again. Paths inside are
relative, since outputs move to where they are kept.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from daemon.contract import cpu
from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.figures import Processor
from daemon.contract.jobs.messages import ArtifactCheck, StageContext, Verdict
from daemon.contract.jobs.plan import check_of
from daemon.contract.values import Json
from handlers.child.progress import Reporter, StageOutput
from handlers.validate.checks.examination import Examination, Merged
from handlers.validate.checks.live.reference import Reference
from handlers.validate.findings import MERGE

REFERENCE = "reference.json"
CHECK = "check.json"
LOGITS = "logits"
KNOWN = "files"
"""Folders of the reference's outputs, and of what the checkpoint's files say."""
_MERGED = "merged.json"
_STORED = TypeAdapter(Reference)
OPERATION = "read what an earlier stage of the validation found"


def logits_folder(folder: Path) -> Path:
    """Give where a stage's logits lie in its folder; made where it is missing."""
    made = folder / LOGITS
    made.mkdir(exist_ok=True)
    return made


def files_folder(folder: Path) -> Path:
    """Give where a stage keeps what the checkpoint's files say; made where it is missing."""
    made = folder / KNOWN
    made.mkdir(exist_ok=True)
    return made


def processor() -> Processor:
    """Give the processor that this stage runs on, for its figures."""
    return Processor.model_validate(cpu.here().facts)


def write_reference(folder: Path, reference: Reference) -> None:
    """Write all that checks compare with; its logits must lie in the folder already, and its `files`, which are found there again."""
    _write(folder / REFERENCE, written(reference))


def written(reference: Reference) -> Json:
    """Give a reference as JSON, its files by their names alone."""
    stored: Json = finite(_STORED.dump_python(reference, mode="json", exclude={"files"}, exclude_unset=True))
    return stored


def read_reference(folder: Path) -> Reference:
    """Give what `write_reference` wrote. Raises Permanent where it is none."""
    path = folder / REFERENCE
    try:
        reference = _STORED.validate_python(json.loads(path.read_bytes()), context=folder / LOGITS)
    except (OSError, ValueError) as error:
        remedy = "run `ckptd queue retry` with the export's id; report it if it happens again"
        raise Permanent(FaultCode.BAD_RECORD, OPERATION, f"{type(error).__name__}: {error}", remedy, path=path) from None
    reference.files = folder / KNOWN if (folder / KNOWN).is_dir() else None
    return reference


def mark_comparable(folder: Path, examination: Examination) -> None:
    """Say in this folder that the merged model's logits are whole and artifacts can be compared with them."""
    unlike = next((finding.reason for finding in examination.findings if finding.aspect == MERGE), None)
    tokens = [prompt.tokens or [] for prompt in examination.prompts]
    _write(folder / _MERGED, {"logits": LOGITS, "tokens": tokens, "unlike": unlike})


def read_merged(folder: str | None) -> Merged | None:
    """Give what the stage of the merged model found, by its output; None where it could not be run."""
    path = Path(folder or "", _MERGED)
    if folder is None or not path.is_file():
        return None
    said = json.loads(path.read_bytes())
    return Merged(path.parent / LOGITS, said.get("tokens", []), said.get("unlike"))


def add_check(folder: Path, output: StageOutput, check: ArtifactCheck, examination: Examination | None, reporter: Reporter) -> None:
    """Put a check into the stage's result and, with a summary of each prompt, into its folder; say what did not pass."""
    check = check.model_copy(update={"figures": finite(check.figures)})
    output.checks.append(check)
    prompts = {"prompts": [prompt.written() for prompt in examination.prompts]} if examination else {}
    _write(folder / CHECK, check.model_dump(mode="json") | {"run": examination is not None} | prompts)
    output.warnings += [f"{check.variant}: {note}." for note in check.figures.get("notes", ())]
    if check.verdict is not Verdict.PASSED:
        reporter.warn(f"{check.variant}: {check.verdict.value}: {'; '.join(check.reasons)}")
    elif open_limits := [row["limit"] for row in check.figures.get("decisions", ()) if row["outcome"] == "undecided" and row["texts"]]:
        reporter.warn(f"{check.variant}: {check.verdict.value}, but undecided: {', '.join(open_limits)}")


def was_run(context: StageContext, variant: str) -> bool:
    """Tell whether the check of a variant could run it."""
    stage = check_of(variant)
    if stage is None or stage.name not in context.inputs:
        return False
    path = Path(context.inputs[stage.name], CHECK)
    return path.is_file() and bool(json.loads(path.read_bytes())["run"])


def _write(path: Path, value: Json) -> None:
    write_atomic(path, json.dumps(finite(value), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """Give the JSON value with None for numbers that JSON doesn't have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value
