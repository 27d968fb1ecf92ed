"""What became of each variant that an export was asked for, by the journal: for `ckptd status`, `list`, `show` and `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from daemon.contract.jobs.messages import ArtifactCheck, StageFacts, Verdict
from daemon.contract.jobs.terms import Terms
from daemon.contract.jobs.verdicts import added_variants, failed_stage, judge, replaced_by, stages_of
from daemon.contract.light import dataclass
from daemon.journal.attempts import stage_facts
from daemon.journal.overview import JobView
from daemon.operating.monitoring.reasons import failure, rejection

JUDGED = ("succeeded", "partial", "failed")
"""States of a job in which each variant has its verdict."""


UNPUBLISHED = "unpublished"
"""In place of the verdict of an artifact that passed, and whose export could not be put into its place."""


@dataclass(frozen=True)
class LostArtifact:
    """A variant that was not made or not checked because a stage failed."""

    variant: str
    """Its name, for example `onnx-int8`."""
    stage: str
    """The stage that failed."""
    cause: str
    """Why it failed, as a clause in one line."""
    code: str = ""
    """Fault code of the cause."""


@dataclass(frozen=True)
class _Judged:
    """What a verdict follows from."""

    work: Terms
    stages: tuple[StageFacts, ...]


@dataclass(frozen=True)
class Became:
    """The variants of an export."""

    verdicts: Mapping[str, str] = field(default_factory=dict)
    """Variant → verdict; of an export that has not ended, of those that were checked."""
    lost: tuple[LostArtifact, ...] = ()
    reasons: tuple[str, ...] = ()
    """Why variants are not there or not published, in a few words each."""
    replaced: Mapping[str, str] = field(default_factory=dict)
    """Variant asked for that was not exact enough → the form that is published in its place."""
    added: tuple[str, ...] = ()
    """The forms that nobody asked for, made in the place of others."""
    undecided: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Variant → the limits of which the texts do not say whether it keeps them."""


def became(view: JobView) -> Became:
    """What became of the variants of a job."""
    if view.job.state not in JUDGED:
        given = (check for stage in view.stages if stage.result for check in stage.result.checks)
        checked = tuple(given)
        return Became({check.variant: str(check.verdict) for check in checked}, undecided=_undecided(checked))
    facts = _Judged(view.job.terms, stage_facts(view.stages))
    stages, lost, reasons = stages_of(facts), list[LostArtifact](), list[str]()
    checks, added = judge(facts, speeds=False), added_variants(facts)
    replaced = {asked: taken for taken, names in replaced_by(facts, checks).items() for asked in names}
    for check in checks:
        if check.variant in replaced:
            reasons.append(f"replaced by {replaced[check.variant]}")
        elif check.variant in added and replaced:
            continue  # what was tried on the way
        elif failed := failed_stage(check, stages):
            lost.append(LostArtifact(check.variant, failed[0], " ".join(failed[1].cause.split()), failed[1].code))
            reasons.append(failure(failed[1].code))
        elif check.verdict is not Verdict.PASSED:
            reasons.append(rejection(check))
    refused = view.job.state == "failed" and view.job.reason is not None
    return Became(
        {check.variant: UNPUBLISHED if refused and check.verdict is Verdict.PASSED else str(check.verdict) for check in checks},
        tuple(lost), tuple(reasons), replaced, added, _undecided(checks),
    )  # fmt: skip


def _undecided(checks: Iterable[ArtifactCheck]) -> dict[str, tuple[str, ...]]:
    """The limits that are undecided, of the variants that have such ones."""
    limits = {check.variant: tuple(str(row["limit"]) for row in check.figures.get("decisions") or () if _is_open(row)) for check in checks}
    return {variant: names for variant, names in limits.items() if names}


def _is_open(decision: Mapping[str, Any]) -> bool:
    """Whether texts were read and do not decide it; what is not written has its default."""
    return decision.get("outcome", "undecided") == "undecided" and bool(decision.get("texts"))
