"""What stands first in a report: the status in one line, and what to deploy. Pure. The verdicts are `daemon.contract.jobs.verdicts`'s.

The rule of the recommendation, which docs/validation.md tells too. Considered is what passed its check, is published, and can be put to
use; what only a Mac, a browser or a GPU can use, and what needs its base beside it (an adapter alone), only where nothing else passed.
Of these the fastest over PyTorch is named; where others come within `ranking.NEAR` of its speed, the one of them whose answers are nearest
to the live model's. Nearer is only what the paired interval of both divergences shows to be nearer (`daemon.contract.advice.paired`); of
those that it can't tell apart, the smallest. Where no speed was measured, the smallest takes the place of the fastest, by the same rule.
The smallest, if it is more than 5 % smaller, and the nearest, if it is nearer, are named beside it, for whom these matter more.
`handlers.report.advice.targets` says what to deploy where.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from daemon.contract import units
from daemon.contract.advice.merits import recommended as with_merits
from daemon.contract.advice.which import as_of_report, label
from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import ArtifactCheck, Status, Verdict
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.jobs.verdicts import is_published
from daemon.contract.language.catalog import to_translate, translated, translated_plural
from daemon.contract.language.lists import names, sentences
from handlers.report.advice import ranking, targets
from handlers.report.model import Artifact, Choice, Preference, Recommendation, Replaced, Report, RunSoFar
from handlers.report.usage import Usage

RULES: dict[Preference, str] = {
    "fastest": to_translate(
        "The rule: of the artifacts that passed their check, take the fastest one; if others are within 10 % of it, or may be as fast,"
        " since speeds varied, take the one of them whose outputs are closest to the live model's, and where no difference is seen, the"
        " smallest. An artifact that failed, or was not checked, is never recommended."
    ),
    "smallest": to_translate(
        "The rule: of the artifacts that passed their check, take the smallest one; if others are within 10 % of it, take the one of them"
        " whose outputs are closest to the live model's, and where no difference is seen, the smallest. An artifact that failed, or was not"
        " checked, is never recommended."
    ),
}


def verdict_line(
    status: Status,
    checks: Sequence[ArtifactCheck],
    faults: Sequence[tuple[str, Fault]],
    rules: ValidateOptions,
    stories: Sequence[Replaced] = (),
) -> str:
    """The status in one line: how many artifacts passed, which did not, what took their place, and the first thing that failed."""
    if status == "failed":
        why = sentences(_short(check) for check in checks)
        if faults:
            stage, fault = faults[0]
            why = translated("the stage {stage} failed: {cause}").format(stage=stage, cause=fault.cause)
        why = (why or translated("no variant was asked for")).rstrip(".")
        return translated("Failed: nothing was published. Reason: {why}.").format(why=why)
    published = {check.variant for check in checks if is_published(check, rules)}
    return _counted(status, [(check.variant, check.verdict) for check in checks], published, stories)


def title_line(report: Report) -> str:
    """The status in one line for the top of the page, which gives the causes below it."""
    if report.status == "failed":
        return translated("Failed: nothing was published.")
    published = {artifact.variant for artifact in report.published}
    return _counted(report.status, [(artifact.variant, artifact.verdict) for artifact in report.artifacts], published, report.replaced)


def _counted(status: Status, verdicts: Sequence[tuple[str, Verdict]], published: Collection[str], stories: Sequence[Replaced]) -> str:
    by_verdict = {verdict: [name for name, own in verdicts if own is verdict] for verdict in Verdict}
    passed, failed, unchecked = (by_verdict[verdict] for verdict in (Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIED))
    if status == "succeeded":
        many = translated_plural(
            "Succeeded: the artifact passed validation ({variants}).", "Succeeded: all {count} artifacts passed validation ({variants}).",
            len(passed),
        )  # fmt: skip
        return many.format(count=len(passed), variants=names(passed))
    instead = {story.asked: story.taken for story in stories if story.taken}
    parts = [translated("{count} of {all} artifacts passed").format(count=len(passed), all=len(verdicts))]
    parts += _not_passed(failed, unchecked, published)
    parts += [translated("{taken} takes the place of {asked}").format(taken=taken, asked=asked) for asked, taken in instead.items()]
    return translated("Partial: {parts}.").format(parts=sentences(parts))


def _not_passed(failed: Sequence[str], unchecked: Sequence[str], published: Collection[str]) -> Iterator[str]:
    """What became of those that did not pass, as clauses."""
    if withheld := [name for name in failed if name not in published]:
        words = translated_plural("{variants} failed and is not published", "{variants} failed and are not published", len(withheld))
        yield words.format(variants=names(withheld))
    if wrong := [name for name in failed if name in published]:
        words = translated_plural(
            "{variants} failed and is published nevertheless", "{variants} failed and are published nevertheless", len(wrong)
        )
        yield words.format(variants=names(wrong))
    if unverified := [name for name in unchecked if name in published]:
        words = translated_plural("{variants} is published unverified", "{variants} are published unverified", len(unverified))
        yield words.format(variants=names(unverified))
    if kept := [name for name in unchecked if name not in published]:
        words = translated_plural(
            "{variants} is not published, because no check could run", "{variants} are not published, because no check could run", len(kept)
        )
        yield words.format(variants=names(kept))


def _short(check: ArtifactCheck) -> str:
    if check.reasons:
        return translated("{variant}: {reason}").format(variant=check.variant, reason=check.reasons[0])
    return f"{check.variant} {translated(check.verdict)}"


def recommend(report: Report) -> Recommendation:
    """What to deploy, by the rule above; `best` is None where nothing may be recommended, and the sentence says so."""
    usable = [artifact for artifact in report.artifacts if ranking.deploys(artifact) == "alone"]
    for other in ("at its targets", "over its base"):
        usable = usable or [artifact for artifact in report.artifacts if ranking.deploys(artifact) == other]
    if not usable:
        return Recommendation(
            sentence=translated("Nothing is recommended: no artifact that can be deployed passed a comparison with the live model."),
            rule="",
            best=None,
            targets=targets.choices(report),
        )
    fastest, smallest, nearest = ranking.fastest(usable), ranking.smallest(usable), ranking.nearest(usable)
    kind: Preference = "fastest" if fastest else "smallest"
    best = fastest or smallest or nearest
    usage = Usage(report)
    choices: dict[str, Choice] = {}
    if smallest is not None and any(ranking.about_as_small(candidate, smallest) for candidate in (best, nearest)):
        smallest = None
    closer = nearest if ranking.is_farther(best, nearest) else None
    ranked: tuple[tuple[Preference, Artifact | None], ...] = ((kind, best), ("smallest", smallest), ("nearest", closer))
    for preference, artifact in ranked:
        if artifact is not None and artifact.variant not in choices:
            choices[artifact.variant] = _choice(preference, artifact, usage)
    first, *others = choices.values()
    return Recommendation(
        sentence=translated("Deploy {artifact}.").format(artifact=first.sentence),
        rule=translated(RULES[kind]),
        best=first,
        others=tuple(others),
        targets=targets.choices(report),
    )


def of_run(recommended: Recommendation, run: RunSoFar | None, own: str) -> Recommendation:
    """The same, said as what it is where the run's figures were better at another export than at this one, whose id is `own`."""
    best = next((point for point in run.points if point.export == run.best), None) if run else None
    if run is None or best is None or own in run.equal or recommended.best is None:
        return recommended
    other = translated("Of this export deploy {artifact}; as of this report, another export of the run is to be deployed: {step}.")
    return recommended.model_copy(update={"sentence": other.format(artifact=recommended.best.sentence, step=label(best))})


def of_run_in_words(report: Report) -> str:
    """What the pages say of the run, which stays true when other exports come and go."""
    run = report.run_so_far
    if run is None:
        return as_of_report(None, report.checkpoint.run)
    return as_of_report(run.sentence, report.checkpoint.run, sum(point.kept for point in run.points), units.moment(report.finished))


def _choice(preference: Preference, artifact: Artifact, usage: Usage) -> Choice:
    install, run, language = usage.blocks(artifact.variant)
    return Choice(
        preference=preference, variant=artifact.variant, sentence=with_merits(artifact.variant, ranking.merits(artifact)),
        install=install, run=run, language=language,
    )  # fmt: skip
