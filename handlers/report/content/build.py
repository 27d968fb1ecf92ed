"""From the journal's facts to the report. Called by `handlers.report.stage`.

Every figure may be missing: the report also has to be written when the merge failed and nothing exists. It reads
facts, the machine and the license that the base names, never the artifacts themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from daemon.contract.faults.errors import Fault, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs import verdicts
from daemon.contract.jobs.figures import (
    ArtifactFigures,
    Checking,
    EvaluationFigures,
    Figures,
    LiveFigures,
    MergeFigures,
    ReferenceFigures,
    SpeedFigures,
    TextsFigures,
    figures_of,
    stage_figures,
    unreadable,
)
from daemon.contract.jobs.messages import (
    ArtifactCheck,
    AttemptFacts,
    CheckpointRef,
    JobFacts,
    StageContext,
    StageFacts,
    Verdict,
)
from daemon.contract.jobs.plan import find_spec
from daemon.contract.jobs.tasks import LIVE
from daemon.contract.language.catalog import to_translate, translated
from daemon.contract.language.lists import names as list_names
from daemon.contract.language.lists import sentences
from daemon.contract.language.recorded import translated_text
from daemon.contract.values import Json
from daemon.contract.version import __version__
from handlers.models import hub
from handlers.report import comparison, samples
from handlers.report.advice import headline
from handlers.report.advice.replacements import replaced
from handlers.report.advice.so_far import run_so_far
from handlers.report.content import gate, machine
from handlers.report.content.neighbours import neighbours
from handlers.report.content.not_verified import blindness, not_verified
from handlers.report.content.sanitize import clean
from handlers.report.content.spoken import check_in_words, fallback_in_words, fault_in_words
from handlers.report.model import Artifact, Attempt, Base, Checkpoint, Failure, Replaced, Report, Stage, Warned

IDLE = 30.0
"""Seconds without an attempt that count as a pause: starting the next one takes less."""
MOST_NAMES = 8
"""Figures that a warning names."""
_MODELS: dict[str, type[Figures]] = {"merge": MergeFigures, "reference": ReferenceFigures, "speed": SpeedFigures, LIVE: EvaluationFigures}
"""Stage → its figures. Those of the checks are `Checking`; other stages' figures are for people alone."""


_INSTEAD = to_translate("use {taken}, which is published in its place")


def build(context: StageContext, now: datetime | None = None) -> Report:
    """The report of the job that `context.facts` describes, finished at `now` (default: the present).

    Raises Permanent when the job file holds no facts.
    """
    facts = context.facts
    if facts is None:
        raise Permanent(
            FaultCode.NO_JOB_FACTS, "write the report", "the job file says nothing about the job's stages",
            "let the daemon start the report stage, which then gives it the journal's facts",
        )  # fmt: skip
    moment = now or datetime.now(UTC)
    checks = tuple(map(check_in_words, verdicts.judge(facts)))
    status = verdicts.status_that_follows(facts)
    faults = _faults(facts, context.stage)
    merge, reference = (
        stage_figures(facts, "merge", MergeFigures),
        stage_figures(facts, "reference", ReferenceFigures) or ReferenceFigures(),
    )
    base = _base(facts, context.base, merge)
    stories = replaced(facts, checks, base.size_bytes)
    artifacts = tuple(_artifact(check, facts, base.size_bytes) for check in checks)
    whole, checking = _cpu_seconds(facts)
    report = Report.model_construct(
        export_id=facts.export_id,
        status=status,
        verdict=headline.verdict_line(status, checks, faults, facts.work.validation, stories),
        created=facts.created,
        started=facts.started,
        finished=moment.isoformat(timespec="seconds"),
        wall_seconds=_worked(facts, moment),
        cpu_seconds=whole,
        checking_share=round(checking / whole, 4) if whole and checking is not None else None,
        gate=gate.measured(),
        checkpoint=_checkpoint(facts.checkpoint),
        base=base,
        task=merge.task if merge else None,
        variants=verdicts.asked_variants(facts),
        configuration=facts.work.model_dump(),
        versions=_versions(facts),
        machine=machine.describe(),
        reference=_as_written(facts, "reference"),
        checked_on=verdicts.checked_on(facts),
        measured_on=verdicts.measured_on(facts),
        bases=_as_written(facts, "bases"),
        texts=_texts(facts, reference),
        stages=tuple(_stage(stage, context) for stage in facts.stages if _belongs(stage, context)),
        answers=_as_written(facts, "answers"),
        samples=samples.collect(reference, artifacts),
        comparison=comparison.collect(reference, artifacts),
        artifacts=artifacts,
        failures=_failures(facts, checks, faults, stories),
        replaced=stories,
        not_verified=not_verified(facts, checks),
        warnings=_warnings(facts, reference.reference),
        access=translated_text(facts.access) if facts.access else None,
    )
    notes: list[str] = []
    plain = clean(report.model_dump(warnings=False), notes)
    plain["warnings"] += [{"source": "report", "text": note} for note in notes]
    cleaned = Report.model_validate(plain)
    recommended = headline.recommend(cleaned)
    so_far = run_so_far(facts.run, {**plain, "recommendation": recommended.model_dump()})
    advice = {"recommendation": headline.of_run(recommended, so_far, facts.export_id), "run_so_far": so_far}
    return cleaned.model_copy(update={**advice, "neighbours": neighbours(facts.run, plain, so_far.best if so_far else None)})


def _as_written(facts: JobFacts, name: str) -> Json:
    """An object among the figures of the stage `reference`, whole, for the page's details; {} where it is missing."""
    result = next((entry.result for entry in facts.stages if entry.name == "reference"), None)
    value = result.figures.get(name) if result else None
    return value if isinstance(value, dict) else {}


def _texts(facts: JobFacts, reference: ReferenceFigures) -> Json:
    """What the texts for comparison and for calibration are like; {} where nothing is known of them."""
    results = {entry.name: entry.result.figures.get("calibration") for entry in facts.stages if entry.result}
    calibration = {name: known.written() for name, value in results.items() if value and (known := figures_of(value, TextsFigures))}
    comparison = {"comparison": reference.texts.written()} if reference.texts else {}
    return {**comparison, **({"calibration": calibration} if calibration else {})}


def _checkpoint(reference: CheckpointRef) -> Checkpoint:
    named = reference.model_dump(exclude={"base_name", "base_revision"})
    return Checkpoint(**named, identity=reference.identity)


def _base(facts: JobFacts, folder: str | None, merge: MergeFigures | None) -> Base:
    place = facts.base or folder
    named = hub.name_of(facts.checkpoint.base_name, Path(place or ""))
    # Only where the merge has read the base: of one that can't be read, or that does not answer, a report is written all the same.
    repository = hub.repository_of(named, Path(place)) if place and merge else named.repository
    terms = hub.license_of(Path(place), repository) if place and merge else None
    return Base(
        name=facts.checkpoint.base_name,
        revision=facts.checkpoint.base_revision,
        folder=place,
        repository=repository,
        license=terms.license if terms else None,
        license_name=terms.license_name if terms else None,
        license_link=terms.license_link if terms else None,
        digest=merge.base_digest if merge else None,
        size_bytes=merge.base_bytes if merge else None,
        parameters=merge.parameters if merge else None,
        dtype=merge.base_dtype if merge else None,
    )


def _versions(facts: JobFacts) -> dict[str, str]:
    """Versions that the stages loaded; a library of which two versions took part shows both."""
    loaded: dict[str, list[str]] = {"ckptd": [__version__]}
    for stage in facts.stages:
        for name, version in (stage.result.versions if stage.result else {}).items():
            if version not in loaded.setdefault(name, []):
                loaded[name].append(version)
    return {name: " and ".join(versions) for name, versions in sorted(loaded.items())}


def _cpu_seconds(facts: JobFacts) -> tuple[float | None, float | None]:
    """Processor time of the export's stages, and of those of them that compare: the reference and the checks."""
    used = {stage.name: stage.result.cpu_seconds for stage in facts.stages if stage.result and stage.result.cpu_seconds}
    if not used:
        return None, None
    checking = (seconds for name, seconds in used.items() if name == "reference" or ((spec := find_spec(name)) and spec.checks))
    return round(sum(used.values()), 3), round(sum(checking), 3)


def _belongs(stage: StageFacts, context: StageContext) -> bool:
    """The report's own stage belongs to the report only when earlier attempts of it have ended."""
    return stage.name != context.stage or any(attempt.ended for attempt in stage.attempts)


def _stage(stage: StageFacts, context: StageContext) -> Stage:
    own = stage.name == context.stage
    result = stage.result
    estimates = [attempt.estimate for attempt in stage.attempts if attempt.estimate is not None]
    return Stage(
        name=stage.name,
        state=stage.state,
        seconds=result.seconds if result else None,
        cpu_seconds=(result.cpu_seconds or None) if result else None,
        peak_rss_bytes=(result.peak_rss or None) if result else None,
        estimated_bytes=estimates[-1] if estimates else None,
        strategy=result.strategy if result else None,
        attempts=tuple(_attempt(attempt) for attempt in stage.attempts if attempt.ended or not own),
        fallbacks=tuple(map(fallback_in_words, result.fallbacks)) if result else (),
        warnings=tuple(map(translated_text, result.warnings)) if result else (),
        fault=verdicts.fault_of(stage),
        figures=result.figures if result else {},
    )


def _attempt(attempt: AttemptFacts) -> Attempt:
    return Attempt(seconds=_between(attempt.started, attempt.ended), **attempt.model_dump(exclude={"estimate"}))


def _artifact(check: ArtifactCheck, facts: JobFacts, base_bytes: int | None) -> Artifact:
    stage = next((stage for stage in facts.stages if stage.name == check.variant), None)
    made = verdicts.was_made(stage)
    published = made and verdicts.is_published(check, facts.work.validation)
    size = stage.result.size if made and stage and stage.result else None
    limits = facts.work.validation.thresholds.get(check.variant)
    return Artifact(
        variant=check.variant,
        verdict=check.verdict,
        published=published,
        reasons=check.reasons,
        remedy=check.remedy,
        failed_stage=failed[0] if (failed := verdicts.failed_stage(check, verdicts.stages_of(facts))) else None,
        folder=check.variant if published else None,
        files=stage.result.files if made and stage and stage.result else (),
        size_bytes=size,
        size_ratio=round(size / base_bytes, 4) if size is not None and base_bytes else None,
        needs=translated_text(needs) if (needs := verdicts.needs(check)) else None,
        limits={**vars(limits), "perplexity": limits.perplexity_ratio} if limits else {},
        figures=check.figures,
    )


def _faults(facts: JobFacts, own: str) -> list[tuple[str, Fault]]:
    """Stages that failed, in plan order, without `own`. One that was skipped since another failed did not fail itself."""
    faults = [(stage.name, fault) for stage in facts.stages if (fault := verdicts.fault_of(stage)) and stage.name != own]
    faults = [(name, fault) for name, fault in faults if fault.code != FaultCode.SKIPPED] or faults
    return [(name, fault_in_words(fault)) for name, fault in faults]


def _failures(
    facts: JobFacts, checks: tuple[ArtifactCheck, ...], faults: list[tuple[str, Fault]], stories: tuple[Replaced, ...]
) -> tuple[Failure, ...]:
    """Stages that failed, in plan order, then artifacts that were made and not published, then those lost without a fault. Of forms that
    were tried in the place of others the story of these tells."""
    instead = {story.asked: story.taken for story in stories if story.taken}
    tried = set(verdicts.added_variants(facts))
    logs = {stage.name: next((attempt.log for attempt in reversed(stage.attempts) if attempt.log), None) for stage in facts.stages}
    stages = {stage.name: stage for stage in facts.stages}
    made = {name for name, stage in stages.items() if verdicts.was_made(stage)}
    entries = [
        Failure(
            source=name,
            variant=None,
            sentence=_what_failed(fault),
            remedy=fault.remedy,
            code=fault.code,
            cause=fault.cause,
            log=logs[name],
            details=fault.details,
        )
        for name, fault in faults
    ]
    for check in checks:
        wrong = check.variant in made
        checked = verdicts.checking_stage(check.variant, stages)
        if verdicts.is_published(check, facts.work.validation) or (not wrong and verdicts.culprit(check.variant, stages)):
            continue
        if wrong and check.variant in tried and check.of_precision:
            continue
        if check.verdict is Verdict.UNVERIFIED and checked and verdicts.fault_of(checked):
            continue  # that stage's own entry says it
        said = (
            translated("The artifact {variant} was made and is not published: {reasons}.") if wrong
            else translated("The artifact {variant} is missing: {reasons}.")
        )  # fmt: skip
        reasons = sentences(reason.rstrip(".。") for reason in check.reasons) or translated("validation gave no reason")
        source = checked.name if wrong and checked else check.variant
        code = FaultCode.ARTIFACT_REJECTED if wrong else FaultCode.ARTIFACT_MISSING
        entries.append(
            Failure(
                source=source,
                variant=check.variant,
                sentence=said.format(variant=check.variant, reasons=reasons),
                remedy=translated(_INSTEAD).format(taken=instead[check.variant])
                if check.variant in instead
                else check.remedy or translated_text(verdicts.GENERAL_REMEDY),
                code=code,
                cause=reasons,
                log=logs.get(source),
                details=None,
            )
        )
    return tuple(entries)


def _what_failed(fault: Fault) -> str:
    """The fault's sentence without the remedy, which stands beside it."""
    if fault.path:
        words = translated("Could not {operation} ({path}): {cause}.")
        return words.format(operation=fault.operation, path=fault.path, cause=fault.cause)
    return translated("Could not {operation}: {cause}.").format(operation=fault.operation, cause=fault.cause)


def _warnings(facts: JobFacts, live: LiveFigures | None) -> tuple[Warned, ...]:
    warnings = [Warned(source="job", text=translated_text(text)) for text in facts.warnings]
    adapter = live.adapter if live else None
    if blind := blindness(adapter, verdicts.asked_variants(facts), facts.work.validation.thresholds):
        warnings.append(Warned(source="reference", text=blind))
    for stage in facts.stages:
        warnings += [Warned(source=stage.name, text=translated_text(text)) for text in (stage.result.warnings if stage.result else ())]
        warnings += [Warned(source=stage.name, text=text) for text in _damaged(stage)]
    return tuple(warnings)


def _damaged(stage: StageFacts) -> Iterator[str]:
    """What of a stage's figures is of another kind than it should be, and so counts as missing."""
    if stage.result is None:
        return
    names = list(unreadable(stage.result.figures, _MODELS.get(stage.name, Checking))) if stage.result.figures else []
    for check in stage.result.checks:
        names += [f"{check.variant}.{name}" for name in unreadable(check.figures, ArtifactFigures)]
    if names:
        shown = list_names(name.strip(".") or translated("all") for name in names[:MOST_NAMES])
        if len(names) > MOST_NAMES:
            shown = translated("{names} and {count} more").format(names=shown, count=len(names) - MOST_NAMES)
        yield translated("Figures that can't be read count as missing: {names}. Nothing else is affected.").format(names=shown)


def _worked(facts: JobFacts, now: datetime) -> float | None:
    """Seconds from the first attempt to `now`, without pauses: before it was tried again, or while what it needs was away."""
    whole = _between(facts.started or facts.created, now.isoformat())
    spans = [(attempt.started, attempt.ended or now.isoformat()) for stage in facts.stages for attempt in stage.attempts]
    try:
        parts = sorted((_moment(start), _moment(end)) for start, end in spans)
    except ValueError:
        return whole
    begun = _between(parts[0][0].isoformat(), now.isoformat()) if parts else None
    total = whole if begun is None or whole is None else min(whole, begun)
    idle, reached = 0.0, None
    for start, end in [*parts, (now if now.tzinfo else now.replace(tzinfo=UTC),) * 2]:
        gap = (start - reached).total_seconds() if reached else 0.0
        idle += gap if gap > IDLE else 0.0
        reached = end if reached is None else max(reached, end)
    return None if total is None else round(max(0.0, total - idle), 3)


def _between(start: str | None, end: str | None) -> float | None:
    """Seconds between two ISO times; None when one is missing, unreadable, or the clock ran backwards."""
    try:
        if start is None or end is None:
            return None
        seconds = (_moment(end) - _moment(start)).total_seconds()
    except ValueError:
        return None
    return round(seconds, 3) if seconds >= 0 else None


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
