"""`ckptd deliver`: carries an export to targets, says what lies there, takes it away. Thin; `daemon.cli.main` registers it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.common import ConfigOption, JsonOption, load_settings, print_json
from daemon.cli.exit_codes import EXIT_FAILED
from daemon.cli.parser.groups import place
from daemon.cli.views.markup import say, say_error
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.text import printable
from daemon.contract.language.catalog import translated, translated_text

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.journal.journal import Journal
    from daemon.operating.asked.by_hand import ByHand


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("deliver", **place("deliver", "ckptd deliver my-run/500 hub --dry-run"))(deliver)


def deliver(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="JOB [TARGET]...",
            help="The export: its id, the beginning or last part of it, RUN/STEP, or its folder; then targets. Default: all that are"
            " for its run.",
        ),
    ] = None,
    config: ConfigOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be carried, and look at each target.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Move the name that people follow there, whatever it stands for; remove what it stands for.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Deliver also what lies there already.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it lies there. Exit code 1 if it failed.")] = False,
    list_: Annotated[str, typer.Option("--list", metavar="TARGET", help="Instead, list what lies at this target.")] = "",
    run: Annotated[str, typer.Option("--run", help="With --list: only versions of this run.")] = "",
    remove: Annotated[
        str, typer.Option("--remove", metavar="TARGET", help="Instead, take away versions that lie at this target: their names follow.")
    ] = "",
    json_: JsonOption = False,
) -> None:
    """Deliver an export to where it is used.

    The daemon carries it, the next one if none runs; --list and --remove ask the target itself.
    """
    _refuse_a_mixture(names or [], list_, remove, {"--dry-run": dry_run, "--again": again, "--wait": wait}, run=run)
    settings = load_settings(config, of_daemon=True)
    if list_:
        _list(settings, list_, run, json_=json_)
    elif remove:
        _remove(settings, remove, names or [], force=force, json_=json_)
    else:
        job, *targets = names or []
        _deliver(settings, job, targets, dry_run=dry_run, force=force, again=again, wait=wait, json_=json_)


def _refuse_a_mixture(names: list[str], list_: str, remove: str, others: dict[str, bool], *, run: str) -> None:
    """Raise for words that do not go together."""
    with_target = [option for option, value in (("--list", list_), ("--remove", remove)) if value]
    used = [option for option, given in others.items() if given]
    cause, remedy = "", "`ckptd deliver --help` shows what it takes"
    if len(with_target) == 2:
        cause = "--list and --remove are two things"
    elif with_target and used:
        cause = f"{used[0]} is for a delivery, and not for {with_target[0]}"
    elif list_ and names:
        cause, remedy = f"{names[0]!r} is one word too many for --list", "name a run by --run"
    elif remove and not names:
        cause, remedy = "no version is named", f"take one of `ckptd deliver --list {remove}`"
    elif run and not list_:
        cause = "--run is for --list"
    elif not with_target and not names:
        cause, remedy = "no export is named", "give its id, or RUN/STEP; `ckptd list` shows the exports"
    if cause:
        raise UsageError(FaultCode.BAD_OPTION, "deliver", cause, remedy)


def _deliver(
    settings: Settings, wanted: str, names: list[str], *, dry_run: bool, force: bool, again: bool, wait: bool, json_: bool
) -> None:
    from daemon.config.places.paths import StatePaths, existing
    from daemon.journal.journal import Journal
    from daemon.journal.shipment_rows import OPEN_SHIPMENT
    from daemon.operating.asked import by_hand
    from daemon.operating.monitoring.meant import find_job
    from daemon.system.lock import is_locked

    job = find_job(settings.state_directory, wanted, by_hand=True)
    targets = by_hand.targets_of(settings, names, job.run)
    if dry_run:
        _answer([by_hand.looked_at(settings, job, target) for target in targets], json_=json_)
        return
    _say_change(settings)
    journal = Journal(existing(settings.state_directory))
    try:
        rows = [by_hand.enter(journal, job, target, force=force, again=again) for target in targets]
        runs = is_locked(StatePaths(settings.state_directory).lock)
        if wait and not runs and any(row.state in OPEN_SHIPMENT for row in rows):
            raise UsageError(
                FaultCode.NOT_RUNNING, "wait for the delivery", "no daemon runs on this state directory; it is in the queue",
                "start one: `ckptd run`", path=settings.state_directory,
            )  # fmt: skip
        if wait:
            rows = _awaited(journal, rows, json_=json_)
    finally:
        journal.close()
    if json_ or not wait:
        _answer(rows, json_=json_, runs=runs)
    if wait and any(row.state != "delivered" for row in rows):
        raise typer.Exit(EXIT_FAILED)


def _awaited(journal: Journal, rows: list[ByHand], *, json_: bool) -> list[ByHand]:
    """Wait until all have ended. Raises KeyboardInterrupt after Ctrl-C, having said what goes on."""
    from daemon.cli.views.delivery import say_row
    from daemon.operating.asked import by_hand

    try:
        return by_hand.awaited(journal, rows, lambda row: None if json_ else say_row(row, runs=True))
    except KeyboardInterrupt:
        line = translated("interrupted; the daemon goes on with the delivery, and `ckptd show {job}` says how far it is.")
        say_error(f"\nckptd: {line.format(job=rows[0].job)}")
        raise


def _answer(rows: list[ByHand], *, json_: bool, runs: bool = True) -> None:
    if json_:
        print_json(rows)
        return
    from daemon.cli.views.delivery import say_row

    for row in rows:
        say_row(row, runs=runs)


def _say_change(settings: Settings) -> None:
    from daemon.operating.reload import unread_change

    if change := unread_change(settings.state_directory):
        say_error(f"ckptd: {printable(translated_text(change))}")


def _list(settings: Settings, name: str, run: str, *, json_: bool) -> None:
    from daemon.operating.asked import by_hand

    (target,) = by_hand.targets_of(settings, [name])
    rows = by_hand.listed(settings, target, run)
    if json_:
        print_json([row.model_dump(mode="json") for row in rows])
    else:
        from daemon.cli.views.delivery import print_listed

        print_listed(rows)


def _remove(settings: Settings, name: str, versions: list[str], *, force: bool, json_: bool) -> None:
    from daemon.operating.asked import by_hand

    (target,) = by_hand.targets_of(settings, [name])
    gone = by_hand.remove(settings, target, versions, force=force)
    if json_:
        print_json({"target": name, "removed": gone})
        return
    for version in gone:
        say(translated("{version} is removed from {target}.").format(version=version, target=name))
