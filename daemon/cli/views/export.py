"""What `ckptd export` shows: the progress of its stages, then the verdicts and where the export lies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from daemon.checkpoints.inspection import Inspection
from daemon.cli.views.markup import escape, put, styled, terminal
from daemon.cli.views.tables import artifact_table
from daemon.contract import units
from daemon.contract.advice.merits import in_words
from daemon.contract.language.catalog import language, translated, translated_text
from daemon.contract.language.lists import labelled, sentences
from daemon.contract.language.lists import names as list_names
from daemon.contract.values import Json, text_at
from daemon.journal.states import ENDED_STAGE
from daemon.operating.monitoring.outlook import starved, starving

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress_bar import ProgressBar

    from daemon.journal.rows import StageRow
    from daemon.operating.monitoring.live import StageProgress
    from daemon.operating.monitoring.status import JobStatus


_WIDE, _WIDE_BAR, _BAR = 100, 24, 12
"""Cells of a terminal from which on there is room for a long bar; those of a long and of a short bar."""
_RETRY = re.compile(r"run `?ckptd (?:queue )?retry(?: JOB)?`?(?: with the export's id| on the job)?")
_OUTPUT, _OTHER_OUTPUT = re.compile("set output\\.directory to a larger disk"), "give another folder with --output"
_SHOW = re.compile(r"`?ckptd (?:show|logs)(?: JOB)?`?")


class _Spinner(SpinnerColumn):
    """Turns beside a stage that runs."""

    def render(self, task: Task) -> RenderableType:
        """The cell of one stage."""
        return super().render(task) if task.started and task.stop_time is None else Text(" ")


class _Bar(BarColumn):
    """How far a stage is; nothing for one that was not begun."""

    def render(self, task: Task) -> ProgressBar | Text:  # type: ignore[override]
        """The cell of one stage."""
        return super().render(task) if task.started else Text(" " * (self.bar_width or 0))


class _Elapsed(ProgressColumn):
    """How long a stage has run, or took; nothing for one that was not begun."""

    def render(self, task: Task) -> Text:
        """The cell of one stage."""
        seconds = task.finished_time if task.finished else task.elapsed
        return Text("" if seconds is None else units.running(seconds), style="progress.elapsed", justify="right")


class Wait(NamedTuple):
    """Why an export as a whole waits."""

    kind: str
    """What stays the same while the figures in the sentence change."""
    sentence: str


def note_of(running: StageProgress) -> str:
    """What a running stage does, and whether it gets the CPU time that it could use."""
    cpu = running.share
    starves = [translated_text(starving(cpu, running.priority))] if cpu and starved(cpu) else []
    return sentences([translated_text(running.message), *starves])


def stages_display(console: Console) -> Progress:
    """A line a stage. A long note is cut, never a stage's name; only what runs moves, and only what was begun has a bar."""
    bar = _WIDE_BAR if console.width >= _WIDE else _BAR
    return Progress(
        _Spinner(finished_text=" "), TextColumn("{task.description:<10}", table_column=Column(no_wrap=True)), _Bar(bar_width=bar),
        _Elapsed(), TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")), console=console,
        expand=True,
    )  # fmt: skip


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
        self._progress = stages_display(self._console)
        if not quiet:
            step = translated("step {step}").format(step=inspection.step)
            put(self._console, f"[bold]{escape(inspection.path.parent.name)}[/bold] {labelled(step, escape(str(inspection.path)))}")
        if self._live:
            self._progress.start()

    def say(self, message: str) -> None:
        """A line of its own."""
        if not self._quiet:
            put(self._console, escape(message))

    def show(self, stages: Mapping[str, StageRow], running: Mapping[str, StageProgress], waiting: Wait | None = None) -> None:
        """Bring the display up to date. `running`: of the stages that run. `waiting`: if the export's wait lasts; it is said once."""
        for name, stage in stages.items():
            if self._live:
                self._bar(name, stage, running.get(name))
            elif not self._quiet:
                self._line(name, "running" if name in running else stage.state, stage)
        self._begun = True
        if waiting is not None and waiting.kind != self._waits_for:
            self._waits_for = waiting.kind
            self.say(translated_text(waiting.sentence))

    def _bar(self, name: str, stage: StageRow, running: StageProgress | None) -> None:
        if name not in self._bars:
            self._bars[name] = self._progress.add_task(name, total=1.0, note="", start=False)
        bar = self._bars[name]
        if running is not None:
            self._progress.start_task(bar)
            self._progress.update(bar, completed=running.fraction, note=escape(note_of(running)))
        elif stage.state in ENDED_STAGE:
            note = translated("reused") if stage.state == "succeeded" and not stage.attempts else styled(stage.state)
            self._progress.update(bar, completed=1.0 if stage.state == "succeeded" else None, note=note)
            if stage.state != "skipped":
                self._progress.stop_task(bar)
        elif stage.state == "waiting" and stage.fault is not None:
            self._progress.reset(
                bar, start=False, note=escape(translated("{cause}; it is tried again").format(cause=translated_text(stage.fault.cause)))
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
        for line in (*_rejections(report, errors), *_replacements(report)):
            put(self._console, f"[yellow]{escape(line)}[/yellow]")
        if any(stage.state == "failed" for stage in job.stages):
            line = translated("The log of this export is {log}; the logs of its attempts lie in {folder}.")
            put(self._console, escape(line.format(log=self._log, folder=self._log.parent / "jobs")))
        if best := _to_deploy(report):
            put(terminal(), escape(translated("Deploy {artifact}; report.html says why.").format(artifact=best)))
        terminal(soft_wrap=True).print(labelled(styled(job.state), escape(job.target)))

    def advice(self, sentence: str) -> str:
        """A sentence that is written for the daemon's exports, as it holds for this one, which no other command knows."""
        return _SHOW.sub(str(self._log), _RETRY.sub("run the same command again", _OUTPUT.sub(_OTHER_OUTPUT, sentence)))


def _to_deploy(report: Json | None) -> str | None:
    """The artifact that the report recommends, with what speaks for it."""
    best = text_at(report, "recommendation", "best", "sentence")
    return in_words(best.rstrip(".")) if best else None


def _rejections(report: Json | None, errors: Sequence[str]) -> list[str]:
    """Why artifacts were rejected: each reason once, with the variants that it was given for, but for those that `errors` say already."""
    variants: dict[str, list[str]] = {}
    for artifact in (report or {}).get("artifacts", []):
        reasons = [reason for reason in artifact.get("reasons") or () if not _is_said(reason, errors)]
        if artifact["verdict"] != "passed" and reasons:
            variants.setdefault("; ".join(reasons), []).append(artifact["variant"])
    return [labelled(list_names(names), translated_text(why)) for why, names in variants.items()]


def _is_said(reason: str, errors: Sequence[str]) -> bool:
    """Whether a reason is the cause of one of the errors: "it was not made: STAGE failed: CAUSE"."""  # fmt: skip
    return reason.startswith("it was not made: ") and any(reason.split(": ", 2)[-1] in error for error in errors)


def _replacements(report: Json | None) -> list[str]:
    """What took the place of what, or why nothing did."""
    stories = (report or {}).get("replaced", [])
    line = translated("{taken} takes the place of {asked}")
    return [line.format(taken=story["taken"], asked=story["asked"]) for story in stories if story["taken"]] + [
        translated_text(str(story["sentence"])) for story in stories if not story["taken"]
    ]
