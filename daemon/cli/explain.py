"""The verb `explain`: what a checkpoint holds and lacks, and what became of it. Thin; `daemon.cli.main` registers it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from daemon.cli.common import ConfigOption, JsonOption, known_settings, print_json, refuse_undecodable
from daemon.cli.exit_codes import EXIT_FAILED
from daemon.cli.parser.groups import place
from daemon.contract.disk.answers import ask
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode

EXPLAIN_SECONDS = 60.0
"""What a look at a checkpoint may take; a file system that does not answer holds it for ever."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("explain", **place("explain", "ckptd explain runs/my-run/checkpoint-500"))(explain)


def _not_explained(path: Path) -> UsageError:
    """What is said of a directory that could not be looked into in time: whether its file system answers at all."""
    seconds = f"{EXPLAIN_SECONDS:.0f} s"
    try:
        ask(f"{path} itself", lambda: os.stat(path))
    except TimeoutError:
        return UsageError(
            FaultCode.ROOT_SILENT, "look at it", f"its file system has not answered for {seconds}",
            "look at the mount and its server", path=path,
        )  # fmt: skip
    except OSError:
        pass  # it is gone meanwhile, and its file system has answered
    return UsageError(
        FaultCode.TIMEOUT, "look into it", f"to read its configurations, its training log and its files' headers took more than {seconds}",
        "try again when the machine has less to do; `ls -lS` shows whether a file in it is much larger than it should be", path=path,
    )  # fmt: skip


def explain(
    path: Annotated[Path, typer.Argument(readable=False, help="Directory of a checkpoint or of a run, or a file in a checkpoint.")],
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Show what a checkpoint holds, lacks, and became.

    Exit code 1: not complete.
    """
    from daemon.operating.monitoring.explain import ExportExplanation, export_around
    from daemon.operating.monitoring.explain import explain as look

    refuse_undecodable(path, "explain")
    settings = known_settings(config)
    try:
        value = ask(str(path), lambda: export_around(path) or look(settings, path), EXPLAIN_SECONDS)
    except TimeoutError:
        raise _not_explained(path) from None
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.explanation import print_explanation

        print_explanation(value)
    if not (isinstance(value, ExportExplanation) or value.complete):
        raise typer.Exit(EXIT_FAILED)
