"""What people see in the terminal: tables, progress, readable logs. Plain lines where there is no terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from daemon.checkpoints.inspection import Inspection
from daemon.cli.markup import escape, escape_lines, say, say_error, terminal
from daemon.contract.jobs.figures import ArtifactFigures, figures_of
from daemon.contract.values import Json
from daemon.system.box import human

if TYPE_CHECKING:
    from rich.console import Console

    from daemon.journal.overview import TargetState
    from daemon.journal.rows import StageRow
    from daemon.operating.doctor import Diagnosis, FormatsHere, ProcessorHere
    from daemon.operating.live import RootState
    from daemon.operating.status import JobDetails, JobStatus, Snapshot
    from daemon.running.children import Running

STATE_STYLE = {
    "succeeded": "green", "passed": "green", "running": "cyan", "partial": "yellow", "unverified": "yellow", "failed": "red",
    "pending": "dim", "waiting": "dim", "skipped": "dim", "superseded": "dim",
}  # fmt: skip
LEVEL_STYLE = {"debug": "dim", "info": "", "warning": "yellow", "error": "bold red", "critical": "bold red"}


def styled(state: str) -> str:
    """A state in its colour, as rich markup."""
    style = STATE_STYLE.get(state)
    return f"[{style}]{state}[/{style}]" if style else escape(state)


class ExportView:
    """The progress of one export on stderr: a bar a stage on a terminal, a line a change elsewhere."""

    def __init__(self, found: Inspection, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = terminal(stderr=True)
        self._live = self._console.is_terminal and not quiet
        self._said: dict[str, str] = {}
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            SpinnerColumn(finished_text=" "), TextColumn("{task.description:<10}"), BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"), TimeElapsedColumn(), console=self._console,
        )  # fmt: skip
        if not quiet:
            self._console.print(f"[bold]{escape(found.path.parent.name)}[/bold] step {found.step}: {escape(str(found.path))}")
        if self._live:
            self._progress.start()

    def say(self, message: str) -> None:
        """A line of its own."""
        if not self._quiet:
            self._console.print(escape(message))

    def show(self, stages: Mapping[str, StageRow], running: Sequence[Running]) -> None:
        """Bring the display up to date."""
        active = {one.stage: one for one in running}
        for name, stage in stages.items():
            if self._live:
                self._bar(name, stage, active.get(name))
            elif not self._quiet:
                self._line(name, "running" if name in active else stage.state, stage)

    def _bar(self, name: str, stage: StageRow, running: Running | None) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=1.0, note="", start=False)
        bar = self._bars[name]
        if running is not None:
            self._progress.start_task(bar)
            said = running.progress
            self._progress.update(bar, completed=said.fraction, note=escape(said.message)[:50])
        elif stage.state != "waiting":
            self._progress.update(bar, completed=1.0 if stage.state == "succeeded" else None, note=styled(stage.state))
            self._progress.stop_task(bar)

    def _line(self, name: str, state: str, stage: StageRow) -> None:
        if state == "waiting" or self._said.get(name) == state:
            return
        self._said[name] = state
        seconds = f" in {stage.result.seconds:.1f} s" if stage.result else ""
        self._console.print(f"{escape(name)}: {state}{seconds}")

    def close(self) -> None:
        """End the live display."""
        if self._live:
            self._progress.stop()

    def finish(self, job: JobStatus, report: Json | None) -> None:
        """The verdicts, and where the export lies."""
        if self._quiet:
            return
        if report:
            terminal().print(artifact_table(report))
        for stage in job.stages:
            if stage.error and stage.state == "failed":
                self._console.print(f"[red]{escape(stage.error)}[/red]")
        for failure in _rejections(report):
            self._console.print(f"[yellow]{escape(failure)}[/yellow]")
        terminal(soft_wrap=True).print(f"{styled(job.state)}: {escape(job.target)}")


def _rejections(report: Json | None) -> list[str]:
    artifacts = (report or {}).get("artifacts", [])
    return [f"{one['variant']}: {'; '.join(one['reasons'])}" for one in artifacts if one["verdict"] != "passed" and one.get("reasons")]


def _figure(value: Any, pattern: str) -> str:
    return pattern.format(value) if isinstance(value, int | float) else "–"


def _percent(share: Any) -> str:
    return _figure(share * 100 if isinstance(share, int | float) else None, "{:.4g}%")


def artifact_table(report: Json) -> Table:
    """A row per artifact of a report: size, error, agreement and speed beside PyTorch's. Fits 80 columns."""
    table = Table(header_style="bold", box=None, pad_edge=False, collapse_padding=True)
    for title in ("artifact", "verdict"):
        table.add_column(title, no_wrap=True)
    for title in ("size", "× base", "error", "agree", "tok/s", "PyTorch"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in report.get("artifacts", []):
        figures = figures_of(one.get("figures"), ArtifactFigures) or ArtifactFigures()
        table.add_row(
            escape(one["variant"]), styled(one["verdict"]), human(one["size_bytes"]) if one.get("size_bytes") else "–",
            _figure(one.get("size_ratio"), "{:.2f}×"), _figure(figures.error_max, "{:.1g} σ"),
            _percent(figures.agreement), _figure(figures.tokens_per_second, "{:.0f}"),
            _figure(figures.pytorch_tokens_per_second, "{:.0f}"),
        )  # fmt: skip
    return table


PASSED_OVER = 5
"""Directories of one kind that `ckptd status` lists; `--all` lists them all."""


def _state_of(root: RootState) -> str:
    if root.silent_seconds is not None:
        return f", [red]its file system has not answered for {root.silent_seconds:.0f} s[/red]: look at the mount and its server"
    return "" if root.exists else ", [yellow]does not exist yet[/yellow]"


def print_status(value: Snapshot, *, everything: bool = False) -> None:
    """`ckptd status`; of what may be thousands the first few and a count, unless `everything` is asked for."""
    most = None if everything else PASSED_OVER
    console = terminal()
    daemon = value.daemon
    if daemon.running:
        verdict = daemon.verdict or ("healthy" if daemon.healthy else "unwell")
        health = verdict if verdict == "healthy" else f"[red]{escape(verdict)}[/red]"
        console.print(f"[green]running[/green] (pid {daemon.pid}, since {escape(str(daemon.started))}, {health})")
    else:
        console.print("[yellow]not running[/yellow]: start it with `ckptd run --config FILE`")
    for notice in _notices(value):
        console.print(notice)
    for root in value.roots:
        console.print(f"root   {escape(root.path)} ({escape(root.backend)}{_state_of(root)})")
    for one in value.incomplete[:most]:
        console.print(f"[yellow]incomplete[/yellow] {escape(one.path)} for {one.seconds} s: {escape('; '.join(one.missing))}")
    if more := len(value.incomplete[PASSED_OVER:]) * (not everything):
        console.print(f"[yellow]and {more} more that are incomplete[/yellow]; `ckptd status --all` lists them")
    for path, why in list(value.passed_over.items())[:most]:
        console.print(f"[yellow]seen, not watched[/yellow] {escape(path)}: {escape(why)}")
    if len(value.passed_over) > PASSED_OVER and not everything:
        console.print(f"[yellow]and {len(value.passed_over) - PASSED_OVER} more that are seen and not watched[/yellow]")
    for path, why in list(value.unreadable.items())[:most]:
        console.print(f"[red]not readable[/red] {escape(path)}: {escape(why)}", soft_wrap=True)
    if len(value.unreadable) > PASSED_OVER and not everything:
        console.print(f"[red]and {len(value.unreadable) - PASSED_OVER} more that can't be read[/red]")
    for row in value.lost[:most]:
        console.print(f"[red]lost[/red]   {escape(row.path)} at {escape(row.last_seen)}: deleted {row.lived:.1f} s after it was first seen")
    for again in value.rewritten[:most]:
        console.print(f"[yellow]no export ends[/yellow] {escape(again.sentence())}")
    waiting = value.outbox.get("pending", 0)
    if waiting:
        console.print(f"[yellow]{waiting} notification{'s wait' if waiting != 1 else ' waits'} for delivery[/yellow]")
    for target in value.notified:
        if target.failures or target.given_up:
            console.print(_trouble_of(target))
    print_jobs(value.jobs)


def _trouble_of(target: TargetState) -> str:
    """Why a service does not get its notifications, and how many it did not get."""
    said = [f"{target.waiting} wait"] if target.waiting else []
    said += [f"{target.given_up} given up within a week"] if target.given_up else []
    error = f": {escape(target.error)}" if target.error else ""
    return f"[yellow]not notified[/yellow] {escape(target.target)} ({', '.join(said) or 'nothing waits'}){error}"


def _notices(value: Snapshot) -> list[str]:
    """What a person should know before anything else."""
    notices = [f"[red]no room[/red] {escape(one.sentence())}; work waits until there is. {escape(one.delete)}" for one in value.disks]
    notices += [f"[red]unwell[/red] {escape(why)}" for why in value.daemon.unwell]
    notices += [f"[yellow]thread[/yellow] at {one.at}: {escape(one.sentence())} It was begun again." for one in value.daemon.deaths]
    if value.last_end is not None:
        notices.append(f"[red]ckptd ended by itself[/red] at {value.last_end.at}. {escape(value.last_end.why)}")
    if value.paused:
        notices.append(f"[yellow]paused[/yellow] since {escape(str(value.paused))}: no stage is started; `ckptd resume` lets it go on")
    if (loaded := value.daemon.configuration) and loaded.problem:
        notices.append(f"[red]the last reload was refused[/red]: {escape(loaded.problem)}")
    if (journal := value.daemon.journal) and journal.problem:
        notices.append(f"[red]journal[/red] {escape(journal.problem)}")
    if value.journal:
        rebuilt = value.journal
        notices.append(
            f"[yellow]the journal was damaged and rebuilt[/yellow] from {escape(str(rebuilt.get('from')))}"
            f" at {escape(str(rebuilt.get('at')))};"
            f" the damaged file is {escape(str(rebuilt.get('set_aside')))}"
        )
    return notices


def print_jobs(jobs: Sequence[JobStatus]) -> None:
    """A row per job."""
    console = terminal()
    if not jobs:
        console.print("no checkpoint has been taken yet")
        return
    table = Table(header_style="bold", box=None, pad_edge=False)
    for title in ("job", "run", "step", "loss", "state", "now", "artifacts"):
        table.add_column(title, overflow="fold", no_wrap=title in ("job", "step", "state"))
    for job in jobs:
        active = next((stage for stage in job.stages if stage.state == "running"), None)
        what = f"{escape(active.name)} {100 * (active.fraction or 0):.0f} %" if active else ""
        what = "[yellow]paused[/yellow]" if job.paused and not active and job.state in ("pending", "running") else what
        verdicts = " ".join(f"{escape(name)}:{styled(verdict)}" for name, verdict in job.artifacts.items())
        loss = "–" if job.loss is None else f"{job.loss:.3f}"
        table.add_row(escape(job.id), escape(job.run), "final" if job.ending else str(job.step), loss, styled(job.state), what, verdicts)
    console.print(table)
    for job in jobs:
        for text, style in ((job.waiting_for, "yellow"), (job.error, "red"), *((text, "yellow") for text in job.warnings)):
            if text:
                console.print(f"[{style}]{escape(job.id)}: {escape(text)}[/{style}]")


def print_job(job: JobDetails) -> None:
    """`ckptd show`."""
    console = terminal()
    for key in (
        "id", "run", "step", "epoch", "loss", "best_metric", "state", "method", "rank", "base", "checkpoint", "target", "created",
        "started", "ended",
    ):  # fmt: skip
        if (value := getattr(job, key)) is not None:
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            console.print(f"[bold]{key:<11}[/bold] {styled(text) if key == 'state' else escape(text)}", soft_wrap=True)
    table = Table(header_style="bold", box=None, pad_edge=False)
    for title in ("stage", "state", "attempts", "seconds", "error"):
        table.add_column(title, overflow="fold")
    for stage in job.stages:
        seconds = "" if stage.seconds is None else f"{stage.seconds:.1f}"
        table.add_row(escape(stage.name), styled(stage.state), str(stage.attempts), seconds, escape(stage.error or ""))
    console.print(table)
    for attempt in job.attempts:
        if attempt.outcome not in ("succeeded", None):
            console.print(f"{escape(attempt.stage)} attempt {attempt.number}: {attempt.outcome}; log {escape(attempt.log)}", soft_wrap=True)
    failed = [attempt for attempt in job.attempts if attempt.outcome in ("retryable", "permanent")]
    if failed and job.state in ("failed", "partial"):
        console.print(f"To run the last failed one by hand: python -m handlers {escape(failed[-1].job_file)}", soft_wrap=True)


def print_log(file: Path, *, follow: bool, lines: int, job: str, as_json: bool) -> None:
    """`ckptd logs`."""
    from daemon.operating.logs import follow as records

    console = terminal(soft_wrap=True)
    if not file.exists():
        say_error(f"There is no log yet at {file}; the daemon writes it when it runs.")
        if not follow:
            return
    try:
        for record in records(file, tail=lines, forever=follow):
            if job and not str(record.get("job", "")).startswith(job):
                continue
            if as_json:
                say(json.dumps(record))
            else:
                console.print(log_line(record))
    except KeyboardInterrupt:
        return


def log_line(record: Json) -> str:
    """One record as a readable line of rich markup."""
    rest = {key: value for key, value in record.items() if key not in ("timestamp", "level", "event", "logger", "exception")}
    level = str(record.get("level", "info"))
    when = str(record.get("timestamp", ""))[11:19]
    where = " ".join(f"{key}={escape(str(rest.pop(key)))}" for key in ("run", "step", "stage", "attempt") if key in rest)
    rest.pop("job", None)
    details = " ".join(f"{key}={escape(str(value))}" for key, value in rest.items() if value is not None)
    style = LEVEL_STYLE.get(level, "")
    event = escape(str(record.get("event", "")))
    text = f"[dim]{escape(when)}[/dim] {escape(level):<7} {f'[{style}]{event}[/{style}]' if style else event}"
    text += f" [cyan]{where}[/cyan]" if where else ""
    text += f" [dim]{details}[/dim]" if details else ""
    return text + (f"\n{escape_lines(str(record['exception']))}" if record.get("exception") else "")


def print_check(value: Diagnosis) -> None:
    """`ckptd check`."""
    console = terminal(soft_wrap=True)
    for key, fact in value.facts.items():
        console.print(f"[bold]{key:<18}[/bold] {escape(str(fact))}")
    for problem in value.problems:
        console.print(f"[red]wrong[/red]  {escape(problem)}")
    for warning in value.warnings:
        console.print(f"[yellow]note[/yellow]   {escape(warning)}")
    if not value.problems:
        console.print("[green]The configuration is valid.[/green]")


def print_formats(value: FormatsHere) -> None:
    """`ckptd formats`."""
    table = Table(header_style="bold", box=None, pad_edge=False)
    for title in ("variant", "here", "what it is", "package"):
        table.add_column(title, overflow="fold")
    for name, row in value.variants.items():
        here = "[yellow]yes, and can't be checked[/yellow]" if row.check_needs else "[green]yes[/green]"
        lacks = f"[yellow]lacks {escape(', '.join(row.lacks))}[/yellow]" if row.lacks else "[red]no, see below[/red]"
        table.add_row(escape(name), here if row.available else lacks, escape(row.about), escape(row.package))
    console = terminal(soft_wrap=True)
    console.print(table)
    for name, row in value.variants.items():
        for need in row.check_needs:
            console.print(f"[yellow]{escape(name)} can't be checked here: {escape(need)}[/yellow]")
    for name, chain in value.toolchains.items():
        hint = f"{escape(chain.state)}; `{escape(chain.command or '')}`"
        state = "[green]installed[/green]" if chain.installed else f"[yellow]{hint}[/yellow]"
        console.print(f"toolchain {escape(name)}: {state} ({escape(chain.about)})")
    wrong = [f"{name} can't be made or checked: {flaw}" for name, row in value.variants.items() for flaw in row.wrong]
    for problem in (*value.problems, *wrong):
        console.print(f"[red]{escape(problem)}[/red]")
    _print_doubts(console, value.processor)


def _print_doubts(console: Console, processor: ProcessorHere) -> None:
    """What a check on this box's processor leaves open for others; variants with the same text share a line."""
    names = " ".join(processor.features) or "of unknown instruction sets"
    console.print(f"processor: {escape(processor.model or processor.architecture)} ({escape(names)})", soft_wrap=False)
    kernels = ", ".join(processor.not_run)
    console.print(f"not run on this processor, proved from the weights for int8 variants: {escape(kernels)}", soft_wrap=False)
    variants: dict[str, list[str]] = {}
    for variant, doubt in processor.doubts.items():
        variants.setdefault(doubt, []).append(variant)
    for doubt, those in variants.items():
        console.print(f"checked only for processors like this one: {escape(', '.join(those))}: {escape(doubt)}", soft_wrap=False)
