"""What the exports of a run say of their artifacts, step by step. Pure; `daemon.contract.advice.which` says what that speaks for.

The daemon reads the points from published reports (`daemon.publishing.run_figures`) and gives them to the report stage in the job file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.points import MOST_STEPS, ArtifactPoint, StepPoint, TaskPoint
from daemon.contract.values import Json, digest_of, number_at, text_at, value_at, whole_at

METRICS: tuple[tuple[str, bool], ...] = (
    ("perplexity", False), ("accuracy", True), ("macro_f1", True), ("exact_match", True), ("chrf", True),
)  # fmt: skip
"""What says how good an artifact is by itself, and whether more is better; the first that was measured counts."""


Rows: TypeAlias = tuple[tuple[float, float], ...]


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
        recommended=text_at(report, "recommendation", "best", "sentence") or "",
    )  # fmt: skip


def _artifact(row: Mapping[str, Any]) -> ArtifactPoint:
    figures = row.get("figures")
    quality = {name: _first(number_at(figures, name), number_at(figures, "scores", name)) for name, _ in METRICS}
    tasks = _tasks(figures)
    return ArtifactPoint(
        verdict=text_at(row, "verdict") or "", published=row.get("published") is True,
        size_bytes=whole_at(row, "size_bytes"), kl=number_at(figures, "kl"),
        agreement=number_at(figures, "agreement"), speed_over_pytorch=number_at(figures, "speed_over_pytorch"),
        tokens_per_second=number_at(figures, "tokens_per_second"),
        kl_interval=_span_at(figures, "kl_interval"), agreement_interval=_span_at(figures, "agreement_interval"),
        speed_range=_span_at(figures, "speed_over_pytorch_range"),
        quality={name: value for name, value in quality.items() if value is not None}
        | {name: value for name, (_, value, _) in tasks.items()},
        by_text={**by_text(figures), **by_text(value_at(figures, "scores")), **{name: rows for name, (_, _, rows) in tasks.items()}},
        tasks={name: point for name, (point, _, _) in tasks.items()},
    )  # fmt: skip


def _tasks(figures: object) -> dict[str, tuple[TaskPoint, float, Rows]]:
    """Task → by what it measured, its value, and that of each item; a name that is a metric's counts as none."""
    given = value_at(figures, "tasks")
    measured = {}
    for name, task in given.items() if isinstance(given, Mapping) else ():
        value, digest, better = number_at(task, "value"), text_at(task, "digest"), text_at(task, "better")
        if value is not None and digest and better in ("higher", "lower") and name not in dict(METRICS):
            rows = _rows(value_at(task, "by_text"), name)
            measured[name] = (TaskPoint(metric=text_at(task, "metric") or "", more=better == "higher", digest=digest), value, rows or ())
    return measured


def _span_at(figures: object, name: str) -> tuple[float, float] | None:
    """Two finite numbers, the lower first; None for anything else."""
    ends = value_at(figures, name)
    numbers = [number_at({"end": end}, "end") for end in ends] if isinstance(ends, list | tuple) and len(ends) == 2 else []
    low, high = numbers if len(numbers) == 2 else (None, None)
    return (low, high) if low is not None and high is not None and low <= high else None


def by_text(figures: object) -> dict[str, tuple[tuple[float, float], ...]]:
    """Metric → (sum, weight) of each text, as figures of a report have them; without what is of another kind, and without divergences."""
    every = value_at(figures, "by_text")
    return {name: rows for name, _ in METRICS if (rows := _rows(every, name)) is not None}


def _rows(every: object, name: str) -> Rows | None:
    rows = every.get(name) if isinstance(every, Mapping) else None
    if not isinstance(rows, list) or not all(map(_is_sum, rows)):
        return None
    return tuple((float(row[0]), float(row[1])) for row in rows)


def _is_sum(row: object) -> bool:
    """Whether it is [finite number, weight of at least 0]."""
    numbers = row if isinstance(row, list | tuple) and len(row) == 2 else ()
    good = [value for value in numbers if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)]
    return len(good) == 2 and good[1] >= 0


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


def latest(points: Iterable[StepPoint]) -> tuple[StepPoint, ...]:
    """The points in the order of training, each export once (the first that is given counts), the last MOST_STEPS of them."""
    by_export: dict[str, StepPoint] = {}
    for point in points:
        by_export.setdefault(point.export, point)
    return tuple(sorted(by_export.values(), key=lambda point: point.place)[-MOST_STEPS:])


def metrics_of(artifact: ArtifactPoint) -> tuple[str, ...]:
    """By what it was measured, what counts most first: the user's own tasks, then `METRICS`."""
    return (*artifact.tasks, *(name for name, _ in METRICS if name in artifact.quality))


def more_is_better(artifact: ArtifactPoint, metric: str) -> bool:
    """Whether more of a metric of `metrics_of` is better."""
    return artifact.tasks[metric].more if metric in artifact.tasks else dict(METRICS)[metric]


def is_measured(point: StepPoint) -> bool:
    """Whether the quality of an artifact that passed is known."""
    return any(passed(artifact) and artifact.quality for artifact in point.artifacts.values())


def passed(artifact: ArtifactPoint) -> bool:
    """Whether it may be deployed."""
    return artifact.published and artifact.verdict == Verdict.PASSED


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
