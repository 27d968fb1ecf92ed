"""The console command: verbs and exit codes, thin. Whatever is slow to import is imported by the verb that needs it.

Exit codes: 0 done, 1 the export failed, 2 usage or configuration, 3 partial, 70 a thread of the daemon could not be kept alive,
75 temporary (no memory, no disk), 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import copy
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from daemon.cli import bench, configuration, convert, deliver, explain, machine, maintenance, notify, quality, queue, status, toolchain
from daemon.cli.common import (
    ConfigOption,
    DaemonConfiguration,
    JsonOption,
    configuration_of,
    for_somebody_who_waits,
    load_settings,
    no_access,
    of_surrogates,
    print_json,
    refuse_undecodable,
)
from daemon.cli.exit_codes import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_READER_LEFT,
    EXIT_TEMPORARY,
    EXIT_THREAD_LOST,
    EXIT_USAGE,
    exit_of,
)
from daemon.cli.parser.groups import GROUPS, HELP_NAMES, RENAMED, place
from daemon.cli.parser.mistakes import mistake_of
from daemon.cli.parser.parsing import Group
from daemon.cli.setup import entry as setup
from daemon.cli.views.markup import say, say_error, set_up_outputs
from daemon.contract.faults.errors import CkptdError, Retryable, UsageError, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.text import is_text
from daemon.contract.language.catalog import speak_english, translated, translated_text, use_environment
from daemon.contract.version import __version__
from daemon.system import journald

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


@app.command("run", **place("run", "ckptd run --config /etc/ckptd/config.toml"))
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
    from daemon.page.service import PageService

    gc.set_threshold(*_COLLECT_AFTER)  # the service lives for weeks
    try:
        paths = prepare(settings.state_directory, settings.output.directory)
        logs.set_up(settings.log, paths.log)
        logs.say_closed(paths.closed)
        speak_english()  # log, journal and notifications; a report has its own language
        with announced(configuration_of(config), settings.state_directory):
            serve(settings, reload=configuration.read, source=configuration.source, page=PageService)
    except UsageError as error:
        use_environment()  # whoever started it reads this
        raise _of_the_machine(error) from None


def _of_the_machine(error: UsageError) -> CkptdError:
    """What keeps a daemon with a valid configuration from its work: it may pass, so that a service manager should start it again."""
    if error.fault.code not in (FaultCode.ALREADY_RUNNING, FaultCode.NOT_WRITABLE):
        return error
    fault = error.fault
    return Retryable(fault.code, fault.operation, fault.cause, fault.remedy, path=fault.path)


@app.command("export", **place("export", "ckptd export runs/my-run/checkpoint-500 --to onnx-int8"))
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


@app.command("demo", **place("demo", "ckptd demo --keep demo-files"))
def demo(
    keep: Annotated[Path | None, typer.Option("--keep", help="Keep all files in this new folder.")] = None,
) -> None:
    """Train a small model and export its checkpoints live."""
    from daemon.cli.demo import main as show_demo

    raise typer.Exit(show_demo(keep))


@app.command("version", **place("version", "ckptd version"))
def version() -> None:
    """Show the version."""
    say(f"ckptd {__version__}")


for verbs in (status, explain, quality, machine, bench, convert, deliver, maintenance, queue, setup, configuration, notify, toolchain):
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
    gc.set_threshold(100_000)  # most verbs end before anything is worth collecting; by default that takes a tenth of their time
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


def _verb_of(words: Sequence[str]) -> typer.Typer:
    """The command line with the verb alone that its first word names: typer makes a command of each function, as long as most verbs take.
    All verbs where that word names none, as for help and completion."""
    meant = copy.copy(app)
    meant.registered_commands = [command for command in app.registered_commands if command.name in words[:1]]
    meant.registered_groups = [group for group in app.registered_groups if group.name in words[:1]]
    return meant if meant.registered_commands or meant.registered_groups else app


def _run() -> int:
    try:
        code = _verb_of(sys.argv[1:])(prog_name="ckptd", standalone_mode=False)
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
