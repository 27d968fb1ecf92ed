"""Which checkpoint of a run to deploy, and which of its artifacts: the one rule, with its words and its ground. Pure.

The report, README.md of an export, `ckptd quality`, the link `best` and `retention.keep_best` all follow it:

1. Exports are compared by the quality of one variant (`select.best_variant`, else the smallest that passed in at least half of them and is
   deployed alone): its own perplexity, else its scores. The divergence from the live model never decides, since it says how near an
   artifact is to its own checkpoint, and nothing of how good that checkpoint is.
2. Only exports count that are still there and were measured on the texts of the newest one, with the same settings.
3. The export with the best figure leads. It differs from another one only where the paired interval of their difference excludes zero
   (`daemon.contract.advice.paired`), widened for as many differences as there are. The others are equal to it.
4. Of those that are equal, the trainer's best is taken if it is among them, else the one that was made first: so nothing moves for noise.
5. Which of that export's artifacts to deploy is what its own report recommends (`handlers.report.advice.headline`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daemon.contract.advice.paired import Difference, can_be_paired, difference
from daemon.contract.jobs.plan import find_variant
from daemon.contract.jobs.points import StepPoint
from daemon.contract.jobs.run_figures import METRICS, figure, is_measured, passed

MORE = "`validate.data` gives more"
"""What to do where the texts show no difference."""
_NEEDED = 0.5
"""Share of the exports in which a variant must have passed to be compared by, where none is named."""


@dataclass(frozen=True)
class Standing:
    """Which export to deploy, by the quality of one variant."""

    variant: str
    metric: str
    pick: StepPoint
    """What to deploy."""
    ranked: tuple[StepPoint, ...]
    """All that could be compared: the pick, those that are equal, the others; the better figure first."""
    leader: StepPoint
    """The export with the best figure."""
    apart: Mapping[str, Difference]
    """Export → how far its figure is from the leader's; of all but the leader."""

    @property
    def equal(self) -> tuple[StepPoint, ...]:
        """Those of which no difference from the leader was seen, with it, in the order of training."""
        alike = [point for point in self.ranked if point is self.leader or not self.apart[point.export].sure]
        return tuple(sorted(alike, key=lambda point: point.place))

    def value(self, point: StepPoint) -> float:
        """The metric of the variant at a step that could be compared."""
        return point.artifacts[self.variant].quality[self.metric]


@dataclass(frozen=True)
class Unranked:
    """Why no export is to be preferred, as half a sentence."""

    why: str
    by_value: tuple[StepPoint, ...] = ()
    """Exports of which nobody knows whether they differ, the better figure first."""
    variant: str | None = None
    """What these would be compared by; None where there is nothing."""
    metric: str | None = None


def standing(points: Sequence[StepPoint], trainers_best: int | None = None, variant: str = "") -> Standing | Unranked:
    """Which export to deploy by the rule above, by the quality of `variant`; "": of the smallest variant of most exports."""
    there = [point for point in sorted(points, key=lambda point: point.place) if point.kept and point.status != "failed"]
    measured = [point for point in there if is_measured(point)]
    if not measured:
        return Unranked(
            "only the divergence from the live model was measured, which says nothing about the checkpoint itself" if there
            else "no export of the run is there"
        )  # fmt: skip
    newest = max(measured, key=_made)
    group = [point for point in measured if point.comparison == newest.comparison] if newest.comparison else [newest]
    able = [artifact for artifact in newest.artifacts.values() if passed(artifact)]
    metric = next(name for name, _ in METRICS if any(name in artifact.quality for artifact in able))
    by_variant: dict[str, list[StepPoint]] = {}
    for point in group:
        for name, artifact in point.artifacts.items():
            if passed(artifact) and metric in artifact.quality:
                by_variant.setdefault(name, []).append(point)
    chosen = variant or _smallest(by_variant, len(group))
    if chosen not in by_variant:
        return Unranked(f"{variant or 'no variant'} did not pass in any export whose figures can be compared")
    return _compared(by_variant[chosen], chosen, metric, trainers_best)


def _compared(points: Sequence[StepPoint], variant: str, metric: str, trainers_best: int | None) -> Standing | Unranked:
    sign = -1 if dict(METRICS)[metric] else 1
    ordered = sorted(points, key=lambda point: (-sign * point.artifacts[variant].quality[metric], point.place), reverse=True)
    by_text = {point.export: point.artifacts[variant].by_text.get(metric, ()) for point in ordered}
    newest = max(points, key=_made)
    if len(points) > 1 and not by_text[newest.export]:
        return Unranked(
            "the exports can't be compared, since the newest report has no figures for each text", tuple(ordered), variant, metric
        )
    ordered = [point for point in ordered if point is newest or can_be_paired(by_text[newest.export], by_text[point.export])]
    leader, many = ordered[0], len(ordered) - 1
    apart = {
        point.export: between for point in ordered[1:]
        if (between := difference(metric, by_text[leader.export], by_text[point.export], many)) is not None
    }  # fmt: skip
    ordered = [point for point in ordered if point is leader or point.export in apart]
    alike = [point for point in ordered if point is leader or not apart[point.export].sure]
    trainers = [point for point in alike if point.step == trainers_best and not point.ending]
    pick = trainers[0] if trainers else min(alike, key=_made)
    rest = [point for point in alike if point is not pick] + [point for point in ordered if point not in alike]
    return Standing(variant, metric, pick, (pick, *rest), leader, apart)


def _made(point: StepPoint) -> tuple[str, tuple[int, bool, str]]:
    return point.finished, point.place


def _smallest(by_variant: Mapping[str, Sequence[StepPoint]], exports: int) -> str:
    """The smallest of the variants that passed in enough exports and can be deployed alone; "" where there is none."""
    enough = [name for name, there in by_variant.items() if len(there) >= _NEEDED * exports and _alone(name)]
    sizes = {name: by_variant[name][-1].artifacts[name].size_bytes for name in enough}
    return min(enough, key=lambda name: (sizes[name] or math.inf, name), default="")


def _alone(name: str) -> bool:
    variant = find_variant(name)
    return variant is None or variant.deploys == "alone"


def advice(points: Sequence[StepPoint], trainers_best: int | None, variant: str = "") -> str:
    """Which checkpoint to deploy, and which of its artifacts, in two sentences: what the figures say, then what to deploy."""
    ranking = standing(points, trainers_best, variant)
    trainers = next((point for point in points if point.step == trainers_best and not point.ending), None)
    loss = f" (loss {figure(trainers.loss)})" if trainers and trainers.loss is not None else ""
    named = f"The trainer's best is step {trainers_best}{loss}" if trainers_best is not None else "The trainer names no best step"
    if isinstance(ranking, Unranked):
        return f"{named}; which checkpoint is the best after quantization can't be said: {ranking.why}."
    return f"{named}; {_ground(ranking, trainers)}. {_deploy(ranking, trainers)}"


def _ground(ranking: Standing, trainers: StepPoint | None) -> str:
    about, leader = f"{ranking.metric.replace('_', ' ')} of {ranking.variant}", ranking.leader
    value = figure(ranking.value(leader))
    if len(ranking.ranked) == 1:
        return f"only {leader.label} has figures that can be compared: {about} {value}"
    equal = ranking.equal
    if len(equal) > 1:
        weakest = min((ranking.apart[point.export] for point in equal if point is not leader), key=lambda between: between.weight)
        many = f"the {len(equal)} exports" if len(equal) == len(ranking.ranked) else joined([point.label for point in equal])
        ground = f"{about}: {no_difference(weakest, ranking.metric, f'between {many}')}"
    else:
        ground = f"by the {about}, {leader.label} is the best of {len(ranking.ranked)} exports"
    worse = [point for point in ranking.ranked if point not in equal]
    other = trainers if trainers in worse else min(worse, key=lambda point: ranking.ranked.index(point), default=None)
    if other is None:
        return ground
    between = difference_said(ranking.metric, ranking.apart[other.export])
    return f"{ground}{';' if len(equal) > 1 else ':'} {value} against {figure(ranking.value(other))} of {other.label} ({between})"


def _deploy(ranking: Standing, trainers: StepPoint | None) -> str:
    pick, chosen = ranking.pick, len(ranking.equal) == 1 or ranking.pick is trainers
    start = f"Deploy {pick.label}" if chosen else f"Any of these can be deployed, for example the first, {pick.label}"
    return f"{start}, {pick.recommended.rstrip('.')}." if pick.recommended else f"{start}; its report recommends none of its artifacts."


def no_difference(between: Difference, metric: str, where: str = "") -> str:
    """The words where no difference may be called one."""
    return f"no difference{f' {where}' if where else ''} seen with {weight_said(between, metric)}; {MORE}"


def weight_said(between: Difference, metric: str) -> str:
    """How much a difference rests on: "53 tokens of 6 texts", "6 texts"."""
    texts = f"{between.texts:,} {'text' if between.texts == 1 else 'texts'}"
    return f"{between.weight:,.0f} tokens of {texts}" if metric == "perplexity" else texts


def difference_said(metric: str, between: Difference) -> str:
    """A difference with its interval and its ground: "1.04 ×, 1.01 to 1.06, 1,234 tokens of 12 texts"."""
    return f"{size_said(metric, between)}, {weight_said(between, metric)}"


def size_said(metric: str, between: Difference) -> str:
    """The difference and its interval: of perplexities the ratio, of shares percentage points."""
    if metric == "perplexity":
        ratio = between.ratio
        return f"{ratio[0]:.3g} ×, {ratio[1]:.3g} to {ratio[2]:.3g}" if ratio else "no interval"
    share = 100 if metric in ("accuracy", "exact_match") else 1
    unit = " points" if share == 100 else ""
    if between.low is None or between.high is None:
        return f"{share * between.value:+.3g}{unit}, no interval"
    return f"{share * between.value:+.3g}{unit}, {share * between.low:+.3g} to {share * between.high:+.3g}"


def beside_live(ratio: tuple[float, float] | None) -> str:
    """How an artifact's perplexity stands to its live model's, by the interval of their ratio; "" where there is none."""
    if ratio is None:
        return ""
    return "lower than live" if ratio[1] < 1 else "higher than live" if ratio[0] > 1 else "as good as live"


def ranges_apart(first: tuple[float, float] | None, second: tuple[float, float] | None) -> bool | None:
    """Whether two speeds differ: whether the ranges of their turns exclude each other; None where either was not measured in turns."""
    if first is None or second is None:
        return None
    return first[1] < second[0] or second[1] < first[0]


def joined(names: Sequence[str]) -> str:
    """ "a, b and c"."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
