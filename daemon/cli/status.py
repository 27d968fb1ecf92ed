"""The verbs that show what the daemon does and has done: `status`, `list`, `show`, `logs`. Thin; `daemon.cli.main` registers them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli import queue
from daemon.cli.common import ConfigOption, JsonOption, command_for, configuration_of, daemon_place, daemon_state, print_json
from daemon.cli.exit_codes import EXIT_FAILED, EXIT_TEMPORARY
from daemon.cli.parser.groups import place
from daemon.cli.views.markup import say
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.language.catalog import to_translate, translated, translated_plural
from daemon.operating.monitoring.filter import STATES, Filter

if TYPE_CHECKING:
    from daemon.config.places.instances import Instance
    from daemon.operating.monitoring.status import DaemonState, Snapshot


def register(app: typer.Typer) -> None:
    """Add the verbs to the command line."""
    app.command("status", **place("status", "ckptd status --watch"))(status)
    app.command("list", **place("list", "ckptd list --run 'code-*' --state failed --since 3d"))(list_)
    app.command("show", **place("show", "ckptd show my-run/500"))(show)
    app.command("logs", **place("logs", "ckptd logs --follow --job my-run/500 --stage merge"))(logs)


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
    from daemon.operating.monitoring.status import rows, snapshot

    wanted = Filter.of(run, state or (), since)
    jobs = [job for job in rows(snapshot(daemon_state(config), limit=10_000)) if wanted.takes(job)]
    if json_:
        print_json(jobs)
    else:
        from daemon.cli.views.status import print_jobs
        from daemon.operating.wording.exports import NONE

        print_jobs(jobs, none=to_translate("no export matches") if wanted != Filter() else NONE)


def show(
    job: queue.JobArgument,
    config: ConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """Show one export: stages, attempts, errors, folder."""
    from daemon.operating.monitoring.meant import find_job

    value = find_job(daemon_state(config), job, by_hand=True)
    if json_:
        print_json(value)
    else:
        from daemon.cli.views.details import print_job

        print_job(value)


def logs(
    config: ConfigOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing new lines.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of latest lines to show first.")] = 50,
    job: Annotated[str | None, typer.Option("--job", help="Only the lines of this job.")] = None,
    stage: Annotated[str | None, typer.Option("--stage", help="Instead, what this stage of the job prints, wherever it runs.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Instead, what the job's delivery to this target prints.")] = None,
    json_: JsonOption = False,
) -> None:
    """Show the daemon's log, or that of a stage or a delivery."""
    from daemon.cli.views.logs import print_log, print_stage_log
    from daemon.config.places.paths import StatePaths

    state = daemon_state(config)
    if stage is not None:
        from daemon.operating.monitoring.meant import attempted_at

        print_stage_log(attempted_at(state, job, stage), queue.scheduler_says(config), follow=follow, lines=lines, as_json=json_)
        return
    if target is not None:
        from daemon.operating.monitoring.meant import delivered_at

        print_stage_log(delivered_at(state, job, target), lambda log: "", follow=follow, lines=lines, as_json=json_)
        return
    log, id = StatePaths(state).log, ""
    if job is not None:
        from daemon.operating.monitoring.meant import in_log

        log, id = in_log(state, job)
    print_log(log, follow=follow, lines=lines, job=id, as_json=json_)
