"""The verb `bench`: what an export's variants are like on this machine. Thin; `daemon.cli.main` registers it.

Exit codes: 0 every variant was measured, 1 none, 2 usage or configuration, 3 some.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.common import ConfigOption, JsonOption, for_somebody_who_waits, load_settings, print_json
from daemon.cli.parser.groups import place
from daemon.contract.faults.errors import CkptdError, UsageError
from daemon.contract.faults.fault_codes import FaultCode

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.contract.jobs.processes.benchmark import Bench
    from daemon.operating.measuring.measure import Asked
    from daemon.operating.measuring.subject import Choice, Export

EXIT_NOTHING, EXIT_SOME = 1, 3
LARGEST = {"--lengths": 1 << 17, "--batches": 1 << 12, "--threads": 1 << 10}


def register(app: typer.Typer) -> None:
    """Add the verb to the command line."""
    app.command("bench", **place("bench", "ckptd bench exports/my-run/latest onnx-int8 --minutes 2"))(bench_command)


def bench_command(
    path: Annotated[str, typer.Argument(metavar="PATH", help="An export: its folder, the run's link `latest`, or the id of its job.")],
    variants: Annotated[
        list[str] | None, typer.Argument(metavar="VARIANT", help="Variants to measure. Default: all that are deployed by themselves.")
    ] = None,
    lengths: Annotated[str, typer.Option("--lengths", metavar="N,N", help="Tokens of a prompt, a source or a text.")] = "16,128",
    batches: Annotated[str, typer.Option("--batches", metavar="N,N", help="Rows that run together.")] = "1",
    threads: Annotated[str, typer.Option("--threads", metavar="N,N", help="Threads of the runtime. Default: limits.threads.")] = "",
    tokens: Annotated[int, typer.Option("--tokens", min=1, max=4096, help="Tokens to decode for each row.")] = 32,
    rounds: Annotated[int, typer.Option("--rounds", min=1, max=1000, help="Repetitions, for medians and quartiles.")] = 5,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0.01, max=1440, help="Limit of the time; the output says what it left out.")
    ] = 5.0,
    finish: Annotated[
        bool, typer.Option("--finish", help="Finish the start of a model or the round that has begun when the time is over.")
    ] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with a table and charts.")] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Measure an export's variants on this machine.

    Time to the first token, tokens per second, start and memory, in turns with PyTorch. It writes nothing into the export.

    By default it uses the threads of limits.threads, so that a training on this machine goes on.
    """
    from daemon.operating.measuring import subject
    from daemon.operating.measuring.measure import Asked

    numbers = {"--lengths": _numbers("--lengths", lengths), "--batches": _numbers("--batches", batches)}
    settings = for_somebody_who_waits(load_settings(config, own_state=True))
    numbers["--threads"] = _numbers("--threads", threads or str(settings.limits.effective_threads))
    target = None if html is None else html.absolute()
    if target is not None:
        subject.refuse_target(target)
    export, inside = subject.locate(settings.state_directory, path)
    choice = subject.choose(export, variants or ([inside] if inside else []))
    asked = Asked(numbers["--lengths"], numbers["--batches"], numbers["--threads"], tokens, rounds, 60 * minutes, finish)
    value, lost = _measured(settings, export, choice, asked, target, quiet=json_)
    if json_:
        print_json(value.model_dump(mode="json"))
    else:
        from daemon.cli.views.benchmark import print_bench

        print_bench(value, None if lost else target)
    if lost is not None:
        raise lost
    done = [variant.measured for variant in value.variants]
    if not all(done):
        raise typer.Exit(EXIT_SOME if any(done) else EXIT_NOTHING)


def _measured(
    settings: Settings, export: Export, choice: Choice, asked: Asked, target: Path | None, *, quiet: bool
) -> tuple[Bench, CkptdError | None]:
    """Measure, and write the page, while the progress is shown; gives why there is no page too: the figures are worth more than it.

    Raises KeyboardInterrupt after Ctrl-C.
    """
    from daemon.cli.views.benchmark import BenchView
    from daemon.operating.measuring import measure
    from daemon.operating.measuring.stages import Progress
    from daemon.system.processes.signals import on_signals

    stop = threading.Event()
    on_signals((signal.SIGINT, signal.SIGTERM), stop.set)
    view = BenchView(quiet=quiet)
    progress = Progress(view.show, stop.is_set)
    with view.working():
        value, lost = measure.measure(settings, export, choice, asked, progress), None
        try:
            if target is not None:
                measure.page(settings, export, value, target, progress)
        except CkptdError as error:
            lost = error
    return value, lost


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """The whole numbers of a list, ascending. Raises UsageError."""
    try:
        numbers = {int(part) for part in text.split(",")}
    except ValueError:
        numbers = {0}
    if min(numbers) < 1 or max(numbers) > LARGEST[option]:
        raise UsageError(
            FaultCode.BAD_OPTION, f"use {option}", f"{text!r} is not a list of whole numbers from 1 to {LARGEST[option]}",
            f"write them with commas and without spaces, for example {option} 1,4",
        )  # fmt: skip
    return tuple(sorted(numbers))
