"""What `ckptd explain` prints: one checkpoint in full, or a line for each checkpoint of a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from daemon.cli.views.layout import Cell, Column, table
from daemon.cli.views.markup import escape, put, put_field, terminal
from daemon.contract import units
from daemon.contract.faults.text import local_time
from daemon.contract.language.catalog import language, translated, translated_text
from daemon.contract.language.lists import bracketed, labelled, verdicts_of
from daemon.operating.log.wrapping import width_of
from daemon.operating.monitoring.explain import CheckpointExplanation, ExportExplanation, FileRow, RunExplanation
from daemon.operating.wording.exports import describe_lost, open_limits

if TYPE_CHECKING:
    from rich.console import Console

_LISTED = 40
"""Files that are listed; a directory with more ends in how many more there are."""


def print_explanation(value: CheckpointExplanation | RunExplanation | ExportExplanation) -> None:
    """The answer of `daemon.operating.monitoring.explain.explain`, for people."""
    console = terminal(soft_wrap=True)
    if isinstance(value, ExportExplanation):
        _print_export(console, value)
    elif isinstance(value, RunExplanation):
        _print_run(console, value)
    else:
        _print_checkpoint(console, value)


def _print_export(console: Console, value: ExportExplanation) -> None:
    put(console, f"[bold]{escape(value.path)}[/bold]")
    line = translated("This is an export of {run}, step {step}, made of {checkpoint}; `ckptd show {path}` shows more.")
    path = escape(shlex.quote(value.path))
    put(console, line.format(run=escape(value.run), step=value.step, checkpoint=escape(value.checkpoint), path=path))


def _verdict(value: CheckpointExplanation) -> str:
    if value.refusal and value.complete:
        return f"[yellow]{translated('complete, but not exported in this form')}[/yellow]"
    return f"[green]{translated('complete')}[/green]" if value.complete else f"[yellow]{translated('incomplete')}[/yellow]"


def _recorded(value: CheckpointExplanation) -> str:
    """What the journal holds about it, as a clause; "" where it holds nothing."""
    known = value.journal
    if not known:
        return ""
    name = bracketed(known.job, _state(known.job_state)) if known.job and known.job_state else known.job
    job = translated(" as job {job}").format(job=name) if name else ""
    what = {
        "taken": translated("taken"), "known": translated("known already"), "skipped": translated("skipped"),
        "damaged": translated("reported as damaged"),
    }.get(known.verdict)  # fmt: skip
    where = "" if known.by == "daemon" else translated(" by `ckptd export`")
    then = "" if known.current else translated("; it has changed since")
    at = local_time(known.at, "seconds")
    return translated("{what}{job}{where} at {time}{then}").format(what=what or known.verdict, job=job, where=where, time=at, then=then)


def _state(state: str) -> str:
    """The state of a job; Chinese calls it as `ckptd list` does."""
    return translated("waiting" if state == "pending" and language() != "en" else state)


def _not_taken(value: CheckpointExplanation) -> str:
    """What is to come of a complete checkpoint that the journal knows nothing of."""
    if value.settles_in_seconds is None:
        return translated("not taken yet")
    by = "" if value.daemon_running else translated(", once a daemon runs")
    return translated("not taken yet: in {time}, unless it changes again{by}").format(time=units.running(value.settles_in_seconds), by=by)


def _print_run(console: Console, value: RunExplanation) -> None:
    put(console, f"[bold]{escape(value.path)}[/bold]")
    for row in value.checkpoints:
        name = row.path.removeprefix(value.path).lstrip("/") or "."
        about = translated_text("; ".join(row.missing) or row.refusal or "; ".join(row.unmergeable)) or _recorded(row) or _undecided(row)
        line = translated("{name}: {verdict}, {layout}, step {step}: {about}")
        layout = escape(row.layout or translated("nothing yet"))
        put(console, line.format(name=escape(name), verdict=_verdict(row), layout=layout, step=row.step, about=escape(about)))
    for problem in value.unreadable:
        put(console, f"[red]{escape(translated_text(problem))}[/red]")


def _undecided(row: CheckpointExplanation) -> str:
    """What becomes of a complete one of which the journal holds nothing."""
    if row.selected is None:  # only below a root, or without one, can it be told
        return translated("not watched: {why}").format(why=translated_text(row.unwatched or ""))
    return _not_taken(row) if row.selected.wanted else _choice(wanted=False, reason=row.selected.reason)


def _choice(*, wanted: bool, reason: str) -> str:
    return (translated("wanted: {reason}") if wanted else translated("not wanted: {reason}")).format(reason=translated_text(reason))


def _print_checkpoint(console: Console, value: CheckpointExplanation) -> None:
    def line(label: str, text: str, style: str = "") -> None:
        put_field(console, label, text, 10 if language() == "en" else 12, style)

    put(console, labelled(f"[bold]{escape(value.path)}[/bold]", _verdict(value)))
    writer = translated_text(value.writer or "")
    layout = translated("{layout} ({writer}), step {step}").format(layout=value.layout, writer=writer, step=value.step)
    line("layout", layout if value.layout else translated("not recognized yet"))
    if value.method:
        on_base = translated("{method} on {base}").format(method=value.method, base=value.base)
        line("model", on_base if value.base else value.method)
    if value.base_folder:
        line("base", translated("found: {folder}").format(folder=value.base_folder))
    if value.base_problem:
        line("base", translated_text(value.base_problem), "yellow")
    for problem in () if value.unreadable else value.missing:
        line("missing", translated_text(problem), "yellow")
    if value.incomplete_seconds is not None:
        line("since", translated("the daemon has seen it incomplete for {time}").format(time=units.duration(value.incomplete_seconds)))
    if value.quiet_seconds is not None:
        quiet = translated("the files that an export reads last changed {time} ago")
        line("quiet", quiet.format(time=units.duration(value.quiet_seconds)))
    if value.settles_in_seconds is not None:
        line("settles", translated("in {time}, unless it changes again").format(time=units.running(value.settles_in_seconds)))
    if value.unreadable:
        line("no right", translated_text(value.unreadable), "red")
    if value.refusal:
        line("refused", translated_text(value.refusal), "yellow")
    for problem in value.unmergeable:
        line("merge.add", translated_text(problem), "yellow")
    _print_decision(line, value)
    _print_files(console, value.files)


def _print_decision(line: Callable[..., None], value: CheckpointExplanation) -> None:
    line("journal", _recorded(value) or translated("knows nothing of it"))
    if value.journal and value.journal.artifacts:
        line("artifacts", verdicts_of(value.journal.artifacts))
        for variant, limits in value.journal.undecided.items():
            line("artifacts", labelled(variant, open_limits(limits)), "yellow")
        for text in describe_lost(value.journal.lost):
            line("failed", text, "yellow")
    if value.selected:
        line("select", _choice(wanted=value.selected.wanted, reason=value.selected.reason))
        if value.selected.warning:
            line("warning", translated_text(value.selected.warning), "yellow")
    if value.unwatched:
        line("watched", translated("no: {why}").format(why=translated_text(value.unwatched)), "yellow")
    elif not value.daemon_running:
        line("watched", translated("yes, but no daemon runs on this state directory"), "yellow")


def _print_files(console: Console, files: Sequence[FileRow]) -> None:
    rows = [
        [Cell(row.name), Cell("" if row.bytes is None else units.size(row.bytes)), Cell(translated("yes") if row.read else "")]
        for row in files[:_LISTED]
    ]
    columns = Column("file", "words"), Column("size", least=9, right=True), Column("read by an export", least=17)
    for line in (line for row in table(columns, rows, width_of(console)) for line in row):
        console.print(line, soft_wrap=True)
    if len(files) > _LISTED:
        put(console, translated("and {count} more").format(count=len(files) - _LISTED))
