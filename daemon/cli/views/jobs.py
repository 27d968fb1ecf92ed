"""The rows of exports in `ckptd status` and `ckptd list`: what each does or became, and below them what needs a sentence.

Made for one screen from 60 columns up, as the rest of `status`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from daemon.cli.views.layout import Cell, Column, fits, hanging, table
from daemon.cli.views.markup import STATE_STYLE
from daemon.contract import units
from daemon.contract.faults.text import printable
from daemon.contract.language.catalog import language, to_translate, translated, translated_text
from daemon.contract.language.lists import bracketed, clauses, labelled, percent, sentences, spaced, verdicts_of
from daemon.contract.language.lists import names as list_names
from daemon.journal.states import CANCELLED, ENDED_JOB, ENDED_STAGE
from daemon.operating.monitoring.outlook import about

if TYPE_CHECKING:
    from daemon.operating.monitoring.artifacts import LostArtifact
    from daemon.operating.monitoring.status import JobStatus, StageStatus

FEW = 5
"""Names in one line, and directories of one kind that `ckptd status` lists; `--all` lists them all."""
NONE = to_translate("no checkpoint has been taken yet")
GONE = to_translate("Can't be tried again, because the checkpoint was deleted")
TRY_AGAIN = to_translate("After you have removed the cause: ckptd queue retry {job}")
SAME_AGAIN = to_translate("A retry gives the same verdict: change validate.limits or validate.data, or export another variant")
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
    for text, (ids, style) in _remarks(jobs).items():
        who = _first_of([names[job_id] for job_id in ids])
        lines += hanging(f"{who}:", _of_several(text) if len(ids) > 1 else translated_text(text), width, style=style)
    failed = [job for job in jobs if job.error and job.state == "failed" and not job.foreground]
    if retried := [names[job.id] for job in failed if not job.checkpoint_gone and retry_helps(job)]:
        lines += hanging("", translated(TRY_AGAIN).format(job=retried[0] if len(retried) == 1 else "--failed"), width)
    if gone := [names[job.id] for job in failed if job.checkpoint_gone]:
        lines += hanging("", labelled(translated(GONE), _first_of(gone)), width)
    return lines


def retry_helps(job: JobStatus) -> bool:
    """Whether another attempt may end otherwise. What was made and checked gets the same verdict again."""
    undecided = {"unverified", "unpublished"} & {*job.artifacts.values()}
    return bool(undecided) or not job.artifacts or any(stage.state != "succeeded" for stage in job.stages)


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
    what = (_in_short if short else _what)(job) + (f" · {translated('kept')}" if job.kept else "")
    what = clauses(filter(None, (translated("by hand"), what))) if job.foreground else what
    return [
        Cell(name), Cell(job.run), Cell(translated("final") if job.ending else str(job.step)), Cell(_loss(job.loss)),
        Cell(translated(state), STATE_STYLE.get(state, "")), Cell(what, "" if job.state not in ENDED_JOB else _worst(job)),
    ]  # fmt: skip


def _loss(value: float | None) -> str:
    return units.number(value)


def _worst(job: JobStatus) -> str:
    verdicts = set(job.artifacts.values())
    return next((STATE_STYLE[verdict] for verdict in ("failed", "unpublished", "unverified", "passed") if verdict in verdicts), "")


def _running(job: JobStatus) -> list[StageStatus]:
    return [stage for stage in job.stages if stage.state == "running" and stage.fraction is not None]


def _what(job: JobStatus) -> str:
    """What happens to a job, or what came out of it."""
    if running := _running(job):
        return clauses([*map(_progress, running), *_left(job)])
    if job.state not in ENDED_JOB and job.reason:
        return clauses([translated_text(job.reason), *_left(job)])
    if job.artifacts and job.state != CANCELLED:
        return _with_reason(verdicts_of(job.artifacts), job)
    return translated_text(job.reason or "") if job.state in ENDED_JOB else clauses(_left(job))


def counted(count: int, state: str) -> str:
    """So many of a state."""
    return f"{count} {translated(state)}" if language() == "en" else f"{count} 个{translated(state)}"


def _with_reason(verdicts: str, job: JobStatus) -> str:
    """The verdicts of an export, and why they are no better."""
    return bracketed(verdicts, translated_text(job.reason)) if job.reason else verdicts


def _in_short(job: JobStatus) -> str:
    """The same in words of few letters, without the names of stages and variants."""
    if _running(job):
        done = sum(stage.state in ENDED_STAGE for stage in job.stages) + sum(stage.fraction or 0.0 for stage in _running(job))
        return clauses([percent(f"{100 * done / len(job.stages):.0f}"), *_left_in_short(job)])
    if job.artifacts and job.state != CANCELLED and not (job.reason and job.state != "partial"):
        verdicts = [verdict for name, verdict in job.artifacts.items() if name not in {*job.replaced, *job.added}]
        known = [*(verdict for verdict in ("failed", "unpublished", "unverified", "passed") if verdict in verdicts)]
        replaced = translated("{count} replaced by {taken}")
        counts = [counted(verdicts.count(verdict), verdict) for verdict in known]
        counts += [replaced.format(count=count, taken=taken) for taken, count in Counter(job.replaced.values()).items()]
        return clauses(counts) if job.replaced and {*verdicts} <= {"passed"} else _with_reason(clauses(counts), job)
    return translated_text(job.reason or "")


def _left(job: JobStatus) -> list[str]:
    """How much work is left of a job, in words; [] where nothing tells."""
    if job.left_seconds is None:
        return []
    line = translated("{time} left in all") if _running(job) else translated("{time} of work")
    return [spaced(line.format(time=translated_text(about(job.left_seconds))))]


def _left_in_short(job: JobStatus) -> list[str]:
    if job.left_seconds is None:
        return []
    return [spaced(translated("{time} left").format(time=_at_least_a_minute(job.left_seconds)))]


def _at_least_a_minute(seconds: float) -> str:
    """A time that is left, in few letters."""
    whole = about(max(60.0, seconds))
    return whole.removeprefix("about ") if language() == "en" else translated_text(whole).removeprefix("大约").strip()


def _progress(stage: StageStatus) -> str:
    return f"{stage.name} {percent(f'{100 * (stage.fraction or 0):.0f}')}"


def _remarks(jobs: Sequence[JobStatus]) -> dict[str, tuple[list[str], str]]:
    """What is said below the rows → the jobs of which it is true, and its style; one cause once, however many have it."""
    remarks: dict[str, tuple[list[str], str]] = {}
    for job in jobs:
        texts = [(text, "cyan") for stage in job.stages if (text := pace(stage)) is not None]
        texts += [(translated("`ckptd queue first` put it at the front of the queue"), "dim")] if job.first else []
        texts += [(translated("`ckptd export` makes it, in the foreground"), "dim")] if job.foreground else []
        texts += [(job.waiting_for, "yellow")] if job.waiting_for else []
        texts += [(job.error, "red")] if job.error else []
        texts += [(text, "yellow") for text in describe_lost(_unsaid(job))]
        texts += [(text, "yellow") for text in job.warnings]
        for text, style in texts:
            remarks.setdefault(printable(text), ([], style))[0].append(job.id)
    return remarks


def _unsaid(job: JobStatus) -> list[LostArtifact]:
    """The lost variants of which the error of the job does not say all that there is to say."""
    errors = {stage.name: stage.error for stage in job.stages}
    return [
        artifact for artifact in job.lost
        if errors.get(artifact.stage) != job.error or not (job.state == "failed" or artifact.variant == artifact.stage)
    ]  # fmt: skip


def describe_lost(lost: Iterable[LostArtifact]) -> list[str]:
    """A line for each stage that failed: the variants that it took, and its cause."""
    taken: dict[tuple[str, str], list[str]] = {}
    for artifact in lost:
        taken.setdefault((artifact.stage, artifact.cause), []).append(artifact.variant)
    own, other = translated("{names}: its stage failed: {cause}"), translated("{names}: the stage {stage} failed: {cause}")
    return [
        (own if names == [stage] else other).format(names=list_names(names), stage=stage, cause=translated_text(cause))
        for (stage, cause), names in taken.items()
    ]  # fmt: skip


def pace(stage: StageStatus) -> str | None:
    """How a running stage gets on; None for one that does not run."""
    if stage.state != "running" or stage.fraction is None:
        return None
    progress = translated("{stage} {percent:.0f} % after {time}")
    parts = [progress.format(stage=stage.name, percent=100 * stage.fraction, time=units.running(stage.seconds or 0))]
    parts += [translated_text(stage.message)] if stage.message else []
    parts += (
        [spaced(translated("{time} left for this stage").format(time=translated_text(about(stage.left_seconds))))]
        if stage.left_seconds is not None
        else []
    )
    return sentences([clauses(parts), *([translated_text(stage.starved)] if stage.starved else [])])
