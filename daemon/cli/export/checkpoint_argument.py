"""What the path that `ckptd export` is given means: a checkpoint, or one sentence that names what to give instead.

A Lightning `.ckpt` file is taken as the watcher takes it, by the directory around it. Everything is found by the rules of the scans.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from daemon.checkpoints.inspection import Inspection, checkpoint_around, inspect
from daemon.checkpoints.names import is_checkpoint_name, run_of, step_of
from daemon.checkpoints.readable import closed_to_me
from daemon.contract.faults.errors import Permanent, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.sharded.forms import newest_module
from daemon.watching.scan import Scanner

_OPERATION = "export"
_LIGHTNING = ".ckpt"
_NAMED = 5
"""Checkpoints that one sentence names."""
_SCAN_SECONDS = 5.0
_FORMS = "give the directory that a trainer wrote, with an adapter or model weights in it"


def checkpoint_at(path: Path) -> Inspection:
    """The checkpoint that an absolute path names.

    Raises UsageError for what is none, naming the directory to give; Permanent for a layout that is not exported.
    """
    if (barred := closed_to_me(path)) is not None:
        raise UsageError(**barred.model_copy(update={"operation": _OPERATION}).model_dump())
    if not path.exists():
        cause = "it is a link that leads nowhere, or back to itself" if path.is_symlink() else "there is no such directory"
        raise UsageError(FaultCode.NO_SUCH_PATH, _OPERATION, cause, "check the path", path=path)
    if not path.is_dir():
        return _of_file(path)
    inspection = inspect(path)
    if inspection.layout is None:
        raise _none_itself(path)
    return _exportable(inspection)


def _exportable(inspection: Inspection) -> Inspection:
    if inspection.refusal is not None:
        raise Permanent(**inspection.refusal.model_dump())
    return inspection


def _of_file(path: Path) -> Inspection:
    if path.suffix == _LIGHTNING:
        inspection = inspect(path.parent)
        if inspection.layout == "lightning":
            newest = newest_module(path.parent)
            if newest in (None, path.name):
                return _exportable(inspection)
            remedy = f"to export that one: `{_command(path.with_name(str(newest)))}`; for this one, copy it into a separate directory first"
            cause = f"only the newest .ckpt file of a directory is exported, which is {newest}"
            raise UsageError(FaultCode.NOT_A_CHECKPOINT, _OPERATION, cause, remedy, path=path)
    around = checkpoint_around(path)
    if around is None:
        raise UsageError(FaultCode.NOT_A_DIRECTORY, _OPERATION, "it is a file that does not belong to a checkpoint", _FORMS, path=path)
    raise _inside(path, "a file", around)


def _inside(path: Path, what: str, around: Path) -> UsageError:
    return UsageError(
        FaultCode.NOT_A_DIRECTORY, _OPERATION, f"it is {what} inside the checkpoint {around}",
        f"give that directory: `{_command(around)}`", path=path,
    )  # fmt: skip


def _none_itself(path: Path) -> UsageError:
    """The sentence for a directory that is no checkpoint: a part of one, or what lies around some."""
    runs: dict[Path, list[Path]] = {}
    for candidate in Scanner(most_seconds=_SCAN_SECONDS).find(path, on_error=lambda error: None):
        runs.setdefault(run_of(candidate.path), []).append(candidate.path)
    if not runs:
        around = None if is_checkpoint_name(path.name) else checkpoint_around(path)
        if around is not None:
            return _inside(path, "a folder", around)
        return UsageError(FaultCode.NOT_A_CHECKPOINT, _OPERATION, "it contains neither an adapter nor model weights", _FORMS, path=path)
    for checkpoints in runs.values():
        checkpoints.sort(key=_order)
    if len(runs) > 1:
        count = sum(map(len, runs.values()))
        latest = [f"`{_command(checkpoints[-1])}`" for _, checkpoints in sorted(runs.items())]
        return UsageError(
            FaultCode.NOT_A_CHECKPOINT, _OPERATION, f"it is not a checkpoint; it contains {count} checkpoints of {len(runs)} runs",
            f"give one of them; the latest of each run: {_listed(latest)} (`ckptd explain {shlex.quote(str(path))}` shows all)",
            path=path,
        )  # fmt: skip
    (inside,) = runs.values()
    names = [str(checkpoint.relative_to(path)) for checkpoint in reversed(inside)]
    return UsageError(
        FaultCode.NOT_A_CHECKPOINT, _OPERATION, f"it is not a checkpoint; it contains {_listed(names)}",
        f"give the one that you want; for the latest: `{_command(inside[-1])}`", path=path,
    )  # fmt: skip


def _command(checkpoint: Path) -> str:
    return f"ckptd export {shlex.quote(str(checkpoint))}"


def _order(checkpoint: Path) -> tuple[bool, int, str]:
    """The place in the order of training: what has no number was written at its end."""
    step = step_of(checkpoint)
    return step is None, step or 0, checkpoint.name


def _listed(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
