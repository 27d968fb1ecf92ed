"""Which checkpoint of a run to deploy, and which of its artifacts: the one rule, with its words and its ground. Pure.

The report, README.md of an export, `ckptd quality`, the link `best` and `retention.keep_best` all follow it:

1. Exports are compared by the quality of one variant (`select.best_variant`, else the smallest that passed in at least half of them and is
   deployed alone): by the user's own task that `select.best_by` names, else by the first of those tasks, its own perplexity, its scores.
   The divergence from the live model never decides, since it says how near an artifact is to its own checkpoint, and nothing of how good
   that checkpoint is.
2. Only exports count that are still there and were measured on the texts of the newest one, with the same settings; of a task, on the
   same items.
3. The export with the best figure leads. It differs from another one only where the paired interval of their difference excludes zero
   (`daemon.contract.advice.paired`), widened for as many differences as there are. The others are equal to it.
4. Of those that are equal, the trainer's best is taken if it is among them, else the one with the best figure, of two the later step:
   nobody expects the worst figure of a run where no difference is seen.
5. Which of that export's artifacts to deploy is what its own report recommends (`handlers.report.advice.headline`).

A published page stays as it was written, while exports come and go: what it says of the run is dated (`as_of_report`), and names the
command that says what holds now. Otherwise pages of one run would recommend each other in a circle.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daemon.contract import units
from daemon.contract.advice.merits import in_words
from daemon.contract.advice.paired import Difference, can_be_paired, difference
from daemon.contract.faults.advice import MOST_IN_COMMAND
from daemon.contract.jobs.plan import find_variant
from daemon.contract.jobs.points import StepPoint
from daemon.contract.jobs.run_figures import METRICS, is_measured, metrics_of, more_is_better, passed
from daemon.contract.language.catalog import to_translate, translated, translated_plural
from daemon.contract.language.lists import clauses, names

METRIC_NAMES = {
    "perplexity": to_translate("perplexity"), "accuracy": to_translate("accuracy"), "macro_f1": to_translate("macro f1"),
    "exact_match": to_translate("exact match"), "chrf": "chrf",
}  # fmt: skip
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


def standing(points: Sequence[StepPoint], trainers_best: int | None = None, variant: str = "", task: str = "") -> Standing | Unranked:
    """Which export to deploy by the rule above, by the quality of `variant`; "": of the smallest variant of most exports. `task`: the one
    that counts; "": what was measured."""
    there = [point for point in sorted(points, key=lambda point: point.place) if point.kept and point.status != "failed"]
    measured = [point for point in there if is_measured(point)]
    if not measured:
        return Unranked(
            translated("only the divergence from the live model was measured, which says nothing about the checkpoint itself") if there
            else translated("no export of the run is there")
        )  # fmt: skip
    newest = max(measured, key=_made)
    able = [artifact for artifact in newest.artifacts.values() if passed(artifact) and artifact.quality]
    metric = task or min((metrics_of(artifact) for artifact in able), key=lambda names: _order(names[0]))[0]
    if task and not any(task in artifact.tasks for artifact in able):
        return Unranked(translated("the newest export was not measured by the task {task}").format(task=task))
    group = [point for point in measured if point is newest or _alike(point, newest, metric)]
    by_variant: dict[str, list[StepPoint]] = {}
    for point in group:
        for name, artifact in point.artifacts.items():
            if passed(artifact) and metric in artifact.quality:
                by_variant.setdefault(name, []).append(point)
    chosen = variant or _smallest(by_variant, len(group))
    if chosen not in by_variant:
        if not variant:
            return Unranked(translated("no variant passed in enough of the exports whose figures can be compared"))
        return Unranked(translated("{variant} did not pass in any export whose figures can be compared").format(variant=variant))
    return _compared(by_variant[chosen], chosen, metric, trainers_best)


def _compared(points: Sequence[StepPoint], variant: str, metric: str, trainers_best: int | None) -> Standing | Unranked:
    sign = -1 if more_is_better(points[0].artifacts[variant], metric) else 1
    ordered = sorted(points, key=lambda point: (-sign * point.artifacts[variant].quality[metric], point.place), reverse=True)
    by_text = {point.export: point.artifacts[variant].by_text.get(metric, ()) for point in ordered}
    newest = max(points, key=_made)
    if len(points) > 1 and not by_text[newest.export]:
        return Unranked(
            translated("the exports can't be compared, since the newest report has no figures for each text"),
            tuple(ordered), variant, metric,
        )  # fmt: skip
    ordered = [point for point in ordered if point is newest or can_be_paired(by_text[newest.export], by_text[point.export])]
    leader, many = ordered[0], len(ordered) - 1
    apart = {
        point.export: between for point in ordered[1:]
        if (between := difference(metric, by_text[leader.export], by_text[point.export], many)) is not None
    }  # fmt: skip
    ordered = [point for point in ordered if point is leader or point.export in apart]
    alike = [point for point in ordered if point is leader or not apart[point.export].sure]
    trainers = [point for point in alike if point.step == trainers_best and not point.ending]
    pick = trainers[0] if trainers else leader
    rest = [point for point in alike if point is not pick] + [point for point in ordered if point not in alike]
    return Standing(variant, metric, pick, (pick, *rest), leader, apart)


def _order(metric: str) -> int:
    """The place of a metric among `METRICS`; the user's own tasks come before them."""
    return next((number for number, (name, _) in enumerate(METRICS, 1) if name == metric), 0)


def _alike(point: StepPoint, newest: StepPoint, metric: str) -> bool:
    """Whether figures of two exports can be compared: they are of the same texts with the same settings, of a task of the same items."""
    tasks = [{artifact.tasks[metric] for artifact in at.artifacts.values() if metric in artifact.tasks} for at in (point, newest)]
    return tasks[0] == tasks[1] if any(tasks) else bool(newest.comparison) and point.comparison == newest.comparison


def metric_name(metric: str) -> str:
    """What people call a metric; a task has its own name."""
    return translated(METRIC_NAMES[metric]) if metric in METRIC_NAMES else metric


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


def advice(points: Sequence[StepPoint], trainers_best: int | None, variant: str = "", task: str = "") -> str:
    """Which checkpoint to deploy, and which of its artifacts, in two sentences: what the figures say, then what to deploy."""
    ranking = standing(points, trainers_best, variant, task)
    trainers = next((point for point in points if point.step == trainers_best and not point.ending), None)
    if trainers_best is None:
        named = translated("The trainer names no best step")
    elif trainers and trainers.loss is not None:
        named = translated("The trainer's best is step {step} (loss {loss})").format(step=trainers_best, loss=units.number(trainers.loss))
    else:
        named = translated("The trainer's best is step {step}").format(step=trainers_best)
    if isinstance(ranking, Unranked):
        why = translated("{named}; which checkpoint is the best after quantization can't be said: {why}.")
        return why.format(named=named, why=ranking.why)
    ground = translated("{named}; {ground}. {deploy}")
    return ground.format(named=named, ground=_ground(ranking, trainers), deploy=_deploy(ranking.pick))


def as_of_report(sentence: str | None, run: str, exports: int = 1, moment: str = "") -> str:
    """What a published page says of its run: `advice` as it was at `moment`, of so many exports, and what says it now; `sentence` is None
    for the first export."""
    if sentence is None:
        return translated("Which export of the run to deploy: `ckptd quality {run}` says what holds now.").format(run=_word(run))
    dated = translated("Of the run's {count} exports, as of this report ({date}): {sentence} `ckptd quality {run}` says what holds now.")
    return dated.format(count=exports, date=moment, sentence=sentence, run=_word(run))


def _word(run: str) -> str:
    """A run's name as a shell takes it; one that no terminal or page shows as it is, is left to be written."""
    shown = run.isprintable() and "`" not in run and not run.startswith("-") and len(run) <= MOST_IN_COMMAND
    return shlex.quote(run) if shown else "RUN"


def _ground(ranking: Standing, trainers: StepPoint | None) -> str:
    metric, leader = metric_name(ranking.metric), ranking.leader
    value, about = units.number(ranking.value(leader)), {"metric": metric, "variant": ranking.variant}
    if len(ranking.ranked) == 1:
        only = translated("only {step} has figures that can be compared: {metric} of {variant} {value}")
        return only.format(step=label(leader), value=value, **about)
    equal = ranking.equal
    if len(equal) > 1:
        weakest = min((ranking.apart[point.export] for point in equal if point is not leader), key=lambda between: between.weight)
        every = translated("between the {count} exports").format(count=len(equal))
        where = every if len(equal) == len(ranking.ranked) else translated("between {steps}").format(steps=joined(list(map(label, equal))))
        best = (
            translated("; {step} has the best figure ({value})").format(step=label(leader), value=value) if leader is ranking.pick else ""
        )
        alike = no_difference(weakest, ranking.metric, where, best)
        ground = translated("{metric} of {variant}: {difference}").format(difference=alike, **about)
    else:
        best = translated("by the {metric} of {variant}, {step} is the best of {count} exports")
        ground = best.format(step=label(leader), count=len(ranking.ranked), **about)
    worse = [point for point in ranking.ranked if point not in equal]
    other = trainers if trainers in worse else min(worse, key=lambda point: ranking.ranked.index(point), default=None)
    if other is None:
        return ground
    against = (
        translated("{ground}; its best {value} against {other} of {step} ({difference})") if len(equal) > 1
        else translated("{ground}: {value} against {other} of {step} ({difference})")
    )  # fmt: skip
    between = difference_said(ranking.metric, ranking.apart[other.export])
    return against.format(ground=ground, value=value, other=units.number(ranking.value(other)), step=label(other), difference=between)


def _deploy(pick: StepPoint) -> str:
    start = translated("Deploy {step}").format(step=label(pick))
    if not pick.recommended:
        return translated("{start}; its report recommends none of its artifacts.").format(start=start)
    return translated("{start}, {artifact}.").format(start=start, artifact=in_words(pick.recommended.rstrip(".")))


def label(point: StepPoint) -> str:
    """What people call an export of the run."""
    if point.ending:
        return translated("the end (after step {step})").format(step=point.step)
    return translated("step {step}").format(step=point.step)


def no_difference(between: Difference, metric: str, where: str = "", best: str = "") -> str:
    """The words where no difference may be called one; `where` is "between …" and `best` "; … has the best figure", translated."""
    ground = weight_said(between, metric)
    if metric not in METRIC_NAMES:  # a task, which has as many items as it has
        seen = translated("no difference seen {where} with {ground}{best}") if where else translated("no difference seen with {ground}")
        return seen.format(where=where, ground=ground, best=best)
    if where:
        seen = translated("no difference seen {where} with {ground}{best}; `validate.data` gives more")
        return seen.format(where=where, ground=ground, best=best)
    return translated("no difference seen with {ground}; `validate.data` gives more").format(ground=ground)


def weight_said(between: Difference, metric: str) -> str:
    """How much a difference rests on: "53 tokens of 6 texts", "6 texts", "40 items"."""
    if metric not in METRIC_NAMES:
        return translated_plural("{count:,} item", "{count:,} items", between.texts).format(count=between.texts)
    texts = translated_plural("{count:,} text", "{count:,} texts", between.texts).format(count=between.texts)
    if metric != "perplexity":
        return texts
    return translated("{tokens:,.0f} tokens of {texts}").format(tokens=between.weight, texts=texts)


def difference_said(metric: str, between: Difference) -> str:
    """A difference with its interval and its ground: "1.04 ×, 1.01 to 1.06, 1,234 tokens of 12 texts"."""
    return clauses((size_said(metric, between), weight_said(between, metric)))


def size_said(metric: str, between: Difference) -> str:
    """The difference and its interval: of perplexities the ratio, of shares percentage points."""
    if metric == "perplexity":
        return _ratio_said(between.ratio) if between.ratio else translated("no interval")
    share = 100 if metric in ("accuracy", "exact_match") else 1
    unit = translated(" points") if share == 100 else ""
    value = f"{units.signed(share * between.value)}{unit}"
    if between.low is None or between.high is None:
        return translated("{value}, no interval").format(value=value)
    low, high = (units.signed(share * end) for end in (between.low, between.high))
    return translated("{value}, {low} to {high}").format(value=value, low=low, high=high)


def _ratio_said(ratio: tuple[float, float, float]) -> str:
    value, low, high = ratio
    span = {"low": units.number(low), "high": units.number(high)}
    return translated("{value}, {low} to {high}").format(value=units.compared(value), **span)


def beside_live(ratio: tuple[float, float] | None) -> str:
    """How an artifact's perplexity stands to its live model's, by the interval of their ratio; "" where there is none."""
    if ratio is None:
        return ""
    if ratio[1] < 1:
        return translated("lower than live")
    return translated("higher than live") if ratio[0] > 1 else translated("as good as live")


def ranges_apart(first: tuple[float, float] | None, second: tuple[float, float] | None) -> bool | None:
    """Whether two speeds differ: whether the ranges of their turns exclude each other; None where either was not measured in turns."""
    if first is None or second is None:
        return None
    return first[1] < second[0] or second[1] < first[0]


def joined(parts: Sequence[str]) -> str:
    """ "a, b and c"."""
    if len(parts) < 2:
        return parts[0]
    return translated("{names} and {last}").format(names=names(parts[:-1]), last=parts[-1])
