"""What the page of a run shows: loss and metric of the training beside quality, size and speed of each variant, and what to deploy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from daemon.config.places.paths import StatePaths
from daemon.contract import units
from daemon.contract.advice.which import METRIC_NAMES
from daemon.contract.faults.errors import UsageError
from daemon.contract.jobs.run_figures import METRICS
from daemon.contract.language.catalog import translated, translated_text
from daemon.contract.light import dataclass
from daemon.contract.values import number_at
from daemon.journal.file.opening import reading
from daemon.journal.overview import checkpoint_state
from daemon.operating.monitoring.filter import Filter
from daemon.operating.monitoring.run_quality import NoFigures, QualityAtStep, QualityOfArtifact, RunQuality
from daemon.operating.monitoring.status import JobStatus
from daemon.page.reader import Reader
from daemon.page.screens.charts import Chart, Steps, Value, chart

MOST_JOBS = 50
SHARES = ("accuracy", "exact_match", "macro_f1")


@dataclass(frozen=True)
class Cell:
    """A figure with its interval."""

    text: str
    small: str = ""


@dataclass(frozen=True)
class Row:
    """One variant at one step."""

    at: QualityAtStep
    variant: str
    artifact: QualityOfArtifact
    first: bool
    """Whether it is the first of its step."""
    metric: Cell
    kl: Cell
    agreement: Cell
    size: Cell
    speed: Cell


def values(reader: Reader, run: str, root: str) -> dict[str, Any]:
    """Return what the template of a run is given. Raises UsageError where there is no such run."""
    jobs = reader.jobs(Filter(exactly=run, root=root), MOST_JOBS).jobs
    training, why = training_of(reader.state, run, root), ""
    try:
        quality = reader.quality(run, root)
    except UsageError as error:
        if not jobs and not training:
            raise
        quality = None
        why = translated("This run has no export with figures yet.") if isinstance(error, NoFigures) else translated_text(str(error))
    metric = _metric_of(quality) if quality else None
    return {
        "run": run,
        "root": quality.root if quality else root,
        "quality": quality,
        "why": why,
        "jobs": jobs,
        "metric": translated(METRIC_NAMES.get(metric, metric)) if metric else None,
        "rows": _rows(quality, metric) if quality else [],
        "charts": _charts(quality, training, jobs, metric),
        "best": next((at for at in quality.exports if at.id == quality.best), None) if quality else None,
        "training": _evaluations(training),
    }


def training_of(state: Path, run: str, root: str) -> Mapping[str, Any]:
    """What the trainer's state said at the run's latest checkpoint; {} where that is not known."""
    try:
        with reading(StatePaths(state).journal) as connection:
            return checkpoint_state(connection, run, root) or {}
    except FileNotFoundError:
        return {}


def _metric_of(quality: RunQuality) -> str | None:
    if quality.metric:
        return quality.metric
    measured = {name for at in quality.exports for artifact in at.artifacts.values() for name in artifact.quality}
    return next((name for name, _ in METRICS if name in measured), None)


def _show(metric: str) -> Callable[[Any], str]:
    return units.percent if metric in SHARES else units.number


def _rows(quality: RunQuality, metric: str | None) -> list[Row]:
    return [
        Row(
            at, variant, artifact, place == 0, _metric_cell(quality, at, variant, artifact, metric),
            Cell(units.number(artifact.kl), units.span(artifact.kl_interval) if artifact.kl_interval else ""),
            Cell(
                units.percent(artifact.agreement),
                units.span(artifact.agreement_interval, units.percent) if artifact.agreement_interval else "",
            ),
            Cell(units.size(artifact.size_bytes)),
            Cell(units.times(artifact.speed_over_pytorch), units.span(artifact.speed_range, units.ratio) if artifact.speed_range else ""),
        )
        for at in quality.exports
        for place, (variant, artifact) in enumerate(at.artifacts.items())
    ]  # fmt: skip


def _metric_cell(quality: RunQuality, at: QualityAtStep, variant: str, artifact: QualityOfArtifact, metric: str | None) -> Cell:
    """The metric; of the variant by which exports are compared also how far it is from the best one."""
    if metric is None:
        return Cell(units.NOTHING)
    text = _show(metric)(artifact.quality.get(metric))
    beside = quality.beside_leader.get(at.id) if variant == quality.variant else None
    if beside is None or beside.low is None or beside.high is None:
        return Cell(text, translated("the best figure") if variant == quality.variant and at.id == quality.leader else "")
    show: Callable[[float], str] = units.compared if metric == "perplexity" else units.signed
    return Cell(text, translated("{interval} beside the best").format(interval=units.span((beside.low, beside.high), show)))


def _charts(quality: RunQuality | None, training: Mapping[str, Any], jobs: Sequence[JobStatus], metric: str | None) -> list[Chart]:
    losses, evaluations = _history(training), _evaluation_losses(jobs)
    exports = list(quality.exports) if quality else []
    at_steps = [float(at.step) for at in exports]
    every = [*at_steps, *(value.step for value in (*losses, *evaluations))]
    if not every:
        return []
    steps = Steps(min(every), max(every))
    lines = [(translated("training"), losses), (translated("evaluation"), evaluations)]
    made = [
        chart(
            "loss", translated("Loss of the training"), translated("from the trainer's state; dashed: exports"), lines, steps,
            dots=False, marks=at_steps,
        )
    ]  # fmt: skip
    if quality and metric:
        about = translated("of each variant; bars: the 95 % interval of its difference from the best, for {variant}").format(
            variant=quality.variant or "–"
        )
        by = _by_variant(exports, lambda at, name, artifact: _metric_value(quality, metric, at, name, artifact))
        made.append(chart("quality", _titled(metric), about, by, steps, _show(metric)))
    made += [
        chart("kl", translated("Divergence from the live model"), translated("KL, nats per token, logarithmic; bars: the 95 % interval"),
              _by_variant(exports, _kl), steps, logarithmic=True),
        chart("size", translated("Size"), translated("of each variant's files"), _by_variant(exports, _size), steps, units.size),
        chart("speed", translated("Speed over PyTorch"), translated("bars: the slowest and the fastest turn"),
              _by_variant(exports, _speed), steps, units.times),
    ]  # fmt: skip
    return [drawn for drawn in made if drawn is not None]


def _titled(metric: str) -> str:
    name = translated(METRIC_NAMES.get(metric, metric))
    return f"{name[:1].upper()}{name[1:]}"


def _by_variant(
    exports: Sequence[QualityAtStep], read: Callable[[QualityAtStep, str, QualityOfArtifact], Value | None]
) -> list[tuple[str, list[Value]]]:
    """Each variant with its values by step, which may be none: so every chart has a variant in the same place."""
    lines: dict[str, list[Value]] = {}
    for at in exports:
        for name, artifact in at.artifacts.items():
            value = read(at, name, artifact)
            lines.setdefault(name, []).extend([value] if value is not None else [])
    return list(lines.items())


def _metric_value(quality: RunQuality, metric: str, at: QualityAtStep, name: str, artifact: QualityOfArtifact) -> Value | None:
    figure = artifact.quality.get(metric)
    if figure is None:
        return None
    low = high = None
    beside = quality.beside_leader.get(at.id) if name == quality.variant else None
    leader = next((other for other in quality.exports if other.id == quality.leader), None)
    best = leader.artifacts[name].quality.get(metric) if leader and name in leader.artifacts else None
    if beside is not None and beside.low is not None and beside.high is not None and best is not None:
        low, high = (best * beside.low, best * beside.high) if metric == "perplexity" else (best + beside.low, best + beside.high)
    return Value(at.step, figure, low, high, _is_good(artifact))


def _kl(at: QualityAtStep, _: str, artifact: QualityOfArtifact) -> Value | None:
    if artifact.kl is None:
        return None
    low, high = artifact.kl_interval or (None, None)
    return Value(at.step, artifact.kl, low, high, _is_good(artifact))


def _size(at: QualityAtStep, _: str, artifact: QualityOfArtifact) -> Value | None:
    return None if artifact.size_bytes is None else Value(at.step, float(artifact.size_bytes), sure=_is_good(artifact))


def _speed(at: QualityAtStep, _: str, artifact: QualityOfArtifact) -> Value | None:
    if artifact.speed_over_pytorch is None:
        return None
    low, high = artifact.speed_range or (None, None)
    return Value(at.step, artifact.speed_over_pytorch, low, high, _is_good(artifact))


def _is_good(artifact: QualityOfArtifact) -> bool:
    return artifact.published and artifact.verdict == "passed"


def _history(training: Mapping[str, Any]) -> list[Value]:
    rows = training.get("loss_history")
    pairs = [row for row in rows if isinstance(row, list | tuple) and len(row) == 2] if isinstance(rows, list) else []
    return [Value(float(step), float(loss)) for step, loss in pairs if units.is_number(step) and units.is_number(loss)]


def _evaluation_losses(jobs: Sequence[JobStatus]) -> list[Value]:
    """The loss of the latest evaluation at each checkpoint that was taken."""
    by_step = {job.step: loss for job in jobs if (loss := number_at(job.evaluation, "eval_loss")) is not None}
    return [Value(float(step), loss) for step, loss in sorted(by_step.items())]


def _evaluations(training: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the trainer measured last, as names and figures."""
    evaluation = training.get("evaluation")
    rows = [(name, value) for name, value in evaluation.items() if units.is_number(value)] if isinstance(evaluation, dict) else []
    best = number_at(training, "best_metric")
    said = [(str(name), units.number(value)) for name, value in rows[:12]]
    return said + ([(translated("best_metric"), units.number(best))] if best is not None else [])
