"""The verb `convert`: a folder with pickled weights as one with safetensors, or a full model in other formats. Thin.

The work is done by a child, `python -m handlers.convert`, in a folder beside the new one, which gets its name when all of it is there.
Exit codes: 0 done, 1 it can't be converted, 2 usage; with --to those of `ckptd export`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.common import ConfigOption, JsonOption, for_somebody_who_waits, load_settings, print_json
from daemon.cli.configuration import make_only
from daemon.cli.exit_codes import exit_of
from daemon.cli.parser.groups import place
from daemon.contract.faults.errors import Permanent, Retryable, UsageError, from_oserror
from daemon.contract.faults.fault_codes import FaultCode

if TYPE_CHECKING:
    from daemon.config.settings import Settings

OPERATION = "convert the folder"
_ROOM = 16 << 20
"""Bytes that must be free beside what is written."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("convert", **place("convert", "ckptd convert old-model new-model"))(convert)


def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", readable=False, help="Folder with .bin, .pt, .pth or .ckpt weights; with --to a whole model.")
    ],
    target: Annotated[Path, typer.Argument(metavar="DST", readable=False, help="New folder.")],
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="VARIANT", help="Export the model as this variant instead. Repeatable."),
    ] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Convert pickled weights, or export any model.

    A folder's pickled weights become safetensors, and every tensor is compared. With --to, a model that no training wrote is exported.

    Nothing in the files is run. Everything else in the folder is copied, except for the state of a training.
    """
    make_only(to or ())
    settings = load_settings(config, own_state=True)
    if to:
        _export(source, target, settings, json_=json_)
    from daemon.cli.views.conversion import print_conversion
    from daemon.cli.views.live_bar import LiveBar
    from daemon.contract.jobs.processes.conversion import Answer

    source, target = _checked(source, target)
    view = LiveBar(quiet=json_)
    with _staging(target) as staging:
        try:
            answer = Answer.model_validate_json(_run(source, staging, view.show))
        finally:
            view.close()
        if answer.fault is not None:
            raise (Retryable if answer.transient else Permanent)(**answer.fault.model_dump())
        assert answer.conversion is not None
        _publish(staging, target)
    conversion = answer.conversion.model_copy(update={"source": str(source), "target": str(target)})
    if json_:
        print_json(conversion.model_dump(mode="json"))
    else:
        print_conversion(conversion)


def _export(source: Path, target: Path, settings: Settings, *, json_: bool) -> None:
    """Export a whole model, as `ckptd export` does."""
    from daemon.cli.export import export_now

    try:
        answer = export_now(for_somebody_who_waits(settings), source, output=target, base=None, force=False, quiet=json_)
    except UsageError as error:
        remedy = error.fault.remedy.replace("another folder with --output", "another DST")  # this verb has no such option
        raise UsageError(**error.fault.model_copy(update={"remedy": remedy}).model_dump()) from None
    if json_:
        print_json(answer)
    raise typer.Exit(exit_of(answer.state))


def _checked(source: Path, target: Path) -> tuple[Path, Path]:
    """Return both as absolute paths. Raises UsageError where they can't be what they are meant for."""
    source, target = Path(os.path.abspath(source)), Path(os.path.abspath(target))
    if not source.is_dir():
        cause = "it is a file" if source.is_file() else "there is no such directory"
        raise UsageError(FaultCode.NO_SUCH_PATH, OPERATION, cause, "give the folder with the weights", path=source)
    real, place = Path(os.path.realpath(source)), Path(os.path.realpath(target))
    if place == real or real in place.parents or place in real.parents:
        raise UsageError(
            FaultCode.BAD_OPTION, OPERATION, f"it is not beside {source}, but the same, inside it or around it", "give another new folder",
            path=target,
        )  # fmt: skip
    if target.is_symlink() or (target.exists() and not (target.is_dir() and not any(target.iterdir()))):
        raise UsageError(FaultCode.BAD_OPTION, OPERATION, "it exists already", "give a new folder, or remove this one", path=target)
    return source, target


@contextlib.contextmanager
def _staging(target: Path) -> Iterator[Path]:
    """A folder beside the new one, for this process alone; gone at the end unless it was renamed. Leftovers of a killed one are removed."""
    from daemon.contract.disk.files import remove_tree

    staging = target.with_name(f".{target.name}.ckptd-part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = open(staging.with_name(f"{staging.name}.lock"), "ab")  # noqa: SIM115
    except OSError as error:
        raise from_oserror(error, OPERATION, str(target.parent)) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            cause = "another `ckptd convert` writes it now"
            raise UsageError(FaultCode.ALREADY_RUNNING, OPERATION, cause, "wait until that one has ended", path=target) from None
        try:
            remove_tree(staging)
            staging.mkdir()
            yield staging
        except OSError as error:
            raise from_oserror(error, OPERATION, str(target)) from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.unlink(lock.name)


def _run(source: Path, staging: Path, show: Callable[[float, str], None]) -> str:
    """Let the child fill the folder; its answer as JSON."""
    from daemon.system.processes.commands import run_to_end
    from daemon.system.processes.environment import FIXED, for_children

    size = sum(Path(folder, name).stat().st_size for folder, _, names in os.walk(source) for name in names if Path(folder, name).exists())
    free = shutil.disk_usage(staging).free
    if free < size + _ROOM:
        from daemon.contract import units

        cause = f"it needs up to {units.size(size + _ROOM)}, and {units.size(free)} are free there"
        raise Retryable(FaultCode.DISK_NOW, OPERATION, cause, "free space there, or give a folder on another disk", path=staging.parent)

    def heard(line: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = json.loads(line)
            show(float(said["share"]), str(said["doing"]))

    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch, "answer.json")
        command = [sys.executable, "-P", "-m", "handlers.convert", str(source), str(staging), "--answer", str(answer)]
        code = run_to_end(command, heard, environment={**for_children(os.environ), **FIXED, "HF_HUB_OFFLINE": "1"})
        if not answer.is_file():
            cause = (
                f"the process that converts it was ended by {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"
            )
            raise Retryable(FaultCode.KILLED, OPERATION, cause, "try again; if memory is short, on a machine with more", path=source)
        return answer.read_text(encoding="utf-8")


def _publish(staging: Path, target: Path) -> None:
    """Give the folder its name, durably. UsageError where it was taken meanwhile."""
    from daemon.contract.disk.files import fsync_directory

    for folder, _, _ in os.walk(staging):
        fsync_directory(Path(folder))
    try:
        os.rename(staging, target)
    except OSError:
        raise UsageError(
            FaultCode.BAD_OPTION, OPERATION, "it exists already", "give a new folder, or remove this one", path=target
        ) from None
    fsync_directory(target.parent)
