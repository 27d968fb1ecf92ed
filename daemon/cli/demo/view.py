"""What the demo shows while it runs: pure functions from the trainings' state and a status snapshot to rich renderables and lines.

Called by `daemon.cli.demo`. On a terminal `live` is drawn again and again; elsewhere `Training.take` and `changes` give a line
for each thing that happens. Everything fits into 80 columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from daemon.contract import units
from daemon.contract.jobs.plan import find_spec
from daemon.contract.language.catalog import to_translate, translated, translated_text
from daemon.contract.language.lists import clauses, labelled
from daemon.contract.values import Json
from daemon.operating.monitoring.status import JobStatus, Snapshot

MARKS = {"succeeded": "✓", "failed": "✗", "running": "▸", "skipped": "–"}
STYLES = {"succeeded": "green", "passed": "green", "failed": "red", "partial": "yellow", "running": "cyan", "unverified": "yellow"}
ENDED = ("succeeded", "partial", "failed", "superseded")
LINE_EVERY = 0.25
"""Share of a training after which the line-by-line output speaks again."""
NAME_WIDTH, BAR_WIDTH = 16, 16


@dataclass
class Training:
    """A training as its events tell it."""

    title: str
    state: str = to_translate("waiting")
    step: int = 0
    fraction: float = 0.0
    first_loss: float | None = None
    loss: float | None = None
    about: str = ""
    saved: list[int] = field(default_factory=list)
    rotated: list[int] = field(default_factory=list)
    sample: tuple[str, str] | None = None
    """A prompt and what the trained base writes after it."""
    _next_line: float = 0.0

    def take(self, event: Json) -> str | None:
        """Take in one event; give the line that says so where a line is due, else None."""
        kind = event.get("event")
        if kind == "corpus":
            self.state = to_translate("reading")
            self.about = translated("{count:,} docstrings of the standard library").format(count=event["docstrings"])
            return labelled(self.title, self.about)
        if kind == "tokenizer":
            self.about = translated("byte-level BPE, {count:,} tokens").format(count=event["vocabulary"])
            return translated("{title}: {what}, learnt").format(title=self.title, what=self.about)
        if kind == "step":
            return self._take_step(event)
        if kind == "checkpoint":
            self.saved.append(event["step"])
            return translated("{title}: wrote checkpoint-{step}").format(title=self.title, step=event["step"])
        if kind == "rotated":
            name = PurePath(event["folder"]).name
            self.rotated.append(int(name.rpartition("-")[2]))
            return translated("{title}: the trainer deleted {name} (save_total_limit=1)").format(title=self.title, name=name)
        if kind == "sample":
            self.sample = (event["prompt"], event["text"])
        if kind == "saved":
            self.about = translated("{count:.2f} M parameters, {size}").format(
                count=event["parameters"] / 1e6, size=units.size(event["bytes"])
            )
        if kind in ("saved", "done"):
            self.state, self.fraction = "done", 1.0
            return translated("{title}: done, {losses}").format(title=self.title, losses=self.losses())
        return None

    def _take_step(self, event: Json) -> str | None:
        self.state, self.about = "training", ""
        self.step, self.fraction, self.loss = event["step"], event["fraction"], event["loss"]
        if self.first_loss is None:
            self.first_loss = self.loss
        if self.fraction < self._next_line:
            return None
        self._next_line = self.fraction + LINE_EVERY
        return translated("{title}: step {step}, loss {loss:.2f}").format(title=self.title, step=self.step, loss=self.loss)

    def losses(self) -> str:
        """How the loss went, in nats a token."""
        if self.first_loss is None or self.loss is None:
            return translated("no steps")
        return translated("loss {first:.2f} → {last:.2f}").format(first=self.first_loss, last=self.loss)


def _grid() -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(width=NAME_WIDTH, no_wrap=True)
    grid.add_column(width=BAR_WIDTH, no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    return grid


def _bar(fraction: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=fraction, width=BAR_WIDTH)


def _training_row(grid: Table, training: Training) -> None:
    if training.state == "training":
        progress = translated("step {step}  {losses}").format(step=training.step, losses=training.losses())
    elif training.state == "done":
        progress = "  ".join(part for part in (training.losses(), training.about) if part)
    else:
        progress = training.about or translated(training.state)
    grid.add_row(Text(training.title, style="bold"), _bar(training.fraction), Text(progress))


def fraction_of(job: JobStatus) -> float:
    """How much of a job is done, 0 to 1, every stage counted alike."""
    stages = job.stages
    done = sum(1.0 if stage.state in ("succeeded", "failed", "skipped") else (stage.fraction or 0.0) for stage in stages)
    return done / len(stages) if stages else 0.0


def _describe(job: JobStatus) -> Text:
    """What there is to say about a job now: its end, or the stage that runs."""
    text = Text(translated(job.state), style=STYLES.get(job.state, ""))
    if job.state in ENDED:
        for variant, verdict in job.artifacts.items():
            text.append(f"  {variant} ", style="default").append(translated(verdict), style=STYLES.get(verdict, ""))
        return text
    for stage in job.stages:
        if stage.state == "running":
            percent = "" if stage.fraction is None else f" {units.percent(stage.fraction)}"
            return Text(f"{stage.name}{percent}", style="cyan").append(f"  {stage.message or ''}", style="dim")
    if job.waiting_for:
        text.append(f"  {job.waiting_for}", style="dim")
    return text


def _stages(job: JobStatus) -> Text:
    """The stages with their marks and times; the checks of the artifacts are counted together."""
    parts, checks = [], [stage for stage in job.stages if (spec := find_spec(stage.name)) and spec.checks]
    for stage in job.stages:
        if stage not in checks:
            parts.append(_stage(stage.name, stage.state, stage.seconds or 0.0))
        elif stage is checks[-1]:
            states = [check.state for check in checks]
            ended = sum(state in ("succeeded", "failed", "skipped") for state in states)
            state = next((choice for choice in ("failed", "running", "waiting", "skipped") if choice in states), "succeeded")
            parts.append(
                _stage(
                    translated("checks {ended}/{count}").format(ended=ended, count=len(checks)),
                    state,
                    sum(check.seconds or 0.0 for check in checks),
                )
            )
    return Text("  ", no_wrap=True, overflow="ellipsis").append_text(Text("  ").join(parts))


def _stage(name: str, state: str, seconds: float) -> Text:
    took = f" {units.running(seconds)}" if state == "succeeded" and seconds >= 0.5 else ""
    return Text(f"{MARKS.get(state, '·')} {name}{took}", style=STYLES.get(state, "dim"))


def live(trainings: list[Training], snapshot: Snapshot, seconds: float) -> RenderableType:
    """The whole picture after `seconds`: trainings, daemon, and two lines for each job that has not ended, one for others."""
    grid = _grid()
    for training in trainings:
        _training_row(grid, training)
    pid = snapshot.daemon.pid
    daemon = translated("watching, process {pid}").format(pid=pid) if snapshot.daemon.running else translated("not running")
    grid.add_row(Text("ckptd", style="bold"), Text(units.running(seconds), style="dim"), Text(daemon, style="dim"))
    parts: list[RenderableType] = [grid]
    gone = {step for training in trainings for step in training.rotated}
    for job in sorted(snapshot.jobs, key=lambda job: job.step):
        row = _grid()
        row.add_row(Text(f"checkpoint-{job.step}"), _bar(fraction_of(job)), _describe(job))
        parts.append(row)
        if job.state not in ENDED:
            parts.append(_stages(job))
        if job.error:
            parts.append(Text(f"  {job.error}", style="red"))
        elif job.step in gone and job.state not in ENDED:
            parts.append(Text("  " + translated("deleted by the trainer meanwhile; its pinned copy is exported"), style="dim"))
    return Group(*parts)


def changes(before: Snapshot, after: Snapshot) -> list[str]:
    """A line for each job that was found or ended and each stage that started or ended between two snapshots."""
    lines = []
    old = {job.id: job for job in before.jobs}
    for job in sorted(after.jobs, key=lambda job: job.step):
        name, known = f"checkpoint-{job.step}", old.get(job.id)
        if known is None:
            lines.append(translated("ckptd: found {name}").format(name=name))
        states = {stage.name: stage.state for stage in known.stages} if known else {}
        for stage in job.stages:
            if stage.state != states.get(stage.name) and stage.state in ("running", "succeeded", "failed", "skipped"):
                ended = stage.seconds and stage.state != "running"
                took = " " + translated("in {time}").format(time=units.duration(stage.seconds)) if ended else ""
                said = f"{stage.name} {translated(stage.state)}{took}"
                lines.append(labelled("ckptd", labelled(name, labelled(said, translated_text(stage.error)) if stage.error else said)))
        if job.state in ENDED and (known is None or known.state != job.state):
            verdicts = clauses(f"{variant} {translated(verdict)}" for variant, verdict in job.artifacts.items())
            why = verdicts or translated_text(job.error or "") or translated("no artifact")
            lines.append(labelled("ckptd", labelled(f"{name} {translated(job.state)}", why)))
    return lines
