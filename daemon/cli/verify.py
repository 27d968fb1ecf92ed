"""The verb `verify`: whether what was made is still what it was, and, with --deep, whether it still answers as the live model does. Thin.

Exit codes: 0 nothing is wrong, 1 something is, 2 usage or configuration, 3 nothing is, and an artifact could not be checked again.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.common import ConfigOption, JsonOption, for_somebody_who_waits, load_settings, print_json
from daemon.cli.exit_codes import EXIT_FAILED, EXIT_PARTIAL
from daemon.cli.parser.groups import place
from daemon.cli.views.markup import say, terminal
from daemon.contract import units
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import translated, translated_plural, translated_text
from daemon.contract.language.lists import bracketed, clauses, labelled

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.contract.jobs.processes.recheck import Rechecked
    from daemon.contract.values import Json
    from daemon.operating.integrity.fsck import Findings
    from daemon.operating.rechecking.subject import Subject
    from daemon.publishing.verification import Verification

BIG = 64 << 20
"""Bytes from which on a terminal is shown progress."""


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("verify", **place("verify", "ckptd verify exports/my-run/step-500"))(verify_command)


def verify_command(
    path: Annotated[
        Path | None,
        typer.Argument(help="Only these exports: an export, a folder in one, or a run's folder. Default: all in output.directory."),
    ] = None,
    exports: Annotated[bool, typer.Option("--exports", help="Only published exports, each file against its manifest.")] = False,
    journal: Annotated[
        bool, typer.Option("--journal", help="Only journal and disk against each other: what is lost, duplicated or half finished.")
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read every pin and finished output; with a path, run the checks of its artifacts again.")
    ] = False,
    variants: Annotated[
        list[str] | None, typer.Option("--variant", metavar="VARIANT", help="With --deep, only this variant. Repeatable.")
    ] = None,
    artifact: Annotated[
        Path | None, typer.Option("--artifact", metavar="FOLDER", help="Check a folder that another program made, as --like's variant.")
    ] = None,
    like: Annotated[Path | None, typer.Option("--like", metavar="EXPORT", help="The export whose live model it must answer like.")] = None,
    trust: Annotated[
        bool, typer.Option("--trust", help="Run code of the artifacts too: their example.py, programs in their files. Else it is left out.")
    ] = False,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Check exports, journal and disk for damage.

    Published exports against their manifests, then journal and disk against each other: what is lost, duplicated or half finished.

    With --deep and a path, artifacts are run and compared again with the live model's answers, which the export keeps.

    Exit code 1: a problem; 2: there is no export; 3: an artifact could not be checked again.
    """
    from daemon.config.places.paths import states_in

    _refuse_contradiction(path, exports=exports, journal=journal, deep=deep, of_artifact=artifact is not None or like is not None)
    if artifact is not None or like is not None or variants or trust:
        _refuse_half(path, artifact, like, deep=deep, trust=trust)
    if artifact is not None or (deep and path is not None):
        _deep(path or like or Path(), artifact, variants or (), config, trust=trust, json_=json_)
        return
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
        raise typer.Exit(EXIT_FAILED)


def _refuse_contradiction(path: Path | None, *, exports: bool, journal: bool, deep: bool, of_artifact: bool) -> None:
    """Raise UsageError for options of which each leaves nothing of the other."""
    if journal and (exports or path is not None or of_artifact):
        both = "both --exports and --journal are given" if exports else "a path is given, and --journal looks at no folder of exports"
        raise UsageError(FaultCode.BAD_OPTION, "verify", both, "give one of them; without both, everything is checked")
    if deep and exports and path is None:
        cause = "only exports are asked for, and --deep without a path reads pins and finished outputs"
        raise UsageError(FaultCode.BAD_OPTION, "verify", cause, "give the export whose artifacts are to be run, or leave --exports out")


def _refuse_half(path: Path | None, artifact: Path | None, like: Path | None, *, deep: bool, trust: bool) -> None:
    """Raise UsageError for options without those that they belong to."""
    if artifact is None and like is None and not (deep and path is not None):
        remedy = "give the export's folder and --deep too"
        if trust:
            raise UsageError(FaultCode.BAD_OPTION, "verify", "--trust says that code of artifacts may run", remedy)
        raise UsageError(FaultCode.BAD_OPTION, "verify", "--variant says which artifact of an export is run", remedy)
    if (artifact is None) != (like is None):
        remedy = "give the export with --like" if like is None else "give the folder of the artifact with --artifact"
        raise UsageError(FaultCode.BAD_OPTION, "verify", "--artifact and --like belong together", remedy)
    if artifact is not None and path is not None:
        cause = f"{path} is given beside --artifact"
        raise UsageError(FaultCode.BAD_OPTION, "verify", cause, "name the folder with --artifact and the export with --like alone")


def _deep(path: Path, artifact: Path | None, variants: Sequence[str], config: Path | None, *, trust: bool, json_: bool) -> None:
    """Check files by their manifest, then the artifacts by the answers that the export keeps."""
    from daemon.contract.disk.export_layout import ANSWERS
    from daemon.operating.rechecking import subject
    from daemon.publishing.verification import to_verify, verify

    settings = for_somebody_who_waits(load_settings(config, own_state=True))
    if artifact is None:
        exports = to_verify(path)
        subjects = [subject.of_export(export, inside, variants, alone=len(exports) == 1) for export, inside in exports]
        if not any(each.folders for each in subjects):
            remedy = "give an export with variants, and with --variant the name of a folder in it"
            raise UsageError(FaultCode.NO_EXPORT, subject.OPERATION, "no export there has such a variant", remedy, path=path)
        results = _verified(path, quiet=json_)
    else:
        subjects, results = [subject.of_artifact(artifact, path, variants)], [verify(path, inside=ANSWERS)]
    subjects = [dataclasses.replace(each, trusted=trust) for each in subjects]
    damaged = {
        Path(os.path.abspath(result.folder))
        for result in results
        if any(problem.path.startswith(f"{ANSWERS}/") for problem in result.problems)
    }
    checks = _rechecked(settings, [each for each in subjects if each.export not in damaged], quiet=json_)
    verdicts = {str(check.verdict) for check in checks}
    failed = "failed" in verdicts or not all(result.sound for result in results)
    if json_:
        rows = [check.model_dump(mode="json") for check in checks]
        print_json({
            "sound": not failed and "unverified" not in verdicts, "exports": [_with_verdict(result) for result in results], "checks": rows,
        })  # fmt: skip
    else:
        from daemon.cli.views.recheck import print_checks

        for result in results:
            if artifact is None or not result.sound:  # of an artifact, these are the answers of the live model alone
                _print_verification(result)
            print_checks([check for check in checks if artifact is not None or Path(check.folder).parent == _absolute(result.folder)])
    if failed or "unverified" in verdicts:
        raise typer.Exit(EXIT_FAILED if failed else EXIT_PARTIAL)


def _absolute(folder: Path) -> Path:
    return Path(os.path.abspath(folder))


def _rechecked(settings: Settings, subjects: Sequence[Subject], *, quiet: bool) -> list[Rechecked]:
    """Have the artifacts checked while the progress is shown. Raises KeyboardInterrupt after Ctrl-C."""
    from daemon.cli.views.recheck import RecheckView
    from daemon.operating.measuring.stages import Progress, scratch
    from daemon.operating.rechecking.judging import Rechecking
    from daemon.system.processes.signals import on_signals

    stop = threading.Event()
    on_signals((signal.SIGINT, signal.SIGTERM), stop.set)
    view = RecheckView(quiet=quiet)
    checks: list[Rechecked] = []
    with view.working():
        for number, subject in enumerate(subjects):

            def said(done: float, what: str, number: int = number) -> None:
                view.show((number + done) / len(subjects), what)

            with scratch(settings.state_directory) as folder:
                checks += Rechecking(settings, subject, folder, Progress(said, stop.is_set)).run()
    return checks


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
