"""The verbs that look after what has been made: `verify`, `prune`. Thin; `daemon.cli` registers them.

Exit codes: 0 nothing is wrong, 1 something is, 2 usage or configuration.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli import verify
from daemon.cli.common import ConfigOption, JsonOption, load_settings, print_json
from daemon.cli.parser.groups import place
from daemon.cli.views.markup import say
from daemon.contract import units
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import translated, translated_text

if TYPE_CHECKING:
    import sqlite3

    from daemon.config.settings import Settings
    from daemon.publishing.keeping import Scope
    from daemon.publishing.retention import Export, Removal


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    verify.register(app)
    app.command("prune", **place("prune", "ckptd prune --dry-run"))(prune_command)


def prune_command(
    config: ConfigOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only show what would be removed, and why the other exports are kept.")
    ] = False,
    run: Annotated[str, typer.Option("--run", help="Only exports of this run.")] = "",
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="EXPORT", help="Remove nothing; never remove this export: its folder, or the id of its job. Repeatable."
        ),
    ] = None,
    unkeep: Annotated[
        list[str] | None, typer.Option("--unkeep", metavar="EXPORT", help="Remove nothing; leave this export to the rules again.")
    ] = None,
    json_: JsonOption = False,
) -> None:
    """Remove exports that no rule of `retention` keeps."""
    import time

    from daemon.config.places.paths import prepare
    from daemon.operating.integrity.scene import paths_of
    from daemon.publishing.retention import plan_removal, prune, read_exports
    from daemon.publishing.verification import exports_below

    settings = load_settings(config)
    if keep or unkeep:
        _mark(settings, keep or (), unkeep or (), json_=json_)
        return
    rules, output, moment = settings.retention, settings.output.directory, time.time()
    busy, scope = _busy(settings.state_directory), _scope(settings)
    folders = sorted({export.parent for export in exports_below(output)}) if output.is_dir() else []
    paths = (paths_of if dry_run else prepare)(settings.state_directory, output)
    removed = prune(
        folders, run or None, rules, staging=paths.staging, top=output, dry_run=dry_run, busy=busy, now=moment, select=settings.select,
        owner=paths.owner, records=paths.published, scope=scope,
    )  # fmt: skip
    exports = [export for folder in folders for export in read_exports(folder, run or None, busy, paths.owner)]
    gone = {removal.path for removal in removed}
    planned = plan_removal(exports, rules, moment, settings.select, scope).kept
    kept = [(export, reason) for export, reason in planned if export.path not in gone]
    if json_:
        print_json({
            "dry_run": dry_run, "freed": sum(removal.freed for removal in removed), "removed": removed,
            "kept": [{"path": export.path, "run": export.run, "step": export.step, "reason": reason} for export, reason in kept],
        })  # fmt: skip
    else:
        _print_removals(removed, kept, dry_run=dry_run)


def _mark(settings: Settings, keep: Sequence[str], unkeep: Sequence[str], *, json_: bool) -> None:
    """Keep some exports, and leave others to the rules again."""
    from daemon.publishing.keeping import keep as keep_export
    from daemon.publishing.keeping import release

    output = settings.output.directory
    kept, left = ([_export(settings, wanted) for wanted in names] for names in (keep, unkeep))
    for export in kept:
        keep_export(output, export)
    for export in left:
        release(output, export)
    if json_:
        print_json({"kept": kept, "left_to_the_rules": left})
        return
    for export in kept:
        stays = translated("{export} stays, whatever [retention] says. `ckptd prune --unkeep` leaves it to the rules again.")
        say(stays.format(export=export))
    for export in left:
        say(translated("{export} is left to the rules of [retention].").format(export=export))


def _export(settings: Settings, wanted: str) -> Path:
    """The folder of the export that a person means, by a path or a job. Raises UsageError where it is none in the output."""
    from daemon.operating.monitoring.status import job_meant
    from daemon.publishing.exchange.ours import is_export

    output, operation = settings.output.directory, "keep an export"
    remedy = "give the folder of a published export, or the id of its job as `ckptd list` shows it"
    given = [Path(os.path.abspath(wanted)), output / wanted]
    # A link, as `latest`, stands for what it leads to.
    folder = next((Path(os.path.realpath(path)) for path in given if path.is_dir()), None)
    folder = folder or Path(job_meant(settings.state_directory, wanted, operation, remedy).target)
    place = Path(os.path.realpath(folder.parent), folder.name)
    top = Path(os.path.realpath(output))
    if not is_export(place) or not place.is_relative_to(top):
        raise UsageError(FaultCode.NO_SUCH_JOB, operation, f"{folder} is no published export in {output}", remedy, path=folder)
    return output / place.relative_to(top)


def _scope(settings: Settings) -> Scope | None:
    """What may go where nobody has set a rule; None where somebody has."""
    from daemon.journal.overview import known_ids
    from daemon.publishing.keeping import Scope, since

    if not settings.retention.by_default:
        return None
    moment = since(settings.state_directory)
    return Scope(math.inf if moment is None else moment, _ids(settings.state_directory, known_ids))


def _busy(state: Path) -> set[str]:
    """Ids of all jobs that are open now, also of exports in the foreground, and of those whose exports are to be delivered.

    Raises UsageError for a journal of an unknown schema.
    """
    from daemon.config.places.paths import states_in
    from daemon.journal.overview import open_ids
    from daemon.journal.shipment_rows import exports_in_use

    return set[str]().union(*(_ids(folder, ask) for folder in states_in(state) for ask in (open_ids, exports_in_use)))


def _ids(state: Path, ask: Callable[[sqlite3.Connection], set[str]]) -> set[str]:
    from daemon.config.places.paths import StatePaths
    from daemon.journal.file.opening import reading

    journal = StatePaths(state).journal
    if not journal.exists():
        return set()
    with reading(journal) as connection:
        return ask(connection)


def _print_removals(removed: list[Removal], kept: list[tuple[Export, str]], *, dry_run: bool) -> None:

    for removal in removed:
        line = translated("would remove {path} ({size})") if dry_run else translated("removed {path} ({size})")
        say(line.format(path=removal.path, size=units.size(removal.freed)))
    for export, reason in kept:
        say(translated("kept {path}: {reason}").format(path=export.path, reason=translated_text(reason)))
    line = translated("{count} exports, {size} would be freed") if dry_run else translated("{count} exports, {size} freed")
    say(line.format(count=len(removed), size=units.size(sum(removal.freed for removal in removed))))
