"""`ckptd toolchain list | install | remove | check | doctor`. Thin; `daemon.cli` registers them.

Exit codes: 0 done, 1 it can't be made or does not work, 2 usage, 75 temporary (no network, no disk, in use).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.common import ConfigOption, JsonOption, load_settings, print_json
from daemon.cli.parser.groups import place
from daemon.cli.parser.parsing import Group
from daemon.cli.views.markup import say, say_error
from daemon.contract.language.catalog import translated, translated_text
from daemon.contract.language.lists import labelled

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.toolchains.registry import Installed, Toolchains

NameArgument = Annotated[str, typer.Argument(help="Name of the toolchain; `ckptd toolchain list` shows the names.")]
NamesArgument = Annotated[list[str], typer.Argument(help="Names of toolchains; `ckptd toolchain list` shows them.")]
_app = typer.Typer(name="toolchain", help="Install what some exporters need.", no_args_is_help=True, cls=Group, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.add_typer(_app, **place("toolchain", "ckptd toolchain install openvino"))


def _chains(settings: Settings) -> Toolchains:
    from daemon.toolchains.registry import Toolchains

    return Toolchains(settings.state_directory)


@_app.command("list", epilog="Example: ckptd toolchain list")
def list_(config: ConfigOption = None, json_: JsonOption = False) -> None:
    """List the toolchains, and show which are installed."""
    from daemon.contract import units
    from daemon.toolchains.overview import describe

    value = describe(_chains(load_settings(config)))
    if json_:
        print_json({"toolchains": value})
        return
    for name, row in value.items():
        size = units.size(sum(folder.size for folder in row.folders))
        there = translated(", of which {size} are there already").format(size=units.size(row.downloaded)) if row.downloaded else ""
        cure = translated("{state}; `{command}` installs it: {costs}")
        missing = (
            cure.format(state=translated_text(row.state), command=row.command, costs=translated_text(row.costs)) + there
            if row.command
            else translated_text(row.state)
        )
        hint = translated("installed, {size}").format(size=size) if row.installed else missing
        say(labelled(name, hint))
        say(f"  {translated(row.about)}")


@_app.command(epilog="Example: ckptd toolchain install openvino optimum")
def install(
    names: NamesArgument,
    config: ConfigOption = None,
    again: Annotated[bool, typer.Option("--again", help="Install it again even if it is already installed.")] = False,
    json_: JsonOption = False,
) -> None:
    """Install toolchains with their locked packages, and test them. The first one that can't be installed ends it."""
    from daemon.toolchains.install import install as make

    settings = load_settings(config)
    chains, started = _chains(settings), time.monotonic()

    def report(line: str) -> None:
        say_error(f"{time.monotonic() - started:6.1f} s  {translated_text(line)}")

    for name in names:
        chains.definition(name)  # a wrong name is told before anything is fetched
    made = []
    for name in dict.fromkeys(names):
        made.append(make(chains, name, report, reserve=int(settings.limits.disk_reserve), again=again))
        if not json_:
            _show(made[-1], translated("{name} is installed: {size} in {folder}, Python {python}"), as_json=False)
    if json_:
        print_json({"toolchains": [_row(installed) for installed in made]})


@_app.command(epilog="Example: ckptd toolchain remove optimum")
def remove(name: NameArgument, config: ConfigOption = None, json_: JsonOption = False) -> None:
    """Remove a toolchain that no export is using."""
    from daemon.contract import units
    from daemon.toolchains.install import remove as take_away

    freed = take_away(_chains(load_settings(config)), name)
    print_json({"name": name, "freed": freed}) if json_ else say(
        translated("{name} is removed; {size} were freed.").format(name=name, size=units.size(freed))
    )


@_app.command(epilog="Example: ckptd toolchain check optimum")
def check(name: NameArgument, config: ConfigOption = None, json_: JsonOption = False) -> None:
    """Test an installed toolchain. Exit code 1: it no longer works; 2: it is not installed."""
    from daemon.toolchains.install import check as examine

    said = translated("{name} works: {size} in {folder}, Python {python}")
    _show(examine(_chains(load_settings(config)), name), said, as_json=json_)


@_app.command(epilog="Example: ckptd toolchain doctor")
def doctor(config: ConfigOption = None, json_: JsonOption = False) -> None:
    """Test all installed toolchains. Exit code 1: one of them no longer works."""
    from daemon.toolchains.install import examine_all

    examinations = examine_all(_chains(load_settings(config)))
    if json_:
        print_json({"toolchains": examinations})
    else:
        for examination in examinations:
            works = translated("{name} works").format(name=examination.name)
            say(works if examination.works else f"{examination.name}: {translated_text(examination.error or '')}")
        if not examinations:
            say(translated("No toolchain is installed; `ckptd toolchain list` shows which there are."))
    if not all(examination.works for examination in examinations):
        raise typer.Exit(1)


def _row(installed: Installed) -> dict[str, Any]:
    return {"folder": str(installed.folder), **installed.manifest.model_dump()}


def _show(installed: Installed, said: str, *, as_json: bool) -> None:
    from daemon.contract import units

    if as_json:
        print_json(_row(installed))
    else:
        manifest = installed.manifest
        say(said.format(name=manifest.name, size=units.size(manifest.size), folder=installed.folder, python=manifest.python))
