"""The verbs that look after what has been made: `verify`, `prune`. Thin; `daemon.cli` registers them.

Exit codes: 0 nothing is wrong, 1 something is, 2 usage or configuration.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.common import ConfigOption, JsonOption, load_settings, print_json
from daemon.cli.parser.groups import place
from daemon.cli.views.markup import say, terminal
from daemon.contract import units
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import translated, translated_plural, translated_text
from daemon.contract.language.lists import bracketed, clauses, labelled

if TYPE_CHECKING:
    import sqlite3

    from daemon.config.settings import Settings
    from daemon.contract.values import Json
    from daemon.operating.integrity.fsck import Findings
    from daemon.publishing.keeping import Scope
    from daemon.publishing.retention import Export, Removal
    from daemon.publishing.verification import Verification

BIG = 64 << 20
"""Bytes from which on a terminal is shown progress."""


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command("verify", **place("verify", "ckptd verify exports/my-run/step-500"))(verify_command)
    app.command("prune", **place("prune", "ckptd prune --dry-run"))(prune_command)


def verify_command(
    path: Annotated[
        Path | None,
        typer.Argument(help="Only these exports: an export, a folder in one, or a run's folder. Default: all in output.directory."),
    ] = None,
    exports: Annotated[bool, typer.Option("--exports", help="Only published exports, each file against its manifest.")] = False,
    journal: Annotated[
        bool, typer.Option("--journal", help="Only journal and disk against each other: what is lost, duplicated or half finished.")
    ] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Also read every pin and finished output.")] = False,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Check exports, journal and disk for damage.

    Published exports against their manifests, then journal and disk against each other: what is lost, duplicated or half finished.

    Exit code 1: a problem; 2: there is no export.
    """
    from daemon.config.places.paths import states_in

    _refuse_contradiction(path, exports=exports, journal=journal, deep=deep)
    settings = load_settings(config)
    of_journal = path is None and not exports
    results = [] if journal else _verified(path or settings.output.directory, quiet=json_)
    states = [_examined(settings, state, deep=deep) for state in states_in(settings.state_directory)] if of_journal else []
    sound = all(result.sound for result in results) and not any(findings.findings for findings in states)
    if json_:
        parts: dict[str, object] = {} if journal else {"exports": [_with_verdict(result) for result in results]}
        print_json({"sound": sound, **parts, **({"states": states} if of_journal else {})})
    else:
        for result in results:
            _print_verification(result)
        for findings in states:
            _print_findings(findings)
    if not sound:
        raise typer.Exit(1)


def _refuse_contradiction(path: Path | None, *, exports: bool, journal: bool, deep: bool) -> None:
    """Raise UsageError for options of which each leaves nothing of the other."""
    if journal and (exports or path is not None):
        both = "both --exports and --journal are given" if exports else "a path is given, and --journal looks at no folder of exports"
        raise UsageError(FaultCode.BAD_OPTION, "verify", both, "give one of them; without both, everything is checked")
    if deep and (exports or path is not None):
        cause = "only exports are asked for, and --deep reads pins and finished outputs"
        raise UsageError(FaultCode.BAD_OPTION, "verify", cause, "leave it out: the files of exports are always read")


def _verified(path: Path, *, quiet: bool) -> list[Verification]:
    from daemon.publishing.verification import to_verify, verify

    wanted = to_verify(path)
    with _progress([export for export, _ in wanted], quiet=quiet) as on_bytes:
        return [verify(export, inside=inside, on_bytes=on_bytes) for export, inside in wanted]


def _with_verdict(verification: Verification) -> Json:
    return {"sound": verification.sound, **dataclasses.asdict(verification)}


def _print_verification(verification: Verification) -> None:

    count = len(verification.problems)
    differences = translated_plural("{count} difference", "{count} differences", count).format(count=count)
    state = translated("sound") if verification.sound else differences
    read = translated("{files} files, {size}, {time}").format(
        files=verification.files, size=units.size(verification.bytes), time=units.duration(verification.seconds)
    )
    say(labelled(str(verification.folder), bracketed(state, read)))
    for problem in verification.problems:
        say(f"  {translated_text(problem.sentence())}")


@contextmanager
def _progress(exports: list[Path], *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """What takes the size in bytes of every block that was read: a progress bar on a terminal from BIG bytes on, else nothing."""
    total = _size(exports) if sys.stderr.isatty() and not quiet else 0
    if total < BIG:
        yield lambda count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=terminal(stderr=True), transient=True) as bar:
        task = bar.add_task("verify", total=total)
        yield lambda count: bar.advance(task, count)


def _size(exports: list[Path]) -> int:
    from daemon.contract.disk.files import files_below

    return sum(path.stat().st_size for export in exports for path in files_below(export))


def _examined(settings: Settings, state: Path, *, deep: bool) -> Findings:
    from daemon.checkpoints.pinning.pins import pins_of
    from daemon.operating.integrity.fsck import examine
    from daemon.operating.integrity.scene import paths_of
    from daemon.system.lock import is_locked

    paths = paths_of(state, settings.output.directory)
    pins = pins_of(settings.pin, paths)
    return examine(state, settings.output.directory, pins, quiescent=not is_locked(paths.lock), deep=deep)


def _print_findings(findings: Findings) -> None:
    count = len(findings.findings)
    summary = (
        translated_plural("{count} finding", "{count} findings", count).format(count=count) if count else translated("no problems found")
    )
    jobs = translated_plural("{count} job", "{count} jobs", findings.jobs).format(count=findings.jobs)
    exports = translated_plural("{count} export", "{count} exports", findings.exports).format(count=findings.exports)
    read = clauses([jobs, exports, units.duration(findings.seconds)])
    say(labelled(str(findings.state), bracketed(summary, read)))
    for finding in findings.findings:
        say("  " + _of_job(finding.job, translated_text(finding.sentence())))
    for note in findings.notes:
        about = _of_job(note.job, bracketed(translated_text(note.text), str(note.path)))
        say("  " + translated("note: {about}").format(about=about))


def _of_job(job: str | None, text: str) -> str:
    return labelled(job, text) if job else text


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
