"""`ckptd init` and `ckptd install-service`: how ckptd comes onto a box. Thin; `daemon.cli.main` registers them."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.common import SYSTEM_CONFIG, own_config
from daemon.cli.markup import say, say_error, say_lines
from daemon.contract.errors import UsageError
from daemon.contract.fault_codes import FaultCode

if TYPE_CHECKING:
    from daemon.installing.discovery import Proposal

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing: take what was found, and the defaults.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command()(init)


def init(
    file: Annotated[
        Path | None,
        typer.Argument(
            readable=False, help="File to write. Default: /etc/ckptd/config.toml for root, ~/.config/ckptd/config.toml for others."
        ),
    ] = None,
    root: Annotated[list[Path] | None, typer.Option("--root", help="Directory below which trainings write. Repeatable.")] = None,
    base: Annotated[list[Path] | None, typer.Option("--base", help="Folder that holds base models. Repeatable.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where exports go.")] = None,
    variant: Annotated[list[str] | None, typer.Option("--variant", help="What to make, as `ckptd formats` names it. Repeatable.")] = None,
    notify: Annotated[list[str] | None, typer.Option("--notify", help="Apprise URL of one who is told. Repeatable.")] = None,
    yes: YesOption = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the configuration instead of writing it.")] = False,
) -> None:
    """Write a first configuration, with what was found on this box; asks on a terminal for what no option gives."""
    from daemon.installing import first_config

    target = (file or (SYSTEM_CONFIG if os.geteuid() == 0 else own_config())).absolute()
    if not dry_run:
        first_config.refuse_existing(target, force=force)
    found = None if root and base else _look()
    asks = not yes and sys.stdin.isatty() and sys.stderr.isatty()
    roots = _paths(root) if root else _roots(found, asks, yes)
    bases = _paths(base) if base else _bases(found, asks)
    folder = output.absolute() if output else _output(roots, target, asks)
    variants = variant or _variants(asks)
    chosen: dict[str, dict[str, Any]] = {
        "watch": {"roots": roots},
        "base": {"search": bases} | ({"map": dict(found.mapped)} if found and found.mapped else {}),
        "output": {"directory": folder},
        "export": {"variants": variants},
    }
    if urls := notify or (_words("Who is told of exports, as Apprise URLs (none: leave it empty)", []) if asks else []):
        chosen["notify"] = {"urls": urls}
    content = first_config.validated(first_config.text(chosen))
    if dry_run:
        say_lines(content.rstrip("\n"))
        return
    first_config.write(target, content, force=force, private=bool(urls))
    named = "" if target in (SYSTEM_CONFIG, own_config()) else f" --config {shlex.quote(str(target))}"
    say(f"{target} is written: {len(roots)} root{'s' if len(roots) != 1 else ''}, exports go to {folder}.")
    say(f"Next: `ckptd check{named}`, then `ckptd run{named}`, or as a service: `{_service_command(named)}`.")


def _service_command(named: str) -> str:
    return f"ckptd install-service{named}" if os.geteuid() == 0 else f"ckptd install-service --user{named}"


def _look() -> Proposal:
    from daemon.installing.discovery import look

    say_error("Looking for trainings and models on this box …")
    found = look()
    for one in found.roots:
        hours = (time.time() - one.newest) / 3600
        ago = f"{hours:.0f} hours" if hours < 48 else f"{hours / 24:.0f} days"
        say_error(f"  {one.path}: {one.runs} run{'s' if one.runs != 1 else ''}, the newest checkpoint {ago} old")
    for folder in found.searched:
        say_error(f"  {folder}: base models")
    for name, folder in found.mapped:
        say_error(f"  {name}: {folder}")
    for name in found.missing:
        say_error(f"  {name}: a base that checkpoints name, not found; give the folder that holds it by --base")
    return found


def _roots(found: Proposal | None, asks: bool, yes: bool) -> list[Path]:
    proposed = [one.path for one in found.roots] if found else []
    if asks:
        answer: list[Path] = []
        while not answer:
            answer = _paths(_words("Directories below which trainings write", proposed))
        return answer
    if yes and proposed:
        return proposed
    if yes:
        raise UsageError(
            FaultCode.NO_CONFIGURATION, "make a configuration", "no checkpoint was found on this box, so there is nothing to watch yet",
            "name the directory below which trainings write, by --root; it may come later",
        )  # fmt: skip
    raise UsageError(
        FaultCode.NO_TERMINAL, "ask which directories to watch", "there is no terminal",
        "name them by --root" + (f", or give --yes to take what was found: {', '.join(map(str, proposed))}" if proposed else ""),
    )  # fmt: skip


def _bases(found: Proposal | None, asks: bool) -> list[Path]:
    proposed = list(found.searched) if found else []
    return _paths(_words("Folders that hold base models", proposed)) if asks else proposed


def _output(roots: list[Path], target: Path, asks: bool) -> Path:
    from daemon.installing.places import output_beside

    proposed = output_beside(roots, system=target == SYSTEM_CONFIG)
    while asks:
        if (answer := _paths(_words("Where exports go", [proposed]))) and len(answer) == 1:
            return answer[0]
        say_error("Give one folder, with quotes around it if it has spaces.")
    return proposed


def _variants(asks: bool) -> list[str]:
    from daemon.contract.jobs.options import ExportOptions

    default = list(ExportOptions().variants)
    return _words("What to make, as `ckptd formats` names it", default) if asks else default


def _words(question: str, proposed: list[Any]) -> list[str]:
    """An answer of several words, quoted as in a shell."""
    default = shlex.join(map(str, proposed))
    while True:
        answer = typer.prompt(question, default=default, err=True)
        try:
            return shlex.split(answer)
        except ValueError as error:
            say_error(f"That can't be divided into words: {error}.")


def _paths(given: Any) -> list[Path]:
    return [Path(one).expanduser().absolute() for one in given if str(one)]
