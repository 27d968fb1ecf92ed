"""What is said of an export in words: what it does or became, how its stages get on, why it waits or failed, and what to do.

For `ckptd status`, `list` and `show`, and for the page, in the reader's language.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from daemon.contract import units
from daemon.contract.faults.text import printable
from daemon.contract.formats.thresholds import LIMIT_NAMES
from daemon.contract.language.catalog import language, to_translate, translated, translated_text
from daemon.contract.language.lists import bracketed, clauses, labelled, percent, sentences, spaced, verdicts_of
from daemon.contract.language.lists import names as list_names
from daemon.journal.states import CANCELLED, ENDED_JOB
from daemon.operating.monitoring.outlook import about

if TYPE_CHECKING:
    from daemon.operating.monitoring.artifacts import LostArtifact
    from daemon.operating.monitoring.deliveries import DeliveryStatus
    from daemon.operating.monitoring.status import JobStatus, StageStatus

NONE = to_translate("no checkpoint has been taken yet")
GONE = to_translate("Can't be tried again, because the checkpoint was deleted")
TRY_AGAIN = to_translate("After you have removed the cause: ckptd queue retry {job}")
SAME_AGAIN = to_translate("A retry gives the same verdict: change validate.limits or validate.data, or export another variant")


def retry_helps(job: JobStatus) -> bool:
    """Whether another attempt may end otherwise. What was made and checked gets the same verdict again."""
    undecided = {"unverified", "unpublished"} & {*job.artifacts.values()}
    return bool(undecided) or not job.artifacts or any(stage.state != "succeeded" for stage in job.stages)


def running_stages(job: JobStatus) -> list[StageStatus]:
    """Its stages that run now."""
    return [stage for stage in job.stages if stage.state == "running" and stage.fraction is not None]


def what(job: JobStatus) -> str:
    """What happens to a job, or what came out of it."""
    if running := running_stages(job):
        return clauses([*map(_progress, running), *left(job)])
    if job.state not in ENDED_JOB and job.reason:
        return clauses([translated_text(job.reason), *left(job)])
    if job.artifacts and job.state != CANCELLED:
        return with_reason(verdicts_of(job.artifacts), job)
    return translated_text(job.reason or "") if job.state in ENDED_JOB else clauses(left(job))


def counted(count: int, state: str) -> str:
    """So many of a state."""
    return f"{count} {translated(state)}" if language() == "en" else f"{count} 个{translated(state)}"


def with_reason(verdicts: str, job: JobStatus) -> str:
    """The verdicts of an export, and why they are no better."""
    return bracketed(verdicts, translated_text(job.reason)) if job.reason else verdicts


def left(job: JobStatus) -> list[str]:
    """How much work is left of a job, in words; [] where nothing tells."""
    if job.left_seconds is None:
        return []
    line = translated("{time} left in all") if running_stages(job) else translated("{time} of work")
    return [spaced(line.format(time=translated_text(about(job.left_seconds))))]


def _progress(stage: StageStatus) -> str:
    return f"{stage.name} {percent(f'{100 * (stage.fraction or 0):.0f}')}"


def remarks(jobs: Sequence[JobStatus]) -> dict[str, tuple[list[str], str]]:
    """What is said below the rows → the jobs of which it is true, and its style; one cause once, however many have it."""
    said: dict[str, tuple[list[str], str]] = {}
    for job in jobs:
        texts = [(text, "cyan") for stage in job.stages if (text := pace(stage)) is not None]
        texts += [(text, "cyan") for delivery in job.deliveries if (text := carrying(delivery))]
        texts += [(translated("`ckptd queue first` put it at the front of the queue"), "dim")] if job.first else []
        texts += [(translated("`ckptd export` makes it, in the foreground"), "dim")] if job.foreground else []
        texts += [(job.waiting_for, "yellow")] if job.waiting_for else []
        texts += [(job.error, "red")] if job.error else []
        texts += [(text, "yellow") for text in describe_lost(_unsaid(job))]
        texts += [(text, "yellow") for text in job.warnings]
        texts += [(text, "yellow") for delivery in job.deliveries if (text := trouble_of(job, delivery))]
        for text, style in texts:
            said.setdefault(printable(text), ([], style))[0].append(job.id)
    return said


def remarks_of(job: JobStatus) -> list[tuple[str, str]]:
    """What is to be said of one export, in the reader's language, each with its style: pace, waits, errors, warnings."""
    return [(translated_text(text), style) for text, (_, style) in remarks([job]).items()]


def commands(job: JobStatus) -> str | None:
    """What to do about an export that did not end well; None where there is nothing to say."""
    if job.state not in ("failed", "partial", "cancelled"):
        return None
    if job.checkpoint_gone:
        return translated(GONE)
    if not retry_helps(job):
        unreplaced = {name for name, verdict in job.artifacts.items() if verdict == "failed"} - {*job.replaced, *job.added}
        return translated(SAME_AGAIN) if unreplaced else None
    if job.foreground:
        return translated("After you have removed the cause: ckptd export {checkpoint}").format(checkpoint=shlex.quote(job.checkpoint))
    return translated(TRY_AGAIN).format(job=shlex.quote(job.id))


def trouble_of(job: JobStatus, delivery: DeliveryStatus) -> str | None:
    """Why an export does not lie at a target, and what to do; None where there is nothing to say."""
    if delivery.state not in ("failed", "waiting") or not delivery.error:
        return None
    line = (
        translated("not delivered to {target}: {error} When the cause is gone: `ckptd deliver {job} {target}`")
        if delivery.state == "failed"
        else translated("not yet delivered to {target}, which is tried again: {error}")
    )
    return line.format(target=delivery.target, error=translated_text(delivery.error), job=shlex.quote(job.id))


def carrying(delivery: DeliveryStatus) -> str | None:
    """How a running delivery gets on; None for one that does not run."""
    if delivery.fraction is None:
        return None
    doing = translated_text(delivery.doing or "")
    if delivery.fraction:
        sent = translated("{size} sent").format(size=units.size(delivery.sent))
        doing = clauses([f"{doing} {percent(f'{100 * delivery.fraction:.0f}')}", sent])
    return labelled(translated("to {target}").format(target=delivery.target), doing)


def lies_at(job: JobStatus) -> str:
    """The targets at which an export lies, in a few words; "" where it lies at none."""
    targets = [delivery.target for delivery in job.deliveries if delivery.state == "delivered"]
    return translated("at {targets}").format(targets=list_names(targets)) if targets else ""


def _unsaid(job: JobStatus) -> list[LostArtifact]:
    """The lost variants of which the error of the job does not say all that there is to say."""
    errors = {stage.name: stage.error for stage in job.stages}
    return [
        artifact for artifact in job.lost
        if errors.get(artifact.stage) != job.error or not (job.state == "failed" or artifact.variant == artifact.stage)
    ]  # fmt: skip


def open_limits(limits: Iterable[str]) -> str:
    """That the texts do not say whether an artifact keeps these limits; "" for none."""
    said = [translated(LIMIT_NAMES.get(limit, limit)) for limit in limits]
    return labelled(translated("undecided"), list_names(said)) if said else ""


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
    waits = stage.place is not None and stage.place.state != "running"  # time in a queue is no time at work
    progress = translated("{stage} has waited for {time}") if waits else translated("{stage} {percent:.0f} % after {time}")
    parts = [progress.format(stage=stage.name, percent=100 * stage.fraction, time=units.running(stage.seconds or 0))]
    parts += [translated_text(stage.message)] if stage.message else []
    parts += (
        [spaced(translated("{time} left for this stage").format(time=translated_text(about(stage.left_seconds))))]
        if stage.left_seconds is not None
        else []
    )
    return sentences([clauses(parts), *([translated_text(stage.starved)] if stage.starved else [])])
