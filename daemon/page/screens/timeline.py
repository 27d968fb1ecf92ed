"""The course of an export: its stages over the time, with attempts, waits between them, and what was reused. Pure.

For the chart of its page, and as a file that Perfetto and chrome://tracing open: the JSON of the document "Trace Event Format", which both
name. Times there are microseconds; a stage is a track, an attempt or a wait a slice on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daemon.contract import units
from daemon.contract.faults.text import printable
from daemon.contract.language.catalog import to_translate, translated
from daemon.contract.light import dataclass
from daemon.journal.states import ENDED_JOB
from daemon.operating.monitoring.status import AttemptStatus, JobDetails, StageStatus

LEAST_WAIT = 1.0
"""Seconds between two attempts that count as a wait."""
LEAST_WIDTH = 0.6
"""Percent of the width."""
QUEUE = to_translate("queue")


@dataclass(frozen=True)
class Span:
    """An attempt or a wait. Times in seconds since the epoch."""

    kind: str
    """`wait`, or the attempt's outcome; `running` while it has none."""
    begin: float
    end: float
    text: str
    left: float = 0.0
    width: float = 0.0
    """Percent of the chart's width."""
    attempt: AttemptStatus | None = None


@dataclass(frozen=True)
class Row:
    """A stage, or the time before the first of them."""

    name: str
    text: str
    spans: tuple[Span, ...]
    is_reused: bool = False


@dataclass(frozen=True)
class Timeline:
    """All of it."""

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    begin: float
    end: float


def timeline(job: JobDetails, clock: float) -> Timeline | None:
    """The course from when the checkpoint was taken to its end, or to `clock` where it has none; None where nothing was begun."""
    begin = units.seconds_of(job.created)
    starts = [start for attempt in job.attempts if (start := units.seconds_of(attempt.started)) is not None]
    if begin is None or not starts:
        return None
    ended = units.seconds_of(job.ended) if job.state in ENDED_JOB else clock
    ends = [end for attempt in job.attempts if (end := units.seconds_of(attempt.ended)) is not None]
    end = max(ended or 0.0, *starts, *ends, begin + 0.001)
    rows = [Row(QUEUE, _took(min(starts) - begin), (_wait(begin, min(starts), translated("waited for its first stage")),))]
    if min(starts) - begin < LEAST_WAIT:
        begin, rows = min(begin, min(starts)), []
    for stage in job.stages:
        spans = _spans([attempt for attempt in job.attempts if attempt.stage == stage.name], end, job.state in ENDED_JOB)
        if spans or stage.is_reused:
            rows.append(Row(stage.name, _said(stage, spans), tuple(spans), stage.is_reused))
    total = end - begin
    placed = tuple(
        Row(row.name, row.text, tuple(_placed(span, begin, total) for span in row.spans), row.is_reused) for row in rows
    )  # fmt: skip
    ticks = tuple((100 * share, units.duration(total * share) if share else "0") for share in (0.0, 0.25, 0.5, 0.75, 1.0))
    return Timeline(placed, ticks, begin, end)


def _spans(attempts: Sequence[AttemptStatus], until: float, is_over: bool) -> list[Span]:
    spans: list[Span] = []
    for attempt in sorted(attempts, key=lambda row: row.number):
        start = units.seconds_of(attempt.started)
        if start is None:
            continue
        end = units.seconds_of(attempt.ended)
        if spans and start - spans[-1].end >= LEAST_WAIT:
            spans.append(_wait(spans[-1].end, start, translated("waited for the next attempt")))
        outcome = attempt.outcome or ("interrupted" if is_over else "running")
        said = translated("attempt {number} ({strategy}): {outcome}, {time}").format(
            number=attempt.number, strategy=attempt.strategy, outcome=translated(outcome), time=_took((end or until) - start)
        )
        spans.append(Span(outcome, start, end if end is not None else max(until, start), said, attempt=attempt))
    return spans


def _wait(begin: float, end: float, why: str) -> Span:
    return Span("wait", begin, end, translated("{why}, {time}").format(why=why, time=_took(end - begin)))


def _said(stage: StageStatus, spans: Sequence[Span]) -> str:
    if stage.is_reused:
        return translated("reused")
    tries = [span for span in spans if span.kind != "wait"]
    spent = _took(sum(span.end - span.begin for span in tries))
    return translated("{time} in {count} attempts").format(time=spent, count=len(tries)) if len(tries) > 1 else spent


def _placed(span: Span, begin: float, total: float) -> Span:
    left = min(max(100 * (span.begin - begin) / total, 0.0), 100 - LEAST_WIDTH)
    width = min(max(100 * (span.end - span.begin) / total, LEAST_WIDTH), 100 - left)
    return Span(span.kind, span.begin, span.end, span.text, round(left, 2), round(width, 2), span.attempt)


def _took(seconds: float) -> str:
    return units.duration(max(0.0, seconds))


def trace(job: JobDetails, clock: float) -> dict[str, Any]:
    """The same as a trace: complete events (`X`) for attempts and waits, an instant (`i`) for what was reused, names as metadata (`M`)."""
    course = timeline(job, clock)
    events: list[dict[str, Any]] = [_named("process_name", 0, printable(f"{job.run} {job.step} ({job.id})"))]
    for track, row in enumerate(course.rows if course else (), 1):
        events += [_named("thread_name", track, row.name), {**_named("thread_sort_index", track, ""), "args": {"sort_index": track}}]
        until = 0
        for span in row.spans:
            begin = max(until, round(span.begin * 1e6))  # where the clock was set back: slices that overlap are left out
            until = max(begin + 1, round(span.end * 1e6))
            event: dict[str, Any] = {
                "name": row.name if span.kind != "wait" else f"{row.name}: wait", "cat": "wait" if span.kind == "wait" else "attempt",
                "ph": "X", "pid": 1, "tid": track, "ts": begin, "dur": until - begin,
            }  # fmt: skip
            if span.attempt is not None:
                event["args"] = {
                    "attempt": span.attempt.number, "strategy": span.attempt.strategy, "outcome": span.attempt.outcome or "running",
                    "estimate_bytes": span.attempt.estimate or 0, "error": span.attempt.error or "",
                }  # fmt: skip
            events.append(event)
        if row.is_reused and course:
            at = round(course.begin * 1e6)
            events.append({"name": f"{row.name}: reused", "cat": "reused", "ph": "i", "s": "t", "pid": 1, "tid": track, "ts": at})
    return {
        "traceEvents": events, "displayTimeUnit": "ms",
        "otherData": {"export": job.id, "run": job.run, "step": str(job.step), "state": job.state, "checkpoint": job.checkpoint},
    }  # fmt: skip


def _named(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": 1, "tid": track, "args": {"name": name}}
