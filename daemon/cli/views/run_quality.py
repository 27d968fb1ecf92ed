"""What `ckptd quality` prints: a row for each artifact of each export of a run, then which checkpoint to deploy."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from daemon.cli.views.layout import Cell, Column, hanging, table
from daemon.cli.views.markup import STATE_STYLE, terminal
from daemon.contract import units
from daemon.contract.advice.which import METRIC_NAMES
from daemon.contract.jobs.run_figures import METRICS
from daemon.contract.language.catalog import translated, translated_text
from daemon.operating.log.wrapping import width_of
from daemon.operating.monitoring.run_quality import QualityOfArtifact, RunQuality

_BEST, _EQUAL, _GONE = "*", "=", "-"


def print_run_quality(value: RunQuality) -> None:
    """`ckptd quality`."""
    console = terminal(soft_wrap=True)
    for line in run_quality_lines(value, width_of(console)):
        console.print(line)


def run_quality_lines(value: RunQuality, width: int | None) -> list[Text]:
    """The lines, none wider than `width`."""
    metric = value.metric or next((name for name, _ in METRICS if _has(value, name)), None)
    title = translated(metric.replace("_", " ")) if metric in METRIC_NAMES else metric
    columns = [
        Column("step", least=6, right=True), Column("variant", least=10), Column("KL", least=5, right=True),
        Column("agree", least=6, right=True), *([Column(title, least=8, right=True)] if title else []),
        Column("size", least=8, right=True), Column("speed", least=5, right=True),
    ]  # fmt: skip
    lines = hanging("run", value.run, width, style="bold")
    lines += [line for row in table(columns, list(_rows(value, metric)), width) for line in row]
    if any(export.folder is None for export in value.exports):
        lines += hanging(_GONE, translated("there is no export of this step now: it failed, or it was removed"), width)
    if value.best is not None:
        by = translated("to be deployed, by the {metric} of {variant}")
        lines += hanging(_BEST, by.format(metric=title or "", variant=value.variant), width)
    if len(value.equal) > 1:
        lines += hanging(_EQUAL, translated("no difference from it was seen"), width)
    return lines + hanging("", translated_text(value.sentence), width)


def _has(value: RunQuality, metric: str) -> bool:
    return any(metric in artifact.quality for at in value.exports for artifact in at.artifacts.values())


def _rows(value: RunQuality, metric: str | None) -> Iterator[list[Cell]]:
    for at in value.exports:
        mark = _BEST if at.id == value.best else _EQUAL if at.id in value.equal and len(value.equal) > 1 else "" if at.folder else _GONE
        label = f"{translated('end') if at.ending else at.step} {mark}".rstrip()
        for place, (variant, artifact) in enumerate(at.artifacts.items()):
            yield [Cell(label if place == 0 else "", "bold"), Cell(variant), *_figures(artifact, metric)]


def _figures(artifact: QualityOfArtifact, metric: str | None) -> list[Cell]:
    agree = units.percent(artifact.agreement)
    if artifact.verdict != "passed":
        cells = [Cell(translated(artifact.verdict), STATE_STYLE.get(artifact.verdict, "")), Cell(agree)]
    else:
        cells = [Cell(units.number(artifact.kl)), Cell(agree)]
    if metric:
        cells.append(Cell(units.number(artifact.quality.get(metric))))
    return [*cells, Cell(units.size(artifact.size_bytes)), Cell(units.times(artifact.speed_over_pytorch))]
