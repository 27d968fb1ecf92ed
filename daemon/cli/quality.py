"""The verbs that show how good exports are beside each other: `compare`, `quality`. Thin; `daemon.cli.main` registers them."""

from __future__ import annotations

from typing import Annotated

import typer

from daemon.cli.common import ConfigOption, JsonOption, daemon_state, known_settings, print_json
from daemon.cli.parser.groups import place


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command("compare", **place("compare", "ckptd compare my-run/400 my-run/500"))(compare)
    app.command("quality", **place("quality", "ckptd quality my-run"))(quality)


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="An export: its folder, the id of its job or a part of it, or RUN/STEP.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The other export, in the same form.")],
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Compare two exports: quality, size, speed, answers."""
    from daemon.operating.monitoring.comparison import compare as side_by_side

    value = side_by_side(daemon_state(config, own_state=True), a, b)
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.comparison import print_comparison

        print_comparison(value)


def quality(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name of a run, or the folder with its exports. Default: the only run.")
    ] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Show a run's exports by step, and which to deploy."""
    from daemon.operating.monitoring.run_quality import run_quality

    settings = known_settings(config)
    value = run_quality(settings.state_directory, settings.output.directory, run, settings.select.best_variant, settings.select.best_task)
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.run_quality import print_run_quality

        print_run_quality(value)
