"""The verbs that look at this machine: `check`, `formats`. Thin; `daemon.cli.main` registers them."""

from __future__ import annotations

from typing import Annotated

import typer

from daemon.cli.common import ConfigOption, JsonOption, configuration_of, load_settings, print_json
from daemon.cli.exit_codes import EXIT_USAGE
from daemon.cli.parser.groups import place
from daemon.contract.faults.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command("check", **place("check", "ckptd check --all"))(check)
    app.command("formats", **place("formats", "ckptd formats --all"))(formats)


def check(
    config: ConfigOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all facts: machine, toolchains, packages.")] = False,
    json_: JsonOption = False,
) -> None:
    """Check the configuration and this machine.

    Shows problems, notes and the few facts that matter; --all shows all facts. Exit code 2: there is a problem.
    """
    from daemon.operating.diagnosis.doctor import Diagnosis, examine

    try:
        value = examine(load_settings(config, own_state=True), configuration_of(config))
    except UsageError as error:
        if not json_:
            raise
        value = Diagnosis({}, (error.fault.sentence(),), ())
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.machine import print_check

        print_check(value, everything=everything)
    if value.problems:
        raise typer.Exit(EXIT_USAGE)


def formats(
    config: ConfigOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every variant, with targets, toolchains and processor.")] = False,
    json_: JsonOption = False,
) -> None:
    """List the variants that this machine can make.

    Those that it can make and those that are configured, with what is missing. --all: every variant, targets, toolchains, this processor.
    """
    from daemon.operating.diagnosis.doctor import formats_here

    settings = load_settings(config, own_state=True)
    value = formats_here(settings.state_directory)
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.machine import print_formats

        print_formats(value, settings.variants, everything=everything)
