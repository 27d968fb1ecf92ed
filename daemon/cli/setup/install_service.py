"""`ckptd install-service`: creates, updates and takes back the service. Thin."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.common import ConfigOption, configuration_of, load_settings
from daemon.cli.views.markup import say, say_error, say_lines
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import translated, translated_text

if TYPE_CHECKING:
    from daemon.installing.actions import Action


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
