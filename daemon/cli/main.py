"""The console command: verbs and exit codes, thin. Whatever is slow to import is imported by the verb that needs it.

Exit codes: 0 done, 1 the export failed, 2 usage or configuration, 3 partial, 70 a thread of the daemon could not be kept alive,
75 temporary (no memory, no disk), 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from daemon.cli import bench, configuration, convert, maintenance, queue, setup, toolchain
from daemon.cli.common import (
    ConfigOption,
    DaemonConfiguration,
    JsonOption,
    command_for,
    configuration_of,
    daemon_place,
    daemon_state,
    exit_of,
    for_somebody_who_waits,
    load_settings,
    no_access,
    of_surrogates,
    print_json,
    refuse_undecodable,
)
from daemon.cli.filter import STATES, Filter
from daemon.cli.groups import GROUPS, HELP_NAMES, RENAMED, place
from daemon.cli.mistakes import mistake_of
from daemon.cli.parsing import Group
from daemon.cli.views.markup import say, say_error, set_up_outputs
from daemon.contract.disk.answers import ask
from daemon.contract.faults.errors import CkptdError, Retryable, UsageError, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.text import is_text
from daemon.contract.language.catalog import speak_english, to_translate, translated, translated_plural, translated_text
from daemon.contract.version import __version__
from daemon.system import journald

if TYPE_CHECKING:
    from daemon.config.places.instances import Instance
    from daemon.operating.monitoring.status import DaemonState, Snapshot

EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL, EXIT_THREAD_LOST, EXIT_TEMPORARY, EXIT_INTERRUPTED, EXIT_READER_LEFT = 1, 2, 3, 70, 75, 130, 141
EXPLAIN_SECONDS = 60.0
"""What a look at a checkpoint may take; a file system that does not answer holds it for ever."""
_COLLECT_AFTER = gc.get_threshold()


class _ReaderLeft(Exception):
    """Who reads the output (`| head`) has ended. Not an OSError: typer ends with 1 for that, which says "unwell" or "failed"."""


class _Verbs(Group):
    """All verbs. Ctrl-C at a question ends the command as Ctrl-C elsewhere does, and not as one that failed."""

    def make_context(self, *rest: Any, **more: Any) -> Any:
        """What the command line means; help is shown here."""
        try:
            return super().make_context(*rest, **more)
        except BrokenPipeError:
            raise _ReaderLeft from None

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs in the order of the help."""
        return [verb for verbs in GROUPS.values() for verb in verbs]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The verb of the command line, also by the name that it had in an earlier version."""
        if args[0] in RENAMED:
            now = RENAMED[args[0]]
            old, new = f"ckptd {args[0]}", f"ckptd {' '.join(now)}"
            notice = translated("`{old}` is called `{new}` now; version 2 will not know the old name.").format(old=old, new=new)
            say_error(f"ckptd: {notice}")
            args = [*now, *args[1:]]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the verb of the command line."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _ReaderLeft from None
        except typer.Abort:
            say_error("\nckptd: " + translated("interrupted; nothing more is done."))
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    name="ckptd",
    cls=_Verbs,
    help="Turns finished training checkpoints into verified, deployable models, automatically.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=HELP_NAMES,
    epilog="ckptd COMMAND -h shows what a command takes, and an example.",
)


def _version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a value for this command; it overrides all others: --set limits.jobs=2. Repeatable."
        ),
    ] = None,
) -> None:
    """Turns finished training checkpoints into verified, deployable models, automatically."""
    configuration.set_values(set_)


@app.command(**place("run", "ckptd run --config /etc/ckptd/config.toml"))
def run(config: ConfigOption = None) -> None:
    """Run the service in this terminal.

    It watches the configured roots and exports the checkpoints that appear there.
    """
    configuration = DaemonConfiguration(config)
    settings = configuration.read()
    from daemon.config.places.instances import announced
    from daemon.config.places.paths import prepare
    from daemon.operating.log import logs
    from daemon.operating.service import serve

    gc.set_threshold(*_COLLECT_AFTER)  # the service lives for weeks
    try:
        paths = prepare(settings.state_directory, settings.output.directory)
        logs.set_up(settings.log, paths.log)
        logs.say_closed(paths.closed)
        speak_english()  # log, journal and notifications; a report has its own language
        with announced(configuration_of(config), settings.state_directory):
            serve(settings, reload=configuration.read, source=configuration.source)
    except UsageError as error:
        raise _of_the_machine(error) from None


def _of_the_machine(error: UsageError) -> CkptdError:
    """What keeps a daemon with a valid configuration from its work: it may pass, so that a service manager should start it again."""
    if error.fault.code not in (FaultCode.ALREADY_RUNNING, FaultCode.NOT_WRITABLE):
        return error
    fault = error.fault
    return Retryable(fault.code, fault.operation, fault.cause, fault.remedy, path=fault.path)


@app.command(**place("export", "ckptd export runs/my-run/checkpoint-500 --to onnx-int8"))
def export(
    checkpoint: Annotated[
        Path | None,
        typer.Argument(
            readable=False,
            help="Checkpoint directory, or a Lightning .ckpt file. Default: $EXPORT_CHECKPOINT_PATH.",
            envvar="EXPORT_CHECKPOINT_PATH",
        ),
    ] = None,
    config: ConfigOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder to publish in, instead of output.directory.")] = None,
    base: Annotated[Path | None, typer.Option("--base", help="Folder of the base model. Default: ckptd searches for it.")] = None,
    add: Annotated[
        list[str] | None, typer.Option("--add", metavar="PATH[=WEIGHT]", help="Another adapter to merge, instead of merge.add. Repeatable.")
    ] = None,
    to: Annotated[
        list[str] | None, typer.Option("--to", metavar="VARIANT", help="Make this variant, instead of export.variants. Repeatable.")
    ] = None,
    deploy: Annotated[
        list[str] | None,
        typer.Option("--deploy", metavar="TARGET", help="Make what fits this target, instead of export.deploy. Repeatable."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Export again even if this checkpoint has been exported.")] = False,
    json_: JsonOption = False,
) -> None:
    """Export one checkpoint now, in the foreground."""
    if checkpoint is None:
        raise UsageError(
            FaultCode.BAD_OPTION, "export", "no checkpoint was given", "give the path of a checkpoint: ckptd export RUN/checkpoint-500"
        )
    configuration.make_only(to or (), deploy or ())
    for path in (checkpoint, output, base, *map(Path, add or ())):
        if path is not None:
            refuse_undecodable(path, "export")
    settings = for_somebody_who_waits(load_settings(config, own_state=True))
    from daemon.cli.export import export_now

    answer = export_now(settings, checkpoint, output=output, base=base, add=add or (), force=force, quiet=json_)
    if json_:
        print_json(answer)
    raise typer.Exit(exit_of(answer.state))


def _not_explained(path: Path) -> UsageError:
    """What is said of a directory that could not be looked into in time: whether its file system answers at all."""
    seconds = f"{EXPLAIN_SECONDS:.0f} s"
    try:
        ask(f"{path} itself", lambda: os.stat(path))
    except TimeoutError:
        return UsageError(
            FaultCode.ROOT_SILENT, "look at it", f"its file system has not answered for {seconds}",
            "look at the mount and its server", path=path,
        )  # fmt: skip
    except OSError:
        pass  # it is gone meanwhile, and its file system has answered
    return UsageError(
        FaultCode.TIMEOUT, "look into it", f"to read its configurations, its training log and its files' headers took more than {seconds}",
        "try again when the machine has less to do; `ls -lS` shows whether a file in it is much larger than it should be", path=path,
    )  # fmt: skip


@app.command(**place("explain", "ckptd explain runs/my-run/checkpoint-500"))
def explain(
    path: Annotated[Path, typer.Argument(readable=False, help="Directory of a checkpoint or of a run, or a file in a checkpoint.")],
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Show what a checkpoint holds, lacks, and became.

    Exit code 1: not complete.
    """
    from daemon.operating.monitoring.explain import explain as look

    refuse_undecodable(path, "explain")
    settings = load_settings(config, of_daemon=True, own_state=True)
    try:
        value = ask(str(path), lambda: look(settings, path), EXPLAIN_SECONDS)
    except TimeoutError:
        raise _not_explained(path) from None
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.explanation import print_explanation

        print_explanation(value)
    if not value.complete:
        raise typer.Exit(EXIT_FAILED)


@app.command(**place("status", "ckptd status --watch"))
def status(
    config: ConfigOption = None,
    everything: Annotated[bool, typer.Option("--all", help="List all directories, not only the first few of each kind.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds, until Ctrl-C.")] = False,
    exit_code: Annotated[
        bool,
        typer.Option("--exit-code", help="Exit with code 1 if the daemon does not run or is unwell, 75 if a disk is full: work waits."),
    ] = False,
    json_: JsonOption = False,
) -> None:
    """Show the daemon, its roots, open and recent exports."""
    from daemon.config.places.instances import running
    from daemon.operating.monitoring.status import snapshot

    if watch and json_:
        raise UsageError(FaultCode.BAD_OPTION, "watch", "people use --watch, and programs --json", "use only one of the two")
    chosen, others = configuration_of(config), running()
    if chosen is None and len(others) > 1 and not exit_code:
        _print_daemons(others, json_=json_)
        return
    place = daemon_place(config)

    def look() -> Snapshot:
        file = None if place.config is None else str(place.config.absolute())
        return dataclasses.replace(snapshot(place.state, anywhere=True), config=file, config_problem=place.mistake)

    if watch:
        from daemon.cli.views import status as view

        view.watch(look)
        return
    value = look()
    if json_:
        print_json(value)
    else:
        from daemon.cli.views import status as view

        view.print_status(value, everything=everything)
        if config is None and not value.daemon.running and others:
            _print_daemons(others, json_=False)
    if exit_code:
        raise typer.Exit(_health(value.daemon))


def _health(daemon: DaemonState) -> int:
    """The exit code that tells how a daemon is: a restart may help one that is unwell, and none that has a full disk alone."""
    if not daemon.running or daemon.verdict == "unwell" or daemon.unwell:
        return EXIT_FAILED
    return EXIT_TEMPORARY if daemon.verdict == "full" else 0


def _print_daemons(daemons: list[Instance], *, json_: bool) -> None:
    rows = [
        {"config": daemon.config and str(daemon.config), "state_directory": str(daemon.state), "pid": daemon.pid, "user": daemon.user_name,
         "command": command_for(daemon)}
        for daemon in daemons
    ]  # fmt: skip
    if json_:
        print_json({"daemons": rows})
        return
    count = len(rows)
    say(translated_plural("{count} daemon runs on this machine:", "{count} daemons run on this machine:", count).format(count=count))
    for row in rows:
        line = translated("pid {pid}, user {user}, state {state}: `{command}`")
        say("  " + line.format(pid=row["pid"], user=row["user"], state=row["state_directory"], command=row["command"]))


@app.command("list", **place("list", "ckptd list --run 'code-*' --state failed --since 3d"))
def list_(
    config: ConfigOption = None,
    run: Annotated[str, typer.Option("--run", help="Only runs with this name; it may contain the wildcards * and ?.")] = "",
    state: Annotated[
        list[str] | None, typer.Option("--state", help=f"Only exports in this state: {', '.join(STATES)}. Repeatable.")
    ] = None,
    since: Annotated[str, typer.Option("--since", help='Only checkpoints that were taken after this time: "2h", "3d", "2026-01-31".')] = "",
    json_: JsonOption = False,
) -> None:
    """List checkpoints with step, loss and results."""
    from daemon.operating.monitoring.status import snapshot

    wanted = Filter.of(run, state or (), since)
    jobs = [job for job in snapshot(daemon_state(config), limit=10_000).jobs if wanted.takes(job)]
    if json_:
        print_json(jobs)
    else:
        from daemon.cli.views import status as view

        view.print_jobs(jobs, none=to_translate("no export matches") if wanted != Filter() else view.NONE)


@app.command(**place("show", "ckptd show my-run/500"))
def show(
    job: queue.JobArgument,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Show one export: stages, attempts, errors, folder."""
    value = queue.find_job(daemon_state(config), job)
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.details import print_job

        print_job(value)


@app.command(**place("compare", "ckptd compare my-run/400 my-run/500"))
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


@app.command(**place("quality", "ckptd quality my-run"))
def quality(
    run: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Name of a run, or the folder with its exports. Default: the only run.")
    ] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Show a run's exports by step, and which to deploy."""
    from daemon.operating.monitoring.run_quality import run_quality

    settings = load_settings(config, of_daemon=True, own_state=True)
    value = run_quality(settings.state_directory, settings.output.directory, run, settings.select.best_variant)
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.run_quality import print_run_quality

        print_run_quality(value)


@app.command(**place("logs", "ckptd logs --follow --job my-run/500 --stage merge"))
def logs(
    config: ConfigOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new lines.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of latest lines to show first.")] = 50,
    job: Annotated[str | None, typer.Option("--job", help="Only the lines of this job.")] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="Instead, what this stage of the job prints, wherever it runs.")] = None,
    json_: JsonOption = False,
) -> None:
    """Show the daemon's log, or that of a stage."""
    from daemon.cli.views.tables import print_log
    from daemon.config.places.paths import StatePaths

    state = daemon_state(config)
    if stage is not None:
        from daemon.cli.views.stage_log import print_stage_log

        print_stage_log(queue.attempted_at(state, job, stage), queue.scheduler_says(config), follow=follow, lines=lines, as_json=json_)
        return
    if job is not None:
        job = queue.in_log(state, job)
    print_log(StatePaths(state).log, follow=follow, lines=lines, job=job or "", as_json=json_)


@app.command(**place("check", "ckptd check --all"))
def check(
    config: ConfigOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all facts: machine, toolchains, packages.")] = False,
    json_: JsonOption = False,
) -> None:
    """Check the configuration and this machine.

    Shows problems, notes and the few facts that matter; --all shows all facts. Exit code 2: there is a problem.
    """
    from daemon.operating.diagnosis.doctor import Diagnosis, examine

    try:
        value = examine(load_settings(config, own_state=True), configuration_of(config))
    except UsageError as error:
        if not json_:
            raise
        value = Diagnosis({}, (error.fault.sentence(),), ())
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.machine import print_check

        print_check(value, everything=everything)
    if value.problems:
        raise typer.Exit(EXIT_USAGE)


@app.command(**place("formats", "ckptd formats --all"))
def formats(
    config: ConfigOption = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every variant, with targets, toolchains and processor.")] = False,
    json_: JsonOption = False,
) -> None:
    """List the variants that this machine can make.

    Those that it can make and those that are configured, with what is missing. --all: every variant, targets, toolchains, this processor.
    """
    from daemon.operating.diagnosis.doctor import formats_here

    settings = load_settings(config, own_state=True)
    value = formats_here(settings.state_directory)
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.machine import print_formats

        print_formats(value, settings.variants, everything=everything)


@app.command(**place("demo", "ckptd demo --keep demo-files"))
def demo(
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep all files in this new folder.")] = None,
) -> None:
    """Train a small model and export its checkpoints live."""
    from daemon.cli.demo import main as show_demo

    raise typer.Exit(show_demo(keep))


@app.command(**place("version", "ckptd version"))
def version() -> None:
    """Show the version."""
    say(f"ckptd {__version__}")


for verbs in (bench, convert, maintenance, queue, setup, configuration, toolchain):
    verbs.register(app)


def exit_code_of(error: CkptdError) -> int:
    """What a verb that ends with this error gives its caller."""
    if error.fault.code == FaultCode.THREAD_LOST:
        return EXIT_THREAD_LOST
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_TEMPORARY if isinstance(error, Retryable) else EXIT_FAILED


def main() -> int:
    """Entry of the console script; gives the exit code. Our own errors end in one sentence.

    A reader of the output that leaves (`| head`) ends it as SIGPIPE ends other commands: neither 0 nor 1, which would be a verdict.
    """
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # to look for some reads the metadata of every package
    gc.set_threshold(20_000)  # most verbs end before anything is worth collecting; by default that takes a tenth of their time
    journald.set_up()
    set_up_outputs()
    sys.excepthook = _say_traceback
    try:
        code = _run()
        sys.stdout.flush()
    except (_ReaderLeft, BrokenPipeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)  # for what is still to be written when Python ends
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return EXIT_READER_LEFT
    finally:
        gc.freeze()  # else Python looks through all that was imported for what it could free, before it ends
    return code


def _say_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What Python says of an error that nobody foresaw, without secrets."""
    say_error("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"))


def _complain(error: CkptdError) -> None:
    say_error(f"ckptd: {translated_text(str(error))}")


def _run() -> int:
    try:
        code = app(prog_name="ckptd", standalone_mode=False)
    except SystemExit as leaving:  # completion ends so, and rich's console, which shows the help, where its reader has left
        if isinstance(leaving.__context__, BrokenPipeError):
            raise leaving.__context__ from None
        return leaving.code if isinstance(leaving.code, int) else EXIT_FAILED
    except TyperException as error:
        _complain(mistake_of(error))
        return EXIT_USAGE
    except CkptdError as error:
        _complain(error)
        return exit_code_of(error)
    except UnicodeEncodeError as error:
        if is_text(error.object):
            raise
        _complain(of_surrogates(error))
        return EXIT_USAGE
    except PermissionError as error:
        _complain(no_access(Path(os.fsdecode(error.filename or "."))))
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        raise
    except OSError as error:
        fault = from_oserror(error, "go on")
        _complain(fault)
        return EXIT_TEMPORARY if isinstance(fault, Retryable) else EXIT_FAILED
    return code if isinstance(code, int) else 0
