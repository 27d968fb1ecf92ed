"""What `ckptd status` and `ckptd list` show: the daemon and what is wrong with it, then a row for each export.

Made for one screen from 60 columns up: what is long is shortened in the middle or wrapped between words, and no column is left out. Where
there is no terminal nothing is shortened, so that programs and `grep` find what they look for.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from rich.text import Text

from daemon.cli.views.layout import Cell, Column, fits, hanging, table
from daemon.cli.views.markup import STATE_STYLE, terminal
from daemon.contract import units
from daemon.contract.faults.text import local_time, one_line, printable
from daemon.contract.language.catalog import language, to_translate, translated, translated_plural, translated_text
from daemon.contract.language.lists import bracketed, clauses, labelled, percent, sentences, spaced, verdicts_of
from daemon.contract.language.lists import names as list_names
from daemon.journal.states import CANCELLED, ENDED_JOB, ENDED_STAGE
from daemon.operating.log.wrapping import width_of
from daemon.operating.monitoring.outlook import about
from daemon.operating.monitoring.reasons import waiting

if TYPE_CHECKING:
    from rich.console import Console

    from daemon.journal.overview import TargetState
    from daemon.operating.monitoring.artifacts import LostArtifact
    from daemon.operating.monitoring.live import RootState
    from daemon.operating.monitoring.status import JobStatus, Snapshot, StageStatus

FEW = 5
"""Directories of one kind that `ckptd status` lists; `--all` lists them all."""
NONE = to_translate("no checkpoint has been taken yet")
WATCH_SECONDS = 2.0
_SPARE_LINES = 2
"""Of the screen, for the prompt and the line before it."""
_LEAST_JOBS = 3
_OPEN = ("running", "stopped", "waiting", "paused")
GONE = to_translate("Can't be tried again, because the checkpoint was deleted")
TRY_AGAIN = to_translate("After you have removed the cause: ckptd queue retry {job}")
SAME_AGAIN = to_translate("A retry gives the same verdict: change validate.limits or validate.data, or export another variant")
_VERDICTS = (to_translate("healthy"), to_translate("unwell"), to_translate("full"))
_HANDLE = 8
"""Characters of an id's last part that name an export among others."""
_COLUMNS = (
    Column("job", least=_HANDLE), Column("run", least=8), Column("step", least=7, right=True), Column("loss", least=7, right=True),
    Column("state", least=10), Column("what", "words", least=10),
)  # fmt: skip


def print_status(value: Snapshot, *, everything: bool = False) -> None:
    """`ckptd status`; of what may be thousands the first few and a count, unless `everything` is asked for."""
    console = terminal(soft_wrap=True)
    height = console.height - _SPARE_LINES if console.is_terminal and not everything else None
    _print(console, status_lines(value, width_of(console), height, everything=everything))


def print_jobs(jobs: Sequence[JobStatus], *, none: str = NONE) -> None:
    """`ckptd list`. `none`: what is said where there are none."""
    console = terminal(soft_wrap=True)
    _print(console, jobs_lines(jobs, width_of(console)) if jobs else [Text(translated(none))])


def _print(console: Console, lines: Iterable[Text]) -> None:
    for line in lines:
        console.print(line)


def watch(ask: Callable[[], Snapshot]) -> None:
    """`ckptd status --watch`: the status again and again, until Ctrl-C; elsewhere than on a terminal one below the other."""
    console = terminal(soft_wrap=True)
    with contextlib.suppress(KeyboardInterrupt):
        if not console.is_terminal:
            while True:
                _print(console, [*status_lines(ask(), width_of(console), None), Text()])
                time.sleep(WATCH_SECONDS)
        from rich.live import Live

        with Live(console=console, screen=True, auto_refresh=False, transient=True) as live:
            while True:
                room, at = console.height - 1, datetime.now().astimezone().strftime("%H:%M:%S")
                said = Text(
                    translated("{time}, again every {pause}; Ctrl-C ends it").format(time=at, pause=units.duration(WATCH_SECONDS)), "dim"
                )
                live.update(Text("\n").join([said, *status_lines(ask(), width_of(console), room)[:room]]), refresh=True)
                time.sleep(WATCH_SECONDS)
    print_status(ask())


# The daemon


def status_lines(value: Snapshot, width: int | None, height: int | None, *, everything: bool = False) -> list[Text]:
    """All of `ckptd status`, in lines of at most `width` cells. `height`: lines that there is room for, as far as possible."""
    head = [line for label, text, style in _head(value, None if everything else FEW) for line in hanging(label, text, width, style=style)]
    jobs = (*value.jobs, *value.foreground)
    room = None if height is None else height - len(head)
    shown = jobs if room is None else _fitting(jobs, width, room)
    lines = [*head, *jobs_lines(shown, width)]
    if len(shown) < len(jobs):
        lines += hanging("", translated("and {count} more; `ckptd list` lists them all").format(count=len(jobs) - len(shown)), width)
    return lines


def _fitting(jobs: Sequence[JobStatus], width: int | None, room: int) -> list[JobStatus]:
    """As many of the jobs as there is room for: first those that are not finished, then the latest that are."""
    order = sorted(jobs, key=lambda job: (job.state in ENDED_JOB, job.activity == "waiting"))
    ended = [job for job in order if job.state in ENDED_JOB][::-1]
    order = [*(job for job in order if job.state not in ENDED_JOB), *ended]
    count = len(order)
    while count > _LEAST_JOBS and len(jobs_lines([job for job in jobs if job in order[:count]], width)) + (count < len(order)) > room:
        count -= 1
    return [job for job in jobs if job in order[:count]]


def _head(value: Snapshot, most: int | None) -> list[tuple[str, str, str]]:
    """(label, text, style of the label) of what there is to say before the exports."""
    return [
        *_daemon(value),
        *_notices(value),
        *_roots(value),
        *_directories(value, most),
        *_undelivered(value),
        *_kept(value),
        *_queue(value),
    ]


def _daemon(value: Snapshot) -> list[tuple[str, str, str]]:
    daemon = value.daemon
    if not daemon.running:
        file = value.config or (daemon.configuration and daemon.configuration.file)
        start = (
            translated("start it with `ckptd run --config {file}`; the state is {state}")
            if file
            else translated("start it with `ckptd run --config FILE` (`ckptd init` writes FILE); the state is {state}")
        ).format(file=shlex.quote(file or ""), state=value.state_directory)
        label = translated("not running:")
        if not daemon.killed:
            return [(label, start, "yellow")]
        ended = translated(
            "the daemon did not shut down cleanly: it was killed or it crashed, or the machine stopped. It was last seen alive at {time}."
            " To continue, {start}"
        )
        return [(label, ended.format(time=local_time(daemon.said, "seconds"), start=start), "red")]
    verdict = daemon.verdict or ("healthy" if daemon.healthy else "unwell")
    if daemon.stopping:
        stopping = translated(
            "(pid {pid}) since {time}: it starts nothing new, and ends when the running stages have stopped; a second signal ends them at"
            " once"
        )
        return [(translated("stopping"), stopping.format(pid=daemon.pid, time=local_time(daemon.stopping, "seconds")), "yellow")]
    known = translated("(pid {pid}, since {time})").format(pid=daemon.pid, time=local_time(daemon.started))
    style = "red" if verdict != "healthy" else "yellow" if daemon.starved else "green"
    short = translated("running, {verdict}, short of CPU time") if daemon.starved else translated("running, {verdict}")
    return [(short.format(verdict=translated(verdict)), known, style)]


def _notices(value: Snapshot) -> list[tuple[str, str, str]]:
    """What a person should know before anything else."""
    waits = translated("{sentence}; work waits until there is enough. {delete}")
    notices = [
        (translated("no room"), waits.format(sentence=translated_text(disk.sentence()), delete=translated_text(disk.delete)), "red")
        for disk in value.disks
    ]
    notices += [(translated("configuration"), translated_text(value.config_problem), "red")] if value.config_problem else []
    notices += [(translated("unwell"), translated_text(why), "red") for why in value.daemon.unwell]
    notices += [(translated("short of CPU time"), translated_text(why), "yellow") for why in value.daemon.starved]
    if (value.daemon.verdict == "unwell" or value.daemon.healthy is False) and not (value.daemon.unwell or value.disks):
        notices.append((translated("unwell"), translated("The daemon does not say why: see `ckptd logs`."), "red"))
    restarted = translated("at {time}: {sentence} It was restarted.")
    notices += [
        (translated("thread"), restarted.format(time=local_time(death.at), sentence=translated_text(death.sentence())), "yellow")
        for death in value.daemon.deaths
    ]  # fmt: skip
    if value.last_end is not None:
        ended = translated("at {time}. {why}").format(time=local_time(value.last_end.at), why=translated_text(value.last_end.why))
        notices.append((translated("ckptd ended by itself"), ended, "red"))
    if value.paused:
        paused = translated("since {time}: no stage is started; `ckptd queue resume` continues the work")
        notices.append((translated("paused"), paused.format(time=local_time(value.paused)), "yellow"))
    loaded = value.daemon.configuration if value.daemon.running else None
    if loaded and loaded.problem:
        notices.append((translated("the last reload was refused:"), translated_text(one_line(loaded.problem)), "red"))
    if loaded and loaded.is_of_another_file(value.config):
        other = (
            translated("the daemon that is shown here works on {other}, not on {file}")
            if loaded.file
            else translated("the daemon that is shown here works without a configuration file, not on {file}")
        )
        notices.append((translated("configuration"), other.format(other=loaded.file, file=value.config), "yellow"))
    if (journal := value.daemon.journal) and journal.problem:
        notices.append((translated("journal"), translated_text(journal.problem), "red"))
    if rebuilt := value.journal:
        text = translated("from {source} at {time}; the damaged file is {file}").format(
            source=rebuilt.get("from"), time=local_time(rebuilt.get("at")), file=rebuilt.get("set_aside")
        )
        notices.append((translated("the journal was damaged and rebuilt"), text, "yellow"))
    return notices


def _roots(value: Snapshot) -> list[tuple[str, str, str]]:
    return [(translated("root"), f"{root.path} ({root.backend}{_state_of(root)})", "bold") for root in value.roots]


def _state_of(root: RootState) -> str:
    if root.silent_seconds is not None:
        silent = translated(", its file system has not answered for {time}: look at the mount and its server")
        return silent.format(time=units.running(root.silent_seconds))
    return "" if root.exists else translated(", does not exist yet")


def _directories(value: Snapshot, most: int | None) -> list[tuple[str, str, str]]:
    """What was found below the roots and is not exported: of each kind the first `most`, and how many more there are."""
    line = translated("{path} for {time}: {missing}")
    incomplete = [
        line.format(path=directory.path, time=units.running(directory.seconds), missing=translated_text("; ".join(directory.missing)))
        for directory in value.incomplete
    ]  # fmt: skip
    lost = translated("{path} at {time}: deleted {lived} after it was first seen")
    kinds = [
        (translated("incomplete"), "yellow", translated("that are incomplete"), incomplete),
        *((_waiting_for(what), "yellow", _that_wait_for(what),
           [labelled(entry.path, translated_text(entry.why)) for entry in value.delayed if waiting(entry.code) == what])
          for what in dict.fromkeys(waiting(entry.code) for entry in value.delayed)),
        (translated("seen, not watched"), "yellow", translated("that are seen and not watched"),
         [labelled(path, translated_text(why)) for path, why in value.passed_over.items()]),
        (translated("not readable"), "red", translated("that can't be read"),
         [labelled(path, translated_text(why)) for path, why in value.unreadable.items()]),
        (translated("lost"), "red", translated("that are lost"),
         [lost.format(path=row.path, time=local_time(row.last_seen), lived=units.duration(row.lived)) for row in value.lost]),
        (translated("no export ends"), "yellow", translated("of which no export ends"),
         [translated_text(again.sentence()) for again in value.rewritten]),
    ]  # fmt: skip
    notices = []
    for label, style, which, texts in kinds:
        notices += [(label, text, style) for text in texts[:most]]
        if most is not None and len(texts) > most:
            more = translated("and {count} more {which};").format(count=len(texts) - most, which=which)
            notices.append((more, translated("`ckptd status --all` lists them"), style))
    return notices


def _waiting_for(what: str) -> str:
    """`what`: "waits for …"."""  # fmt: skip
    return what.replace("waits", "waiting") if language() == "en" else translated_text(what)


def _that_wait_for(what: str) -> str:
    return f"that {what.replace('waits', 'wait')}" if language() == "en" else translated_text(what)


def _undelivered(value: Snapshot) -> list[tuple[str, str, str]]:
    """Notifications that wait, and why."""
    waiting = value.outbox.get("pending", 0)
    label = translated_plural("{count} notification waits", "{count} notifications wait", waiting).format(count=waiting)
    notices = [(label, translated("for delivery"), "yellow")] if waiting else []
    return notices + [
        (translated("not notified"), _trouble_of(target), "yellow") for target in value.notified if target.failures or target.given_up
    ]


def _kept(value: Snapshot) -> list[tuple[str, str, str]]:
    loaded = value.daemon.configuration if value.daemon.running else None
    return [(translated("retention"), translated_text(loaded.retention), "bold")] if loaded and loaded.retention else []


def _trouble_of(target: TargetState) -> str:
    """Why a service does not get its notifications, and how many it did not get."""
    said = [translated("{count} wait").format(count=target.waiting)] if target.waiting else []
    said += [translated("{count} given up within a week").format(count=target.given_up)] if target.given_up else []
    about = bracketed(target.target, clauses(said) or translated("nothing waits"))
    return labelled(about, translated_text(target.error)) if target.error else about


def _queue(value: Snapshot) -> list[tuple[str, str, str]]:
    """How many exports there are of each kind."""
    ended = Counter({state: value.counts[state] for state in ENDED_JOB if state in value.counts})
    opened = Counter(job.activity or job.state for job in value.jobs if job.state not in ENDED_JOB)
    opened["waiting"] += opened.pop("pending", 0)
    opened["waiting"] += max(0, value.counts.get("running", 0) + value.counts.get("pending", 0) - opened.total())  # those without a row
    counts = [_counted(count, state) for state in (*_OPEN, *ENDED_JOB) if (count := (opened + ended)[state])]
    return [(translated("exports"), clauses(counts), "bold")] if counts else []


# Exports


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


def _counted(count: int, state: str) -> str:
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
        counts = [_counted(verdicts.count(verdict), verdict) for verdict in known]
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
