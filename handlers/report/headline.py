"""What stands first in a report: the status in one line, and what to deploy. Pure. The verdicts are `daemon.contract.jobs.verdicts`'s.

The rule of the recommendation, which docs/validation.md tells too. Considered is what passed its check, is published, and can be put to
use; what needs its base beside it (an adapter alone) only where nothing else passed. Of these the fastest over PyTorch is named; where
others come within `NEAR` of its speed, the one of them whose answers are nearest to the live model's, and of equals the smallest. Where no
speed was measured, the smallest takes the place of the fastest, by the same rule. The smallest, if it is more than 5 % smaller,
and the nearest are named beside it, for whom these matter more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from daemon.contract.errors import Fault
from daemon.contract.jobs.messages import ArtifactCheck, Status, Verdict
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.jobs.plan import find_variant
from daemon.contract.jobs.verdicts import is_published
from handlers.report import units
from handlers.report.model import Artifact, Choice, Preference, Recommendation, Replaced, Report
from handlers.report.usage import Usage

NEAR = 0.1
"""Share by which speeds, or sizes, may differ and count as equal: repeated measurements differ by as much."""
SAME_SIZE = 0.05
"""Share by which sizes may differ for the smaller one to be no reason to choose it."""
RULE = (
    "The rule: of the artifacts that passed their check, take the {} one; if others are within 10 % of it, take the one of"
    " them whose outputs are closest to the live model's. An artifact that failed, or was not checked, is never recommended."
)


def verdict_line(
    status: Status,
    checks: Sequence[ArtifactCheck],
    faults: Sequence[tuple[str, Fault]],
    rules: ValidateOptions,
    stories: Sequence[Replaced] = (),
) -> str:
    """The status in one line: how many artifacts passed, which did not, what took their place, and the first thing that failed."""
    if status == "failed":
        why = f"the stage {faults[0][0]} failed: {faults[0][1].cause}" if faults else "; ".join(_short(check) for check in checks)
        return f"Failed: nothing was published. Reason: {(why or 'no variant was asked for').rstrip('.')}."
    published = {check.variant for check in checks if is_published(check, rules)}
    return _counted(status, [(check.variant, check.verdict) for check in checks], published, stories)


def title_line(report: Report) -> str:
    """The status in one line for the top of the page, which gives the causes below it."""
    if report.status == "failed":
        return "Failed: nothing was published."
    published = {artifact.variant for artifact in report.published}
    return _counted(report.status, [(artifact.variant, artifact.verdict) for artifact in report.artifacts], published, report.replaced)


def _counted(status: Status, verdicts: Sequence[tuple[str, Verdict]], published: Collection[str], stories: Sequence[Replaced]) -> str:
    by_verdict = {verdict: [name for name, found in verdicts if found is verdict] for verdict in Verdict}
    passed, failed, unchecked = (by_verdict[verdict] for verdict in (Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIED))
    if status == "succeeded":
        many = f"all {len(passed)} artifacts" if len(passed) > 1 else "the artifact"
        return f"Succeeded: {many} passed validation ({', '.join(passed)})."
    instead = {story.asked: story.taken for story in stories if story.taken}
    parts = [f"{len(passed)} of {len(verdicts)} artifacts passed"]
    for names, what in (
        ([name for name in failed if name not in published], "failed and {} not published"),
        ([name for name in failed if name in published], "failed and {} published nevertheless"),
        ([name for name in unchecked if name in published], "{} published unverified"),
        ([name for name in unchecked if name not in published], "{} not published, because no check could run"),
    ):
        if names:
            parts.append(f"{', '.join(names)} {what.format('is' if len(names) == 1 else 'are')}")
    parts += [f"{taken} takes the place of {asked}" for asked, taken in instead.items()]
    return f"Partial: {'; '.join(parts)}."


def _short(check: ArtifactCheck) -> str:
    return f"{check.variant}: {check.reasons[0]}" if check.reasons else f"{check.variant} {check.verdict}"


def recommend(report: Report) -> Recommendation:
    """What to deploy, by the rule above; `best` is None where nothing may be recommended, and the sentence says so."""
    usable = [artifact for artifact in report.artifacts if _deploys(artifact) == "alone"]
    usable = usable or [artifact for artifact in report.artifacts if _deploys(artifact) == "over its base"]
    if not usable:
        return Recommendation(
            sentence="Nothing is recommended: no artifact that can be deployed passed a comparison with the live model.",
            rule="",
            best=None,
        )
    fastest, smallest, nearest = _fastest(usable), _smallest(usable), min(usable, key=_loss)
    kind: Preference = "fastest" if fastest else "smallest"
    best = fastest or smallest or nearest
    usage = Usage(report)
    found: dict[str, Choice] = {}
    if smallest is not None and any(_about_as_small(one, smallest) for one in (best, nearest)):
        smallest = None
    ranked: tuple[tuple[Preference, Artifact | None], ...] = ((kind, best), ("smallest", smallest), ("nearest", nearest))
    for preference, artifact in ranked:
        if artifact is not None and artifact.variant not in found:
            found[artifact.variant] = _choice(preference, artifact, usage)
    first, *others = found.values()
    return Recommendation(sentence=f"Deploy {first.sentence}.", rule=RULE.format(kind), best=first, others=tuple(others))


def _deploys(artifact: Artifact) -> str:
    """How the artifact is put to use, "not" where it may not be recommended: only what was compared and passed may be."""
    figures, variant = artifact.measured, find_variant(artifact.variant)
    compared = figures.agreement is not None or figures.error_max is not None
    if variant is None or artifact.verdict is not Verdict.PASSED or not artifact.published or not compared:
        return "not"
    return variant.deploys


def _fastest(usable: Sequence[Artifact]) -> Artifact | None:
    """None where no speed was measured.

    Compared is the speed over PyTorch's, which ran in turns with each of them: tokens a second were measured at other times.
    """
    speeds = {artifact.variant: speed for artifact in usable if (speed := _over_pytorch(artifact))}
    if not any(artifact.measured.speed_over_pytorch for artifact in usable):
        speeds = {artifact.variant: speed for artifact in usable if (speed := artifact.measured.tokens_per_second)}
    return _nearest_of(usable, speeds, lambda speed: speed >= (1 - NEAR) * max(speeds.values()))


def _over_pytorch(artifact: Artifact) -> float | None:
    """The merged model in PyTorch is what the others are measured against."""
    return artifact.measured.speed_over_pytorch or (1.0 if _is_merged(artifact) and artifact.measured.tokens_per_second else None)


def _is_merged(artifact: Artifact) -> bool:
    variant = find_variant(artifact.variant)
    return variant is not None and "merged" in variant.traits


def _smallest(usable: Sequence[Artifact]) -> Artifact | None:
    """None where no size is known."""
    sizes = {artifact.variant: float(size) for artifact in usable if (size := artifact.size_bytes)}
    return _nearest_of(usable, sizes, lambda size: size <= (1 + NEAR) * min(sizes.values()))


def _about_as_small(artifact: Artifact, smallest: Artifact) -> bool:
    """Whether nobody would take the smallest instead of another artifact that is recommended, for its size."""
    return artifact is not smallest and (artifact.size_bytes or math.inf) * (1 - SAME_SIZE) <= (smallest.size_bytes or 0)


def _nearest_of(usable: Sequence[Artifact], figures: dict[str, float], near: Callable[[float], bool]) -> Artifact | None:
    """Of the artifacts whose figure is near to the best one, the one that lost least."""
    return min(
        (artifact for artifact in usable if artifact.variant in figures and near(figures[artifact.variant])), key=_loss, default=None
    )


def _loss(artifact: Artifact) -> tuple[float, float, float]:
    """How far it is from the live model, then its size: divergence where the task has one, else the largest error."""
    figures = artifact.measured
    error = figures.error_max if figures.error_max is not None else float("inf")
    return (figures.kl if figures.kl is not None else error, error, artifact.size_bytes or float("inf"))


def _choice(preference: Preference, artifact: Artifact, usage: Usage) -> Choice:
    install, run, language = usage.blocks(artifact.variant)
    return Choice(
        preference=preference, variant=artifact.variant, sentence=f"{artifact.variant}: {', '.join(_merits(artifact))}", install=install,
        run=run, language=language,
    )  # fmt: skip


def _merits(artifact: Artifact) -> list[str]:
    """What speaks for it, as far as it was measured."""
    figures, merits = artifact.measured, list[str]()
    variant = find_variant(artifact.variant)
    if figures.speed_over_pytorch is not None and not _is_merged(artifact):
        merits.append(f"{units.times(figures.speed_over_pytorch)} as fast as PyTorch")
    if figures.agreement is not None:
        merits.append(f"{units.percent(figures.agreement)} agreement with the live model")
    elif figures.error_max is not None:
        merits.append(f"largest error {units.number(figures.error_max)} σ of the live model's outputs")
    if artifact.size_bytes is not None:
        of_base = f" ({units.times(artifact.size_ratio)} the base's weights)" if artifact.size_ratio is not None else ""
        merits.append(f"{units.size(artifact.size_bytes)}{of_base}")
    if variant is not None and variant.deploys == "over its base":
        merits.append("needs its base model too")
    return merits
