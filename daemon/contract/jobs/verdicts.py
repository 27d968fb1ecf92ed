"""The verdict of each variant asked for, and the status of the export that follows from them.

Pure functions over the contract's data, so that the daemon and the report always agree. They judge from the journal's facts alone and never
look at files. The figures are forty types, which are imported where some are read: `ckptd status` asks for verdicts alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.fallbacks import WayDown, way_down
from daemon.contract.jobs.messages import ArtifactCheck, Outcome, StageFacts, Status, Verdict
from daemon.contract.jobs.plan import CHECK, check_of, effective_variants, find_spec, find_variant, variant_names
from daemon.contract.jobs.tasks import EVALUATE, StageEnd, with_evaluation
from daemon.contract.jobs.terms import CheckTerms, Judged, Terms
from daemon.contract.values import Json

GENERAL_REMEDY = "read the log of the stage's last attempt, then run `ckptd queue retry` with the export's id"


def status_of(asked: Sequence[str], checks: Iterable[ArtifactCheck], rules: CheckTerms, added: Sequence[str] = ()) -> Status:
    """The status of an export from the variants `asked` for, those `added` in place of some of them, and the `checks` of all.

    - "succeeded": something was asked for, and every variant asked for passed;
    - "failed": nothing of them is published, so there is nothing to use;
    - "partial": everything between. What is published without a check, or though it failed, is nothing that succeeded, so the status is
      then "partial" at best, with or without artifacts that passed.

    A variant without a check counts as failed; checks of other variants count for nothing.
    """
    by_variant = {check.variant: check for check in checks}
    verdicts = [by_variant[variant].verdict if variant in by_variant else Verdict.FAILED for variant in asked]
    if not any(variant in by_variant and is_published(by_variant[variant], rules) for variant in (*asked, *added)):
        return "failed"
    return "succeeded" if all(verdict is Verdict.PASSED for verdict in verdicts) else "partial"


def status_that_follows(facts: Judged) -> Status:
    """The status of a job's export from the journal's facts."""
    return status_of(asked_variants(facts), judge(facts, speeds=False), facts.work.validation, added_variants(facts))


def asked_variants(facts: Judged) -> tuple[str, ...]:
    """The variants that the job was to publish, in plan order; last those that nobody has any more, since their package was removed."""
    return _asked(facts.work)


def _asked(work: Terms) -> tuple[str, ...]:
    chosen = work.export.variants
    return (*effective_variants(chosen, work.export.quantization), *(name for name in chosen if find_variant(name) is None))


def way_down_of(work: Terms, stages: Mapping[str, StageEnd]) -> WayDown:
    """Which forms take the place of variants whose check failed, as far as the checks are there. `stages`: by their names."""
    results = {name: stage.result for name, stage in stages.items()}
    given = _given(stages, work.validation)
    seconds = {name: result.seconds for name, result in results.items() if result}
    return way_down(_asked(work), given, seconds, work.validation, _lost(work.validation, stages, given))


def _lost(rules: CheckTerms, stages: Mapping[str, StageEnd], given: Mapping[str, ArtifactCheck]) -> dict[str, str]:
    """Variant → why it ended without a verdict, or with none that publishes it: it was not made, or nothing here could check it."""
    lost = {}
    for variant in variant_names():
        check = given.get(variant)
        if check is not None:
            if check.verdict is Verdict.UNVERIFIED and not is_published(check, rules):
                lost[variant] = check.reasons[0] if check.reasons else "it could not be checked"
            continue
        for name, what in ((variant, "made"), (_checker(variant), "checked")):
            stage = stages.get(name)
            if stage is not None and stage.state in ("failed", "skipped"):
                fault = stage.fault or (stage.result.fault if stage.result else None)
                lost[variant] = f"it could not be {what}{f': {fault.cause}' if fault else ''}"
                break
    return lost


def stages_of(facts: Judged) -> dict[str, StageFacts]:
    """The stages of a job by their names."""
    return {stage.name: stage for stage in facts.stages}


def added_variants(facts: Judged) -> tuple[str, ...]:
    """The variants that took the place of others, as far as the job has their stages, in plan order."""
    stages = stages_of(facts)
    added = set(way_down_of(facts.work, stages).added) & stages.keys()
    return tuple(name for name in variant_names() if name in added)


def replaced_by(facts: Judged, checks: Iterable[ArtifactCheck]) -> dict[str, list[str]]:
    """Published variant → the variants asked for whose place it takes."""
    down, by_variant = way_down_of(facts.work, stages_of(facts)), {check.variant: check for check in checks}
    taken: dict[str, list[str]] = {}
    for asked in dict.fromkeys(step.asked for step in down.steps):
        last = down.chain(asked)[-1]
        if last in by_variant and is_published(by_variant[last], facts.work.validation):
            taken.setdefault(last, []).append(asked)
    return taken


def was_made(stage: StageFacts | None) -> bool:
    """Whether the stage ended with a result."""
    return stage is not None and stage.result is not None and stage.result.outcome is Outcome.SUCCEEDED


def fault_of(stage: StageFacts) -> Fault | None:
    """Why the stage failed in the end; None when it succeeded or has not failed."""
    if was_made(stage):
        return None
    if stage.fault is not None:
        return stage.fault
    if stage.result is not None and stage.result.fault is not None:
        return stage.result.fault
    return next((attempt.fault for attempt in reversed(stage.attempts) if attempt.fault is not None), None)


def culprit(variant: str, stages: Mapping[str, StageFacts]) -> tuple[str, Fault] | None:
    """The stage that kept `variant` (or another stage) from being made, with its fault: its own first, then those that it needs.

    A stage that was skipped, since one that it needs gave no output, is it only where no other one failed.
    """
    queue, skipped = [variant], None
    while queue:
        name = queue.pop(0)
        stage = stages.get(name)
        if stage is not None and (fault := fault_of(stage)):
            if fault.code != FaultCode.SKIPPED:
                return name, fault
            skipped = skipped or (name, fault)
        spec = find_spec(name)
        queue.extend(spec.needs if spec else ())
    return skipped


def judge(facts: Judged, *, speeds: bool = True) -> tuple[ArtifactCheck, ...]:
    """One final check for each variant asked for, then for each that took the place of one: that of the stage that checks it where there
    is one, else what its absence means. `speeds`: with what the stage `speed` measured among their figures."""
    stages = stages_of(facts)
    given = _given(stages, facts.work.validation)
    if speeds:
        _add_speeds(given, facts)
    return tuple(_judged(variant, stages, given.get(variant)) for variant in (*asked_variants(facts), *added_variants(facts)))


def _add_speeds(given: dict[str, ArtifactCheck], facts: Judged) -> None:
    from daemon.contract.jobs.figures import SpeedFigures, stage_figures

    measured = stage_figures(facts, "speed", SpeedFigures)
    for variant, speed in measured.speed.items() if measured else ():
        if variant in given:
            given[variant] = given[variant].model_copy(update={"figures": {**given[variant].figures, **speed.written()}})


def _given(stages: Mapping[str, StageEnd], rules: CheckTerms) -> dict[str, ArtifactCheck]:
    """Variant → the check that its stage gave, with what the user's own tasks say."""
    checks = (check for name, stage in stages.items() if stage.result for check in stage.result.checks if name == _checker(check.variant))
    return {check.variant: with_evaluation(check, stages.get(f"{EVALUATE}{check.variant}"), rules.tasks) for check in checks}


def checking_stage(variant: str, stages: Mapping[str, StageFacts]) -> StageFacts | None:
    """The stage that was to check a variant, or the one before it that kept it from running."""
    chain = (stages.get("reference"), stages.get(_checker(variant)))
    return next((stage for stage in chain if stage and fault_of(stage)), chain[-1])


def failed_stage(check: ArtifactCheck, stages: Mapping[str, StageFacts]) -> tuple[str, Fault] | None:
    """The stage that failed, so that the artifact was not made or not checked, with its fault; None where none did. One that was skipped
    for want of another is not it."""
    if check.verdict is Verdict.PASSED:
        return None
    made = was_made(stages.get(check.variant))
    checked = checking_stage(check.variant, stages)
    if made and (check.verdict is not Verdict.UNVERIFIED or checked is None or not fault_of(checked)):
        return None
    return culprit(checked.name if made and checked else check.variant, stages)


def _checker(variant: str) -> str:
    """Name of the stage that checks a variant, or that did while there was one of that name."""
    spec = check_of(variant)
    return spec.name if spec else f"{CHECK}{variant}"


def _judged(variant: str, stages: dict[str, StageFacts], check: ArtifactCheck | None) -> ArtifactCheck:
    if not was_made(stages.get(variant)):
        origin = culprit(variant, stages)
        if origin is None:
            state = stages[variant].state if variant in stages else "not planned"
            reason, remedy = f"it was not made: its stage is {state}", GENERAL_REMEDY
        else:
            reason, remedy = f"it was not made: {origin[0]} failed: {origin[1].cause}", origin[1].remedy
        if check is not None and check.verdict is Verdict.FAILED and check.reasons:
            return check.model_copy(update={"remedy": check.remedy or remedy})
        return ArtifactCheck(variant=variant, verdict=Verdict.FAILED, reasons=(reason,), remedy=remedy)
    if check is not None:
        needs_remedy = check.verdict is not Verdict.PASSED and not check.remedy
        return check.model_copy(update={"remedy": _default_remedy(check.verdict)}) if needs_remedy else check
    stage = checking_stage(variant, stages)
    fault = fault_of(stage) if stage else None
    why = f"it could not be checked: {fault.cause}" if fault else "no stage checked it"
    return ArtifactCheck(
        variant=variant, verdict=Verdict.UNVERIFIED, reasons=(why,), remedy=fault.remedy if fault else _default_remedy(Verdict.UNVERIFIED)
    )


def is_published(check: ArtifactCheck, rules: CheckTerms) -> bool:
    """What a check leads to: what passed is published, what nobody could verify if `validate.publish_unverified` names it, and what is
    not exact enough if `validate.on_failed_check` is "publish".

    The one rule that publication and report follow.
    """
    if check.verdict is Verdict.FAILED:
        return check.of_precision and rules.on_failed_check == "publish"
    return check.verdict is Verdict.PASSED or check.variant in rules.publish_unverified


def checked_on(facts: Judged) -> Json:
    """The processor that the checks ran on (architecture, vendor, model, features), as they say; {} where none ran."""
    from daemon.contract.jobs.figures import Checking, figures_of

    said = (figures_of(stage.result.figures, Checking) for stage in facts.stages if stage.result)
    return next((figures.checked_on.written() for figures in said if figures and figures.checked_on), {})


def measured_on(facts: Judged) -> Json:
    """The processor on which speeds were measured, as `checked_on`; {} where none were."""
    from daemon.contract.jobs.figures import SpeedFigures, figures_of

    said = (figures_of(stage.result.figures, SpeedFigures) for stage in facts.stages if stage.result and "speed" in stage.result.figures)
    return next((figures.measured_on.written() for figures in said if figures and figures.measured_on), {})


def needs(check: ArtifactCheck) -> str | None:
    """Which processors give the answers that validation saw, as it says; None where it says nothing."""
    from daemon.contract.jobs.figures import CheckFigures, figures_of

    figures = figures_of(check.figures, CheckFigures)
    return figures.needs if figures else None


def _default_remedy(verdict: Verdict) -> str:
    if verdict is Verdict.UNVERIFIED:
        return (
            "run `ckptd queue retry` with the export's id when the check can run here, or name the variant in validate.publish_unverified"
        )
    return "leave this variant out of export.variants, or loosen its limits in [validate.limits] if the figures are good enough for you"
