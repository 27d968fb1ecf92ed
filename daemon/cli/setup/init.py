"""`ckptd init`: writes a first configuration. Thin; what it asks and proposes is in `values`, imported when it runs."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from daemon.cli.common import SYSTEM_CONFIG, own_config
from daemon.cli.views.markup import say, say_lines
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import translated, translated_plural, translated_text

_OUTPUT = (
    "Folder for the exports. Default: /srv/exports for /etc/ckptd/config.toml, else the folder 'exports' beside the"
    " alphabetically first root, or in the home if this user can't write there."
)
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: use what was found, and the defaults.")]


def init(
    file: Annotated[
        Path | None,
        typer.Argument(
            readable=False, help="File to write. Default: /etc/ckptd/config.toml for root, ~/.config/ckptd/config.toml for others."
        ),
    ] = None,
    root: Annotated[list[Path] | None, typer.Option("--root", help="Directory in which trainings write. Repeatable.")] = None,
    base: Annotated[list[Path] | None, typer.Option("--base", help="Folder that holds base models. Repeatable.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help=_OUTPUT)] = None,
    variant: Annotated[list[str] | None, typer.Option("--variant", help="Variant to make; `ckptd formats` lists them. Repeatable.")] = None,
    notify: Annotated[
        str,
        typer.Option(
            "--notify",
            metavar="FILE",
            help="File with the Apprise URLs of services that get notifications, one a line; - reads them from standard input. They hold"
            " keys, which a command line would show to others.",
        ),
    ] = "",
    yes: YesOption = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the configuration instead of writing it.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", readable=False, help="The same as FILE, as the other commands take it.")
    ] = None,
) -> None:
    """Write a first configuration.

    With what is found on this machine. On a terminal, ask for values that no option gives.
    """
    from daemon.cli.setup import values
    from daemon.config import receivers
    from daemon.config.settings import RetentionSettings
    from daemon.installing import first_config

    if file is not None and config is not None and file != config:
        cause, remedy = f"{file} and --config {config} are two files", "give the file to write once"
        raise UsageError(FaultCode.BAD_OPTION, "write the configuration", cause, remedy)
    target = (file or config or (SYSTEM_CONFIG if os.geteuid() == 0 else own_config())).absolute()
    secret = target.parent / receivers.CREDENTIAL
    if not dry_run:
        first_config.refuse_existing(target, force=force)
    services = first_config.services(notify)
    proposal = None if root and base else values.look()
    asks = not yes and sys.stdin.isatty() and sys.stderr.isatty()
    system = target == SYSTEM_CONFIG
    given: dict[str, Any] = {
        "watch.roots": values.paths(root or ()), "base.search": values.paths(base or ()),
        "output.directory": output and values.paths([output])[0],
        "export.variants": list(variant or ()), **services,
    }  # fmt: skip
    chosen = values.asked(given, proposal, system=system) if asks else values.proposed(given, proposal, system=system, yes=yes)
    roots, folder = chosen["watch"]["roots"], chosen["output"]["directory"]
    first_config.refuse_unusable(first_config.text(chosen), chosen)
    if urls := chosen.get("notify", {}).pop("urls", ()):
        chosen["notify"]["urls_file"] = secret
    content = first_config.text(chosen)
    if dry_run:
        say_lines(content.rstrip("\n"))
        return
    if urls:
        first_config.write(secret, "".join(f"{url}\n" for url in urls), force=force, private=True)
    first_config.write(target, content, force=force)
    named = () if target in (SYSTEM_CONFIG, own_config()) else ("--config", str(target))
    written = translated_plural(
        "{file} is written: {count} root, exports go to {folder}.", "{file} is written: {count} roots, exports go to {folder}.", len(roots)
    )
    say(written.format(file=target, count=len(roots), folder=folder))
    if urls:
        secrets = translated_plural(
            "{file} is written, for you alone: the URL of notifications.", "{file} is written, for you alone: the URLs of notifications.",
            len(urls),
        )  # fmt: skip
        say(secrets.format(file=secret))
    say(translated("Exports: ckptd {keeps}.").format(keeps=translated_text(RetentionSettings().said)))
    service = ("install-service",) if os.geteuid() == 0 else ("install-service", "--user")
    check, run, made = (shlex.join(["ckptd", *verb, *named]) for verb in (("check",), ("run",), service))
    say(translated("Next: `{check}`, then `{run}`, or as a service: `{service}`.").format(check=check, run=run, service=made))
