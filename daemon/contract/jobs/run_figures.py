"""What the exports of a run say of their artifacts, step by step, and which checkpoint that speaks for. Pure.

The daemon reads the points from published reports (`daemon.publishing.run_figures`) and gives them to the report stage in the job file; the
report, `ckptd quality`, the link `best` and `retention.keep_best` follow the one rule here. It is about quality after quantization: the
artifact's own perplexity, or its scores against labels. The divergence from the live model is shown and never decides, since it says how
near an artifact is to its own checkpoint, and nothing of how good that checkpoint is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.plan import find_variant
from daemon.contract.jobs.points import MOST_STEPS, ArtifactPoint, StepPoint
from daemon.contract.values import Json, digest_of, number_at, text_at, value_at, whole_at

METRICS: tuple[tuple[str, bool], ...] = (
    ("perplexity", False), ("accuracy", True), ("macro_f1", True), ("exact_match", True), ("chrf", True),
)  # fmt: skip
"""What says how good an artifact is by itself, and whether more is better; the first that was measured counts."""
_NEEDED = 0.5
"""Share of the exports in which a variant must have passed to be compared by, where none is named."""


@dataclass(frozen=True)
class Standing:
    """The best export by the quality of one variant."""

    variant: str
    metric: str
    best: StepPoint
    ranked: tuple[StepPoint, ...]
    """All that could be compared, the best first."""

    def value(self, point: StepPoint) -> float:
        """The metric of the variant at a step that could be compared."""
        return point.artifacts[self.variant].quality[self.metric]

    def score(self, point: StepPoint) -> float:
        """The same, where more is better."""
        return self.value(point) if dict(METRICS)[self.metric] else -self.value(point)


@dataclass(frozen=True)
class Unranked:
    """Why no export can be called the best, as half a sentence."""

    why: str


def point_of(report: object) -> StepPoint | None:
    """An export's point from its report.json; what is of another kind than expected counts as not measured. None where it is no report."""
    if not isinstance(report, Mapping):
        return None
    step, export, artifacts = whole_at(report, "checkpoint", "step"), text_at(report, "export_id"), report.get("artifacts")
    if step is None or export is None or not isinstance(artifacts, list):
        return None
    metadata = value_at(report, "checkpoint", "metadata")
    rows = [row for row in artifacts if isinstance(row, Mapping) and isinstance(row.get("variant"), str)]
    return StepPoint(
        export=export, step=step, ending=value_at(report, "checkpoint", "ending") is True,
        status=text_at(report, "status") or "", finished=text_at(report, "finished") or "",
        loss=_first(number_at(metadata, "evaluation", "eval_loss"), number_at(metadata, "loss")),
        comparison=_comparison(report), artifacts={row["variant"]: _artifact(row) for row in rows},
    )  # fmt: skip


def _artifact(row: Mapping[str, Any]) -> ArtifactPoint:
    figures = row.get("figures")
    quality = {name: _first(number_at(figures, name), number_at(figures, "scores", name)) for name, _ in METRICS}
    return ArtifactPoint(
        verdict=text_at(row, "verdict") or "", published=row.get("published") is True,
        size_bytes=whole_at(row, "size_bytes"), kl=number_at(figures, "kl"),
        agreement=number_at(figures, "agreement"), speed_over_pytorch=number_at(figures, "speed_over_pytorch"),
        tokens_per_second=number_at(figures, "tokens_per_second"),
        quality={name: value for name, value in quality.items() if value is not None},
    )  # fmt: skip


def _comparison(report: Json) -> str:
    """What must be equal for figures to be compared: the texts, how many tokens are decoded, the task and the reference's precision."""
    stages = report.get("stages")
    reference = (
        next((value_at(stage, "figures") for stage in stages if value_at(stage, "name") == "reference"), None)
        if isinstance(stages, list)
        else None
    )
    texts = value_at(reference, "texts", "digest") or value_at(reference, "prompts")
    if not texts:
        return ""
    settings = value_at(report, "configuration", "validation")
    return digest_of([
        texts, value_at(settings, "samples"), value_at(settings, "new_tokens"), report.get("task"), value_at(report, "reference", "dtype"),
    ])  # fmt: skip


def latest(points: Iterable[StepPoint], most: int = MOST_STEPS) -> tuple[StepPoint, ...]:
    """The points in the order of training, each export once (the first that is given counts), the last `most` of them."""
    by_export: dict[str, StepPoint] = {}
    for point in points:
        by_export.setdefault(point.export, point)
    return tuple(sorted(by_export.values(), key=lambda point: point.place)[-most:])


def standing(points: Sequence[StepPoint], variant: str = "") -> Standing | Unranked:
    """The best export by the quality of `variant`; "": of the smallest variant that passed in most of the exports.

    Compared are only exports that are still there and whose texts and settings are those of the latest that was made.
    """
    there = [point for point in sorted(points, key=lambda point: point.place) if point.kept and point.status != "failed"]
    measured = [point for point in there if is_measured(point)]
    if not measured:
        return Unranked(
            "only the divergence from the live model was measured, which says nothing about the checkpoint itself" if there
            else "no export of the run is there"
        )  # fmt: skip
    latest_made = max(measured, key=lambda point: (point.finished, point.place))
    group = [point for point in measured if point.comparison == latest_made.comparison] if latest_made.comparison else [latest_made]
    passed = [artifact for artifact in latest_made.artifacts.values() if _passed(artifact)]
    metric = next(name for name, _ in METRICS if any(name in artifact.quality for artifact in passed))
    by_variant: dict[str, list[StepPoint]] = {}
    for point in group:
        for name, artifact in point.artifacts.items():
            if _passed(artifact) and metric in artifact.quality:
                by_variant.setdefault(name, []).append(point)
    chosen = variant or _smallest(by_variant, len(group))
    if chosen not in by_variant:
        return Unranked(f"{variant or 'no variant'} did not pass in any export whose figures can be compared")
    better = dict(METRICS)[metric]

    def order(point: StepPoint) -> tuple[float, tuple[int, bool, str]]:
        value = point.artifacts[chosen].quality[metric]
        return (value if better else -value), point.place

    ranked = tuple(sorted(by_variant[chosen], key=order, reverse=True))
    return Standing(chosen, metric, ranked[0], ranked)


def is_measured(point: StepPoint) -> bool:
    """Whether the quality of an artifact that passed is known."""
    return any(_passed(artifact) and artifact.quality for artifact in point.artifacts.values())


def _smallest(by_variant: Mapping[str, Sequence[StepPoint]], exports: int) -> str:
    """The smallest of the variants that passed in enough exports and can be deployed alone; "" where there is none."""
    enough = [name for name, there in by_variant.items() if len(there) >= _NEEDED * exports and _alone(name)]
    sizes = {name: by_variant[name][-1].artifacts[name].size_bytes for name in enough}
    return min(enough, key=lambda name: (sizes[name] or math.inf, name), default="")


def _alone(name: str) -> bool:
    variant = find_variant(name)
    return variant is None or variant.deploys == "alone"


def _passed(artifact: ArtifactPoint) -> bool:
    return artifact.published and artifact.verdict == Verdict.PASSED


def advice(points: Sequence[StepPoint], trainers_best: int | None, variant: str = "") -> str:
    """Which checkpoint to deploy, in one sentence: by the trainer's metric, and by the artifacts' own."""
    ranking = standing(points, variant)
    trainers = next((point for point in points if point.step == trainers_best and not point.ending), None)
    loss = f" (loss {figure(trainers.loss)})" if trainers and trainers.loss is not None else ""
    named = f"The trainer's best is step {trainers_best}{loss}" if trainers_best is not None else "The trainer names no best step"
    if isinstance(ranking, Unranked):
        return f"{named}; which checkpoint is the best after quantization can't be said: {ranking.why}."
    best, metric = ranking.best, ranking.metric.replace("_", " ")
    value = figure(ranking.value(best))
    if len(ranking.ranked) == 1:
        return f"{named}; only {best.label} has figures that can be compared: {metric} of {ranking.variant} {value}."
    if best is trainers:
        return (
            f"{named}; by the quality of {ranking.variant} it is the best too: {metric} {value}, the best of {len(ranking.ranked)} exports."
        )
    start = f"{named}; by the quality of {ranking.variant} deploy {best.label}" if trainers_best is None else (
        f"{named}; by the quality of {ranking.variant} it is {best.label}"
    )  # fmt: skip
    if trainers in ranking.ranked and trainers is not None:
        return f"{start}, {metric} {value} against {figure(ranking.value(trainers))}."
    return f"{start}, {metric} {value}, the best of {len(ranking.ranked)} exports."


def figure(value: float | None) -> str:
    """A figure with three digits, or four above 1000; "–" for none."""
    return "–" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
