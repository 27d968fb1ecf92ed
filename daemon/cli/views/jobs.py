"""The rows of exports in `ckptd status` and `ckptd list`: what each does or became, and below them what needs a sentence.

Made for one screen from 60 columns up, as the rest of `status`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from daemon.cli.views.layout import Cell, Column, fits, hanging, table
from daemon.cli.views.markup import STATE_STYLE
from daemon.contract import units
from daemon.contract.language.catalog import language, translated, translated_text
from daemon.contract.language.lists import clauses, labelled, percent, spaced
from daemon.contract.language.lists import names as list_names
from daemon.journal.states import CANCELLED, ENDED_JOB, ENDED_STAGE
from daemon.operating.monitoring.outlook import about
from daemon.operating.wording.exports import (
    GONE,
    NONE,
    TRY_AGAIN,
    counted,
    lies_at,
    remarks,
    retry_helps,
    running_stages,
    what,
    with_reason,
)

if TYPE_CHECKING:
    from daemon.operating.monitoring.status import JobStatus

FEW = 5
"""Names in one line, and directories of one kind that `ckptd status` lists; `--all` lists them all."""
_HANDLE = 8
"""Characters of an id's last part that name an export among others."""
_COLUMNS = (
    Column("job", least=_HANDLE), Column("run", least=8), Column("step", least=7, right=True), Column("loss", least=7, right=True),
    Column("state", least=10), Column("what", "words", least=10),
)  # fmt: skip


def jobs_lines(jobs: Sequence[JobStatus], width: int | None) -> list[Text]:
    """A row for each job, then what there is to say of them, in lines of at most `width` cells."""
    if not jobs:
        return [Text(translated(NONE))]
    names = {job.id: job.id for job in jobs}
    rows = [_row(job, job.id) for job in jobs]
    if width is not None and not fits(_COLUMNS, rows, width):
        names = handles(list(names))
        rows = [_row(job, names[job.id]) for job in jobs]
        if not fits(_COLUMNS, rows, width):
            rows = [_row(job, names[job.id], short=True) for job in jobs]
    lines = [line for row in table(_COLUMNS, rows, width) for line in row]
    for text, (ids, style) in remarks(jobs).items():
        who = _first_of([names[job_id] for job_id in ids])
        lines += hanging(f"{who}:", _of_several(text) if len(ids) > 1 else translated_text(text), width, style=style)
    failed = [job for job in jobs if job.error and job.state == "failed" and not job.foreground]
    if retried := [names[job.id] for job in failed if not job.checkpoint_gone and retry_helps(job)]:
        lines += hanging("", translated(TRY_AGAIN).format(job=retried[0] if len(retried) == 1 else "--failed"), width)
    if gone := [names[job.id] for job in failed if job.checkpoint_gone]:
        lines += hanging("", labelled(translated(GONE), _first_of(gone)), width)
    return lines


def _first_of(names: Sequence[str]) -> str:
    """The first few of many, and how many more there are."""
    more, blank = len(names) - FEW, " " if language() == "en" else "，"
    return list_names(names[:FEW]) + (blank + translated("and {count} more").format(count=more) if more > 0 else "")


def _of_several(text: str) -> str:
    """What is said of an export, said of several, which is the same in Chinese."""
    if language() != "en":
        return translated_text(text)
    text = re.sub(r"^It waits for its turn\b", "They wait for their turn", text)
    return re.sub(r"^No daemon runs: the export continues\b", "No daemon runs: the exports continue", text)


def handles(ids: Sequence[str]) -> dict[str, str]:
    """Id → the shortest beginning of its last part that names it among these; by it every verb finds the job."""
    ends = {job_id: job_id.rpartition("-")[2] for job_id in ids}
    length = _HANDLE
    while len({end[:length] for end in ends.values()}) < len(set(ids)) and length < max(map(len, ends.values()), default=0):
        length += 1
    known = {job_id: end[:length] for job_id, end in ends.items()}
    return {job_id: short if list(known.values()).count(short) == 1 else job_id for job_id, short in known.items()}


def _row(job: JobStatus, name: str, *, short: bool = False) -> list[Cell]:
    state = job.activity or job.state
    doing = (_in_short if short else what)(job) + (f" · {translated('kept')}" if job.kept else "")
    doing = f"{doing} · {where}" if not short and (where := lies_at(job)) else doing
    doing = clauses(filter(None, (translated("by hand"), doing))) if job.foreground else doing
    return [
        Cell(name), Cell(job.run), Cell(translated("final") if job.ending else str(job.step)), Cell(_loss(job.loss)),
        Cell(translated(state), STATE_STYLE.get(state, "")), Cell(doing, "" if job.state not in ENDED_JOB else _worst(job)),
    ]  # fmt: skip


def _loss(value: float | None) -> str:
    return units.number(value)


def _worst(job: JobStatus) -> str:
    verdicts = set(job.artifacts.values())
    return next((STATE_STYLE[verdict] for verdict in ("failed", "unpublished", "unverified", "passed") if verdict in verdicts), "")


def _in_short(job: JobStatus) -> str:
    """The same in words of few letters, without the names of stages and variants."""
    if running_stages(job):
        done = sum(stage.state in ENDED_STAGE for stage in job.stages) + sum(stage.fraction or 0.0 for stage in running_stages(job))
        return clauses([percent(f"{100 * done / len(job.stages):.0f}"), *_left_in_short(job)])
    if job.artifacts and job.state != CANCELLED and not (job.reason and job.state != "partial"):
        verdicts = [verdict for name, verdict in job.artifacts.items() if name not in {*job.replaced, *job.added}]
        known = [*(verdict for verdict in ("failed", "unpublished", "unverified", "passed") if verdict in verdicts)]
        replaced = translated("{count} replaced by {taken}")
        counts = [counted(verdicts.count(verdict), verdict) for verdict in known]
        counts += [replaced.format(count=count, taken=taken) for taken, count in Counter(job.replaced.values()).items()]
        return clauses(counts) if job.replaced and {*verdicts} <= {"passed"} else with_reason(clauses(counts), job)
    return translated_text(job.reason or "")


def _left_in_short(job: JobStatus) -> list[str]:
    if job.left_seconds is None:
        return []
    return [spaced(translated("{time} left").format(time=_at_least_a_minute(job.left_seconds)))]


def _at_least_a_minute(seconds: float) -> str:
    """A time that is left, in few letters."""
    whole = about(max(60.0, seconds))
    return whole.removeprefix("about ") if language() == "en" else translated_text(whole).removeprefix("大约").strip()
