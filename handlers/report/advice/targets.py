"""Which artifact to deploy at each target, by the measured figures, and why, in one sentence each. Pure; `headline` calls it.

The rules, which docs/validation.md tells too. Considered is what passed its check, is published, and is declared for the target. At
`cpu-server` the fastest is taken, elsewhere the smallest; of those within `ranking.NEAR` of it the one whose answers are nearest to the
live model's, where the paired interval shows that they are (`ranking.nearest`), else the smallest of these. At `nvidia`, for which no
speed is measured here, forms that are declared for it come before those that can be used there too; in a browser, what a page loads as it
is; on a laptop, what does not take a Mac.
"""

from __future__ import annotations

from collections.abc import Sequence

from daemon.contract.advice.which import joined, weight_said
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import Target
from daemon.contract.formats.targets import TARGETS, fitting, lacking, made_for
from daemon.contract.jobs.messages import Verdict
from daemon.contract.language.catalog import to_translate, translated, translated_plural
from daemon.contract.language.lists import clauses, names, sentences
from daemon.contract.language.recorded import translated_text
from handlers.report.advice import ranking
from handlers.report.model import Artifact, Report, TargetChoice

BY_SPEED: frozenset[Target] = frozenset({"cpu-server"})
"""Targets where the fastest is taken, and not the smallest."""
NO_GPU = to_translate("not run on a GPU here")
_SAME = 1e-6
"""Divergence, in nats, below which two artifacts count as equally near."""
_MOST = 160
"""Characters of a reason."""


def choices(report: Report) -> tuple[TargetChoice, ...]:
    """One for each target that `export.deploy` names; without it, one for each target for which something passed."""
    asked = _asked(report)
    answers = [_choice(target, report) for target in TARGETS if target in asked or not asked]
    return tuple(answer for answer in answers if asked or answer.variant is not None)


def rows(report: Report) -> tuple[tuple[str, str, str], ...]:
    """(targets, artifact, why) for a table: targets with the same answer share a row."""
    grouped: dict[tuple[str, str], list[str]] = {}
    for choice in report.recommendation.targets:
        why = choice.sentence.removeprefix(choice.variant).lstrip(":： ") if choice.variant else choice.sentence
        grouped.setdefault((choice.variant or translated("none"), f"{why[:1].upper()}{why[1:]}"), []).append(choice.target)
    return tuple((names(places), variant, why) for (variant, why), places in grouped.items())


def _asked(report: Report) -> list[str]:
    export = report.configuration.get("export")
    named = export.get("deploy") if isinstance(export, dict) else None
    return [name for name in named if isinstance(name, str)] if isinstance(named, list | tuple) else []


def _choice(target: Target, report: Report) -> TargetChoice:
    able = {spec.name for spec in fitting(target, catalog())}
    here = [artifact for artifact in report.artifacts if artifact.variant in able]
    usable = [artifact for artifact in here if ranking.deploys(artifact) in ranking.USABLE]
    usable = [artifact for artifact in usable if artifact.variant in _first(target)] or usable
    fastest = ranking.fastest(usable) if target in BY_SPEED else None
    best = fastest or ranking.smallest(usable) or (ranking.nearest(usable) if usable else None)
    if best is None:
        return TargetChoice(target=target, variant=None, sentence=_nothing(target, here))
    equal = tuple(artifact.variant for artifact in usable if artifact is not best and _equal(artifact, best, by_speed=fastest is not None))
    return TargetChoice(
        target=target, variant=best.variant, equal=equal,
        sentence=_why(target, best, usable, equal, by_speed=fastest is not None),
    )  # fmt: skip


def _first(target: Target) -> set[str]:
    """Variants that come before others which can be used at a target too."""
    if target == "nvidia":
        return {spec.name for spec in made_for(target, catalog())}
    return {variant.name for declared in catalog().formats if target in declared.recommended_first for variant in declared.variants}


def _why(target: Target, best: Artifact, usable: Sequence[Artifact], equal: Sequence[str], *, by_speed: bool) -> str:
    why = translated("the only one that fits and passed") if len(usable) == 1 else _chosen(best, usable, equal, by_speed=by_speed)
    reason = translated("{variant}: {why}: {merits}")
    merits = clauses(ranking.merits(best, speed=target != "nvidia"))
    parts = [reason.format(variant=best.variant, why=why, merits=merits)]
    if equal:
        alike = translated_plural("by the figures, {variants} is equal", "by the figures, {variants} are equal", len(equal))
        parts.append(alike.format(variants=joined(equal)))
    if target in BY_SPEED and not by_speed:
        parts.append(translated("no speed was measured"))
    if target == "nvidia":
        parts.append(translated(NO_GPU))
    return translated("{sentence}.").format(sentence=sentences(parts))


def _chosen(best: Artifact, usable: Sequence[Artifact], equal: Sequence[str], *, by_speed: bool) -> str:
    """Why it was chosen among several."""
    first = max(usable, key=lambda artifact: (_figure(artifact, by_speed=by_speed) or 0) * (1 if by_speed else -1))
    if first is not best and _figure(first, by_speed=by_speed) != _figure(best, by_speed=by_speed):
        return _near(best, first, by_speed=by_speed).format(first=first.variant, nearness=_nearness(best, first))
    if not by_speed:
        return translated("the smallest of the {count} that fit and passed").format(count=len(usable))
    rivals = [artifact for artifact in ranking.about_as_fast(usable) if artifact is not best and artifact.variant not in equal]
    timed = [artifact for artifact in usable if _figure(artifact, by_speed=True)]
    if rivals:
        measured = translated("measured as the fastest, though {others} may be as fast, and {nearness}")
        return measured.format(others=joined([rival.variant for rival in rivals]), nearness=_nearness(best, min(rivals, key=ranking.loss)))
    if len(timed) < len(usable):
        return translated("the fastest of the {count} whose speed was measured").format(count=len(timed))
    return translated("the fastest of the {count} that fit and passed").format(count=len(timed))


def _near(best: Artifact, first: Artifact, *, by_speed: bool) -> str:
    """Why not the first one by its figure, as a template."""
    if not by_speed:
        return translated("within 10 % of the smallest ({first}), and {nearness}")
    if (ranking.over_pytorch(best) or 0) < (1 - ranking.NEAR) * (ranking.over_pytorch(first) or 0):
        return translated("perhaps as fast as {first}, since their speeds varied while they were measured, and {nearness}")
    return translated("within 10 % of the fastest ({first}), and {nearness}")


def _nothing(target: Target, here: Sequence[Artifact]) -> str:
    """Why there is none: what failed, or what is missing."""
    if missing := lacking([target], catalog()):
        why = translated_text(missing[target])
        return translated("{sentence}.").format(sentence=why[:1].upper() + why[1:])
    if not here:
        variants = ", ".join(spec.name for spec in made_for(target, catalog()))
        return translated("Nothing that fits was asked for; name {variants} in export.variants.").format(variants=variants)
    alike: dict[str, list[str]] = {}
    for artifact in here:
        alike.setdefault(_what_is_wrong(artifact), []).append(artifact.variant)
    said = (translated("{variants} {what}").format(variants=joined(those), what=wrong) for wrong, those in alike.items())
    return translated("Nothing that fits passed: {which}.").format(which=sentences(said))


def _what_is_wrong(artifact: Artifact) -> str:
    words = {
        Verdict.FAILED: translated("failed"), Verdict.UNVERIFIED: translated("could not be checked"),
        Verdict.PASSED: translated("passed, but nothing was compared"),
    }  # fmt: skip
    what = words[artifact.verdict]
    if not artifact.reasons:
        return what
    reason = " ".join(artifact.reasons[0].rstrip(".。").split())
    reason = reason.removeprefix("it could not be checked: ").removeprefix(f"{what}：")
    return translated("{what} ({reason})").format(what=what, reason=reason[:_MOST])


def _equal(artifact: Artifact, best: Artifact, *, by_speed: bool) -> bool:
    """Whether two are equal by what they are chosen by: speed or size, and nearness."""
    mine, other = _figure(artifact, by_speed=by_speed), _figure(best, by_speed=by_speed)
    if mine is None or other is None or abs(mine - other) > ranking.NEAR * max(mine, other):
        return False
    return abs(ranking.loss(artifact)[0] - ranking.loss(best)[0]) <= _SAME or not (
        ranking.is_farther(artifact, best) or ranking.is_farther(best, artifact)
    )


def _nearness(best: Artifact, other: Artifact) -> str:
    """What speaks for the best one beside another that is about as fast, or as small."""
    if ranking.is_farther(other, best):
        return translated("closer to the live model")
    between = ranking.apart(best, other)
    same = translated("no difference in closeness to the live model was seen")
    if between:
        ground = weight_said(between, "kl")
        same = translated("no difference in closeness to the live model was seen in {ground}").format(ground=ground)
    is_smaller = (best.size_bytes or 0) < (other.size_bytes or 0)
    return translated("smaller, and {nearness}").format(nearness=same) if is_smaller else same


def _figure(artifact: Artifact, *, by_speed: bool) -> float | None:
    return ranking.over_pytorch(artifact) if by_speed else artifact.size_bytes
