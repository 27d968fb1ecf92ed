"""What people see in the terminal: tables, progress, readable logs. Plain lines where there is no terminal."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from daemon.checkpoints.inspection import Inspection
from daemon.cli.views.markup import escape, put, say_error, say_whole, styled, terminal
from daemon.contract import units
from daemon.contract.advice.merits import in_words
from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.figures import ArtifactFigures, figures_of
from daemon.contract.language.catalog import language, to_translate, translated, translated_text
from daemon.contract.language.lists import labelled, sentences, spaced
from daemon.contract.language.lists import names as list_names
from daemon.contract.values import Json, text_at
from daemon.operating.log.wrapping import width_of
from daemon.operating.monitoring.outlook import about, stage_left, starved, starving
from daemon.running.rules.ready import describe

if TYPE_CHECKING:
    from daemon.journal.rows import StageRow
    from daemon.operating.monitoring.status import JobStatus
    from daemon.running.attempts.children import Running


_RETRY = re.compile(r"run `?ckptd (?:queue )?retry(?: JOB)?`?(?: with the export's id| on the job)?")
_SHOW = re.compile(r"`?ckptd (?:show|logs)(?: JOB)?`?")


class _Elapsed(ProgressColumn):
    """How long a stage has run, or took; nothing for one that was not begun."""

    def render(self, task: Task) -> Text:
        """The cell of one stage."""
        seconds = task.finished_time if task.finished else task.elapsed
        return Text("" if seconds is None else units.running(seconds), style="progress.elapsed", justify="right")


def note_of(running: Running) -> str:
    """What a running stage does, about how long it takes yet by its own progress, and whether it gets the CPU time that it could use."""
    said, cpu = running.progress, running.cpu
    left = stage_left(None, time.monotonic() - running.began, said.fraction, cpu)
    parts = (
        [translated_text(said.message)]
        + ([spaced(translated("{time} left").format(time=translated_text(about(left))))] if left is not None else [])
        + ([translated_text(starving(cpu, running.priority))] if cpu and starved(cpu) else [])
    )
    return sentences(parts)


class ExportView:
    """The progress of one export on stderr: a bar a stage on a terminal, a line a change elsewhere."""

    def __init__(self, inspection: Inspection, log: Path, *, quiet: bool) -> None:
        """`log`: where the log of this export goes."""
        self._quiet = quiet
        self._log = log
        self._console = terminal(stderr=True)
        self._live = self._console.is_terminal and not quiet
        self._said: dict[str, str] = {}
        self._begun = False
        """The stages were shown once: what has ended by then was made by an earlier command."""
        self._waits_for = ""
        self._bars: dict[str, TaskID] = {}
        self._progress = Progress(
            SpinnerColumn(finished_text=" "), TextColumn("{task.description:<10}"), BarColumn(bar_width=24),
            _Elapsed(), TextColumn("{task.fields[note]}"), console=self._console,
        )  # fmt: skip
        if not quiet:
            step = translated("step {step}").format(step=inspection.step)
            put(self._console, f"[bold]{escape(inspection.path.parent.name)}[/bold] {labelled(step, escape(str(inspection.path)))}")
        if self._live:
            self._progress.start()

    def say(self, message: str) -> None:
        """A line of its own."""
        if not self._quiet:
            put(self._console, escape(message))

    def show(self, stages: Mapping[str, StageRow], running: Sequence[Running], waiting: Fault | None = None) -> None:
        """Bring the display up to date. `waiting`: why the export as a whole waits, if that lasts; it is said once."""
        active = {attempt.stage: attempt for attempt in running}
        for name, stage in stages.items():
            if self._live:
                self._bar(name, stage, active.get(name))
            elif not self._quiet:
                self._line(name, "running" if name in active else stage.state, stage)
        self._begun = True
        if waiting is not None and waiting.code != self._waits_for:
            self._waits_for = waiting.code
            self.say(translated_text(describe(waiting)))

    def _bar(self, name: str, stage: StageRow, running: Running | None) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=1.0, note="", start=False)
        bar = self._bars[name]
        if running is not None:
            self._progress.start_task(bar)
            self._progress.update(bar, completed=running.progress.fraction, note=escape(note_of(running)))
        elif stage.state != "waiting":
            note = translated("reused") if stage.state == "succeeded" and not stage.attempts else styled(stage.state)
            self._progress.update(bar, completed=1.0 if stage.state == "succeeded" else None, note=note)
            self._progress.stop_task(bar)
        elif stage.fault is not None:
            self._progress.update(
                bar, note=escape(translated("{cause}; it is tried again").format(cause=translated_text(stage.fault.cause)))
            )

    def _line(self, name: str, state: str, stage: StageRow) -> None:
        tried = f"waiting {stage.failures}" if state == "waiting" and stage.fault is not None else state
        if tried == "waiting" or self._said.get(name) == tried:
            return
        made_before = state == "succeeded" and (not stage.attempts or not self._begun)
        self._said[name] = tried
        if state == "waiting":
            assert stage.fault is not None
            line = translated("{name}: is tried again. {sentence}").format(name=name, sentence=translated_text(stage.fault.sentence()))
            put(self._console, escape(line))
        elif made_before:
            self._console.print(labelled(escape(name), translated("was made before") if stage.attempts else translated("reused")))
        else:
            before = " " if language() == "en" else "，"
            took = translated("in {time}").format(time=units.duration(stage.result.seconds)) if stage.result else ""
            seconds = before + took if took else ""
            self._console.print(labelled(escape(name), f"{translated(state)}{seconds}"))

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
        errors = [stage.error for stage in job.stages if stage.error and stage.state == "failed"]
        if not errors and report is None and job.state == "failed" and job.error:
            errors = [job.error]  # it was made, and could not be published
        for error in dict.fromkeys(errors):
            put(self._console, f"[red]{escape(translated_text(self.advice(error)))}[/red]")
        for line in (*_rejections(report), *_replacements(report)):
            put(self._console, f"[yellow]{escape(line)}[/yellow]")
        if any(stage.state == "failed" for stage in job.stages):
            line = translated("The log of this export is {log}; the logs of its attempts lie in {folder}.")
            put(self._console, escape(line.format(log=self._log, folder=self._log.parent / "jobs")))
        if best := _to_deploy(report):
            put(terminal(), escape(translated("Deploy {artifact}; report.html says why.").format(artifact=best)))
        terminal(soft_wrap=True).print(labelled(styled(job.state), escape(job.target)))

    def advice(self, sentence: str) -> str:
        """A sentence that is written for the daemon's exports, as it holds for this one, which no other command knows."""
        return _SHOW.sub(str(self._log), _RETRY.sub("run the same command again", sentence))


def _to_deploy(report: Json | None) -> str | None:
    """The artifact that the report recommends, with what speaks for it."""
    best = text_at(report, "recommendation", "best", "sentence")
    return in_words(best.rstrip(".")) if best else None


def _rejections(report: Json | None) -> list[str]:
    """Why artifacts were rejected: each reason once, with the variants that it was given for."""
    variants: dict[str, list[str]] = {}
    for artifact in (report or {}).get("artifacts", []):
        if artifact["verdict"] != "passed" and artifact.get("reasons"):
            variants.setdefault("; ".join(artifact["reasons"]), []).append(artifact["variant"])
    return [labelled(list_names(names), translated_text(why)) for why, names in variants.items()]


def _replacements(report: Json | None) -> list[str]:
    """What took the place of what, or why nothing did."""
    stories = (report or {}).get("replaced", [])
    line = translated("{taken} takes the place of {asked}")
    return [line.format(taken=story["taken"], asked=story["asked"]) for story in stories if story["taken"]] + [
        translated_text(str(story["sentence"])) for story in stories if not story["taken"]
    ]


def artifact_table(report: Json) -> Table:
    """A row per artifact of a report: size, error, agreement, and speed, which is also said in times that of PyTorch. Fits 80 columns."""
    shown = Table(header_style="bold", box=None, pad_edge=False, collapse_padding=True)
    for title in (to_translate("artifact"), to_translate("verdict")):
        shown.add_column(translated(title), no_wrap=True)
    for title in (
        to_translate("size"),
        to_translate("× base"),
        to_translate("error"),
        to_translate("agree"),
        to_translate("tok/s"),
        to_translate("speed"),
    ):
        shown.add_column(translated(title), justify="right", no_wrap=True)
    for artifact in report.get("artifacts", []):
        figures = figures_of(artifact.get("figures"), ArtifactFigures) or ArtifactFigures()
        shown.add_row(
            escape(artifact["variant"]), styled(artifact["verdict"]), units.size(artifact.get("size_bytes") or None),
            units.times(artifact.get("size_ratio")), units.sigma(figures.error_max), units.percent(figures.agreement),
            units.number(figures.tokens_per_second), units.times(figures.speed_over_pytorch),
        )  # fmt: skip
    return shown


def print_log(file: Path, *, follow: bool, lines: int, job: str, as_json: bool) -> None:
    """`ckptd logs`."""
    from daemon.operating.log.log_line import log_lines
    from daemon.operating.log.logs import follow as records

    console = terminal(soft_wrap=True)
    if not file.exists():
        say_error(translated("There is no log yet at {file}; the daemon writes it when it runs.").format(file=file))
        if not follow:
            return
    try:
        for record in records(file, tail=lines, forever=follow, job=job):
            if as_json:
                say_whole(json.dumps(record))
            else:
                for line in log_lines(record, width_of(console)):
                    console.print(line)
    except KeyboardInterrupt:
        return
