"""`ckptd init` and `ckptd install-service`: how ckptd comes onto a box. Thin; `daemon.cli.main` registers them."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.common import SYSTEM_CONFIG, ConfigOption, configuration_of, load_settings, own_config
from daemon.cli.parser.groups import place
from daemon.cli.views.markup import say, say_error, say_lines
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import language, to_translate, translated, translated_plural, translated_text
from daemon.contract.language.lists import labelled

if TYPE_CHECKING:
    from daemon.installing.actions import Action
    from daemon.installing.discovery import Proposal

_OUTPUT = (
    "Folder for the exports. Default: /srv/exports for /etc/ckptd/config.toml, else the folder 'exports' beside the"
    " alphabetically first root, or in the home if this user can't write there."
)
_QUESTIONS = {
    "watch.roots": to_translate("Directories below which trainings write"),
    "base.search": to_translate("Folders that hold base models"),
    "output.directory": to_translate("Folder for the exports"),
    "export.variants": to_translate("Variants to make, as `ckptd formats` names them"),
    "notify.urls": to_translate("Where to send notifications of exports, as Apprise URLs"),
}
"""What is asked, in this order."""
_ANY_ROOT = Path("/nonexistent")
"""Stands for a root while options are looked at without one."""
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask: use what was found, and the defaults.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command(**place("init", "ckptd init --root ~/runs --base ~/models"))(init)
    app.command("install-service", **place("install-service", "sudo ckptd install-service --dry-run"))(install_service)


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
    proposal = None if root and base else _look()
    asks = not yes and sys.stdin.isatty() and sys.stderr.isatty()
    system = target == SYSTEM_CONFIG
    given: dict[str, Any] = {
        "watch.roots": _paths(root or ()), "base.search": _paths(base or ()), "output.directory": output and _paths([output])[0],
        "export.variants": list(variant or ()), **services,
    }  # fmt: skip
    chosen = _asked(given, proposal, system=system) if asks else _proposed(given, proposal, system=system, yes=yes)
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


def _look() -> Proposal:
    from daemon.contract import units
    from daemon.installing.discovery import look

    say_error(translated("Looking for trainings and models on this machine …"))
    proposal = look()
    for root in proposal.roots:
        ago = units.running(max(0.0, time.time() - root.newest))
        line = translated_plural(
            "{path}: {count} run, the newest checkpoint {ago} old", "{path}: {count} runs, the newest checkpoint {ago} old", root.runs
        )
        say_error("  " + line.format(path=root.path, count=root.runs, ago=ago))
    for folder in proposal.searched:
        say_error("  " + translated("{folder}: base models").format(folder=folder))
    for name, folder in proposal.mapped:
        say_error("  " + labelled(name, str(folder)))
    for name in proposal.missing:
        line = translated("{name}: a base that checkpoints name, but it was not found; give its folder with --base")
        say_error("  " + line.format(name=name))
    return proposal


def _proposed(given: dict[str, Any], proposal: Proposal | None, *, system: bool, yes: bool) -> dict[str, dict[str, Any]]:
    """What was given by options, and for the rest what is proposed. Raises UsageError where no root is known."""
    from daemon.installing.discovery import places

    roots = given["watch.roots"]
    proposed = [root.path for root in proposal.roots] if proposal else []
    if not roots and yes and not proposed:
        raise UsageError(
            FaultCode.CONFIG_MISSING, "make a configuration",
            f"no checkpoint was found below {', '.join(map(str, places()))}, so there is nothing to watch yet",
            "give the directory below which trainings write with --root; it does not have to exist yet",
        )  # fmt: skip
    if not roots and not yes:
        raise UsageError(
            FaultCode.NO_TERMINAL, "ask which directories to watch", "there is no terminal",
            "give them with --root" + (f", or use --yes to accept what was found: {', '.join(map(str, proposed))}" if proposed else ""),
        )  # fmt: skip
    values = {**given, "watch.roots": roots or proposed}
    for key in ("base.search", "output.directory", "export.variants"):
        values[key] = given[key] or _default(key, values, proposal, system=system)
    return _sections(values, proposal)


def _default(key: str, values: dict[str, Any], proposal: Proposal | None, *, system: bool) -> Any:
    """What is proposed for a key when the ones before it are known."""
    from daemon.contract.jobs.options import ExportOptions
    from daemon.installing.places import output_beside

    if key == "watch.roots":
        return [root.path for root in proposal.roots] if proposal else []
    if key == "base.search":
        return list(proposal.searched) if proposal else []
    if key == "output.directory":
        return output_beside(values["watch.roots"], system=system)
    return list(ExportOptions().variants) if key == "export.variants" else []


def _sections(values: dict[str, Any], proposal: Proposal | None) -> dict[str, dict[str, Any]]:
    """The values by section, without those that are empty or proposed for everybody; with the bases that lie in a cache."""
    from daemon.contract.jobs.options import ExportOptions

    chosen: dict[str, dict[str, Any]] = {"base": {"map": dict(proposal.mapped)} if proposal and proposal.mapped else {}}
    for name, value in values.items():
        section, _, key = name.partition(".")
        if value and (name != "export.variants" or tuple(value) != ExportOptions().variants):
            chosen.setdefault(section, {})[key] = value
    return chosen


def _asked(given: dict[str, Any], proposal: Proposal | None, *, system: bool) -> dict[str, dict[str, Any]]:
    """What was given by options, and for the rest what is answered; an answer that can't be used is asked for again."""
    from daemon.installing import first_config

    def refuse_unusable(values: dict[str, Any]) -> None:
        """Raise UsageError for values that can't be used. What is not known yet counts as proposed."""
        rest = {key: values.get(key) or given[key] or _default(key, values, proposal, system=system) for key in given}
        chosen = _sections({**rest, **values}, proposal)
        first_config.refuse_unusable(first_config.text(chosen), chosen)

    refuse_unusable({"watch.roots": given["watch.roots"] or [_ANY_ROOT]})  # else every answer would be refused for an option's sake
    say_error(translated("Give several values with spaces between them, and put quotes around a value that has spaces."))
    values: dict[str, Any] = {"notify.urls_file": given["notify.urls_file"]}
    for key, question in _QUESTIONS.items():
        if given[key] or (key == "notify.urls" and given["notify.urls_file"]):
            values[key] = given[key]
            continue
        proposed = _default(key, values, proposal, system=system)
        while True:
            answer = _words(translated(question), proposed if isinstance(proposed, list) else [proposed])
            if key == "watch.roots" and not answer:
                say_error(translated("Give at least one directory; it does not have to exist yet."))
                continue
            if key == "output.directory" and len(answer) != 1:
                say_error(translated("Give one folder, with quotes around it if it has spaces."))
                continue
            value: Any = answer if key in ("export.variants", "notify.urls") else _paths(answer)
            value = value[0] if key == "output.directory" else value
            try:
                refuse_unusable({**values, key: value})
            except UsageError as error:
                say_error(translated_text(str(error)))
                continue
            values[key] = value
            break
    return _sections(values, proposal)


def _words(question: str, proposed: list[Any]) -> list[str]:
    """An answer of several words, quoted as in a shell; none for an empty one, or "none"."""
    default = shlex.join(map(str, proposed))
    while True:
        answer = typer.prompt(
            question if default else f"{question} [{translated('none')}]",
            default=default,
            show_default=bool(default),
            err=True,
            prompt_suffix=": " if language() == "en" else "：",
        )
        try:
            words = shlex.split(answer)
        except ValueError as error:
            say_error(translated("That can't be read as a list of words: {error}.").format(error=error))
            continue
        return [] if words in (["none"], [translated("none")]) else words


def _paths(given: Any) -> list[Path]:
    return [Path(path).expanduser().absolute() for path in given if str(path)]


def install_service(
    config: ConfigOption = None,
    user: Annotated[bool, typer.Option("--user", help="Create a service for your own user, without root.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print every command instead of running it.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Revert what this command did, and nothing else.")] = False,
    run_as: Annotated[
        str,
        typer.Option(
            "--run-as", metavar="USER", help="Run the service as this user, for example the user who trains. Default: a new user."
        ),
    ] = "",
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Group to which the service's user is added, so that it can read files. Repeatable.")
    ] = None,
    acls: Annotated[
        bool, typer.Option("--acls/--no-acls", help="Give the service's user read access by ACLs where it has none, or not.")
    ] = True,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="Memory limit for the daemon and its exports, for example 16G.")
    ] = "",
    slice_: Annotated[
        str,
        typer.Option(
            "--slice", metavar="NAME.slice", help="systemd slice to run in, for example that of the trainings. Default: a new slice."
        ),
    ] = "",
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start the service now, or only at the next boot.")] = True,
    force: Annotated[
        bool, typer.Option("--force", help="Replace unit files that this command did not write; it keeps a copy of the old ones.")
    ] = False,
    root: Annotated[Path, typer.Option("--root", hidden=True, help="Install into this tree, as `systemctl --root`.")] = Path("/"),
) -> None:
    """Create or update the systemd service.

    Its user, rights, directories, units and drop-ins, from the configuration.
    """
    from daemon.installing import actions, service

    box = service.Box(root.absolute())
    record = service.record_of(box, user=user)
    if undo:
        service.refuse_unfit(box, user=user, dry=dry_run)
        _take_back(record, service.after_undo(box, user=user), dry_run)
        return
    file = configuration_of(config)
    settings = load_settings(config, need_roots=file is not None, own_state=True)
    service.refuse_unfit(box, user=user, dry=dry_run)
    if file is None:
        raise UsageError(
            FaultCode.CONFIG_MISSING, "install the service", "there is no configuration for the service",
            "create one with `ckptd init`, or give one with --config",
        )  # fmt: skip
    _refuse_odd(memory, slice_)
    wishes = service.Wishes(run_as, tuple(group or ()), acls, memory, slice_, start, force)
    path = Path("/", file.absolute().relative_to(box.root)) if file.absolute().is_relative_to(box.root) else file.absolute()
    if user:
        plan = service.for_user(box, path, wishes)
    else:
        from daemon.cli.manual import page

        plan = service.for_system(box, settings, path, wishes, page())
    if dry_run:
        say_lines(
            "\n".join([*(f"# {note}" for note in plan.notes), *(action.as_shell() for action in plan.actions)])
            or f"# {translated('nothing to do')}"
        )
        return
    for note in plan.notes:
        say_error(translated("Note: {note}.").format(note=translated_text(note)))
    actions.carry_out(plan.actions, record, _say_recorded)
    done, nothing = translated("The service is installed."), translated("Nothing to do: the service is already installed correctly.")
    say(done if plan.actions else nothing)
    own = ("--user",) if user else ()
    log, back = shlex.join(["journalctl", *own, "-u", "ckptd"]), shlex.join(["ckptd", "install-service", *own, "--undo"])
    say(translated("See `ckptd status` and `{log}`; `{back}` undoes this.").format(log=log, back=back))


def _say_recorded(line: str) -> None:
    say(translated_text(line))


def _refuse_odd(memory: str, slice_: str) -> None:
    for given, pattern, option, example in (
        (memory, r"[1-9][0-9]*(\.[0-9]+)?[KMGT]?|[1-9][0-9]?%", "--memory", "16G"),
        (slice_, r"[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*\.slice", "--slice", "training.slice"),
    ):
        if given and not re.fullmatch(pattern, given):
            raise UsageError(FaultCode.SETUP_FAILED, "install the service", f"{option} can't be {given!r}", f"give for example {example}")


def _take_back(record: Path, after: list[Action], dry_run: bool) -> None:
    from daemon.installing import actions

    known = actions.read_record(record)
    if not known.undo:
        say(translated("Nothing to undo: this command has installed nothing here."))
    elif dry_run:
        lines = [shlex.join(argv) if argv else f"# {why}" for argv, why in actions.taking_back(known)]
        say_lines("\n".join([*lines, *(action.as_shell() for action in after), shlex.join(("rm", str(record)))]))
    elif actions.undo(record, after, _say_recorded):
        say(translated("The installation is undone. Configuration, state and exports are kept."))
    else:
        raise UsageError(
            FaultCode.SETUP_FAILED,
            "undo the whole installation",
            "a command failed, see above",
            "correct that and give --undo again",
            path=record,
        )
