"""What `ckptd show` prints: one export with its stages and attempts, why it failed, and what to do."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

from daemon.cli.views.layout import Cell, Column, hanging, table
from daemon.cli.views.markup import STATE_STYLE, terminal
from daemon.contract import units
from daemon.contract.faults.text import local_time, printable
from daemon.contract.jobs.plan import find_spec
from daemon.contract.language.catalog import to_translate, translated, translated_text
from daemon.contract.language.lists import bracketed, labelled, names
from daemon.journal.states import ENDED_JOB
from daemon.operating.log.wrapping import width_of
from daemon.operating.wording.exports import carrying, commands, open_limits, pace, retry_helps, trouble_of

if TYPE_CHECKING:
    from daemon.operating.monitoring.status import AttemptStatus, JobDetails, StageStatus

_FACTS = {
    "run": to_translate("run"), "step": to_translate("step"), "epoch": to_translate("epoch"), "loss": to_translate("loss"),
    "best_metric": to_translate("best_metric"), "state": to_translate("state"), "method": to_translate("method"),
    "rank": to_translate("rank"), "base": to_translate("base"), "checkpoint": to_translate("checkpoint"), "target": to_translate("target"),
}  # fmt: skip
_TIMES = {"created": to_translate("created"), "started": to_translate("started"), "ended": to_translate("ended")}
_COLUMNS = (
    Column("stage", least=12), Column("state", least=9), Column("tries", least=5, right=True), Column("took", least=7, right=True),
    Column("note", "words", least=16),
)  # fmt: skip
_OUTCOMES = to_translate("retryable"), to_translate("permanent"), to_translate("interrupted")
RETRIED = ("failed", "partial", "cancelled")


def print_job(job: JobDetails) -> None:
    """`ckptd show`. What is copied from it, ids, paths and commands, stands in one line each."""
    console = terminal(soft_wrap=True)
    width = width_of(console)
    for line in (*_facts(job), *_stages(job, width), *_lies(job, width), *_why(job, width), *_what_next(job)):
        console.print(line)


def _fact(name: str, text: str, style: str = "") -> Text:
    label = translated(name)
    return Text.assemble((label + " " * (12 - cell_len(label)), "bold"), (printable(text), style))


def _facts(job: JobDetails) -> list[Text]:
    lines = [_fact("id", job.id)]
    for key, label in _FACTS.items():
        value = (job.activity or job.state) if key == "state" else getattr(job, key)
        if value is not None:
            text = units.number(value) if isinstance(value, float) else str(value)
            lines.append(_fact(label, translated(text), STATE_STYLE.get(text, "")) if key == "state" else _fact(label, text))
    lines += [_fact(label, local_time(value, "seconds")) for key, label in _TIMES.items() if (value := getattr(job, key)) is not None]
    if job.kept:
        lines.append(_fact("kept", translated("`ckptd prune --keep` named it: no rule of [retention] removes it")))
    if job.report_file:
        page = os.path.join(os.path.dirname(job.report_file), "report.html")
        lines.append(_fact("report", page if os.path.isfile(page) else job.report_file))
    return lines


def _stages(job: JobDetails, width: int | None) -> list[Text]:
    rows = [
        [
            Cell(stage.name), Cell(translated(stage.state), STATE_STYLE.get(stage.state, "")),
            Cell("–" if stage.is_reused else str(stage.attempts)),
            Cell("" if stage.seconds is None or stage.state == "running" else units.duration(stage.seconds)), Cell(_note(job, stage)),
        ]
        for stage in job.stages
    ]  # fmt: skip
    return [line for row in table(_COLUMNS, rows, width) for line in row]


def _note(job: JobDetails, stage: StageStatus) -> str:
    """What is to be said of a stage in a few words; errors stand below the table, each once."""
    if (running := pace(stage)) is not None:
        return running.removeprefix(f"{stage.name} ")
    if stage.state == "skipped":
        spec, states = find_spec(stage.name), {other.name: other.state for other in job.stages}
        lacking = [need for need in (spec.needs if spec else ()) if states.get(need) in ("failed", "skipped")]
        return translated("needs {stages}").format(stages=names(lacking)) if lacking else ""
    if (spec := find_spec(stage.name)) and stage.state == "succeeded":
        rejected = translated("rejected the artifact") if job.artifacts.get(spec.checks or "") == "failed" else ""
        undecided = open_limits(job.undecided.get(spec.checks or "", ()))
        if rejected or undecided:
            return bracketed(rejected, undecided) if rejected and undecided else rejected or undecided
    if stage.is_reused:
        return translated("reused: an earlier attempt made the same")
    if stage.retry_at is not None:
        return translated("tried again at {time}; error: see below").format(time=local_time(stage.retry_at, "seconds"))
    return translated("error: see below") if stage.error else ""


def _lies(job: JobDetails, width: int | None) -> list[Text]:
    """Where it lies besides its folder, and where it does not yet."""
    lines = []
    for delivery in job.deliveries:
        state = Text(translated(delivery.state), STATE_STYLE.get(delivery.state, ""))
        about = f"{delivery.place} ({delivery.version})" if delivery.place else ""
        why = translated_text(delivery.why_not_moved) if delivery.why_not_moved else translated("its name there did not move")
        if delivery.state == "delivered" and not delivery.moved:
            about = bracketed(about, why)
        elif delivery.state != "delivered" and delivery.retry_at is not None:
            about = translated("tried again at {time}").format(time=local_time(delivery.retry_at, "seconds"))
        lines.append(Text.assemble((f"{translated('delivery')} ", "bold"), f"{delivery.target}: ", state, f" {printable(about)}".rstrip()))
        if (said := carrying(delivery)) is not None:
            lines.append(Text(f"  {said}", style="cyan"))
        if delivery.state == "delivered" and delivery.usage:
            lines.append(Text(f"  {printable(delivery.usage)}"))
        if (said := trouble_of(job, delivery)) is not None:
            lines += hanging("", said, width, style="red" if delivery.state == "failed" else "yellow")
        if delivery.error and delivery.attempts:
            log = f"ckptd logs --job {shlex.quote(job.id)} --target {delivery.target}"
            lines.append(Text(f"  {labelled(translated('its log'), log)}"))
    return lines


def _why(job: JobDetails, width: int | None) -> list[Text]:
    """Each root cause once: the errors of the stages that failed, then what else keeps the export from its end."""
    lines, said = list[Text](), set[str]()
    errors = [(f"{stage.name}:", stage.error) for stage in job.stages if stage.error and stage.state != "skipped"]
    for label, text, style in (
        *((label, text, "red") for label, text in errors),
        (to_translate("error:"), job.error, "red"),
        (to_translate("waits:"), job.waiting_for, "yellow"),
        *((to_translate("warning:"), text, "yellow") for text in job.warnings),
    ):
        if text and text not in said:
            said.add(text)
            lines += hanging(label, translated_text(text), width, style=style)
    for attempt in job.attempts:
        if attempt.outcome not in ("succeeded", None):
            log = _log_of(attempt)
            line = (
                translated("{stage}, attempt {number}: {outcome}; its log: {log}") if log
                else translated("{stage}, attempt {number}: {outcome}; it printed nothing")
            )  # fmt: skip
            outcome = translated(str(attempt.outcome))
            lines += hanging("", line.format(stage=attempt.stage, number=attempt.number, outcome=outcome, log=log), None)
    return lines


def _log_of(attempt: AttemptStatus) -> str:
    """What was printed by an attempt, or, of one that never ran, what its scheduler has to say; "" for neither."""
    from daemon.contract.jobs.processes.elsewhere import OUTPUT

    said = os.path.join(os.path.dirname(attempt.log), OUTPUT)
    return next((file for file in (attempt.log, said) if os.path.exists(file)), "")


def _what_next(job: JobDetails) -> list[Text]:
    """The commands for an export that did not end well."""
    said = commands(job)
    lines = hanging("", said, None) if said else []
    if job.state not in RETRIED or (not job.checkpoint_gone and not retry_helps(job)):
        return lines
    failed = [attempt for attempt in job.attempts if attempt.outcome in ("retryable", "permanent")]
    if failed and job.state in ENDED_JOB:
        by_hand = translated("To run the last failed attempt by hand: python -m handlers {file}")
        lines += hanging("", by_hand.format(file=shlex.quote(failed[-1].job_file)), None)
    return lines
