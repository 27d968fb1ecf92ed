"""`ckptd compare A B`: what two exports' reports say, side by side.

An export is named by its job, or by its folder. Only the reports are read, never a model; what a report lacks is None. Both may come from
other boxes and other versions. What is called a difference is `daemon.contract.advice`'s.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daemon.contract import units
from daemon.contract.advice.paired import Difference, difference
from daemon.contract.advice.which import difference_said, no_difference, ranges_apart
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.figures import ArtifactFigures, Scores, figures_of
from daemon.contract.jobs.run_figures import METRICS, point_of
from daemon.contract.language.catalog import translated
from daemon.contract.light import dataclass
from daemon.contract.values import Json, number_at, text_at, value_at, whole_at
from daemon.journal.states import told_state
from daemon.operating.monitoring.status import job_meant

REPORT = "report.json"
MOST_BYTES = 64 << 20
"""Bytes of a report that is read."""
SPEED = "speed_over_pytorch"


@dataclass(frozen=True)
class ComparedArtifact:
    """One artifact of an export. Sizes are bytes, times seconds; None means that it was not measured."""

    verdict: str
    reasons: tuple[str, ...]
    size_bytes: int | None
    size_ratio: float | None
    """Its size divided by the size of the base."""
    agreement: float | None
    kl: float | None
    error_max: float | None
    cosine_mean: float | None
    perplexity: float | None
    """Of the prompts' tokens."""
    accuracy: float | None
    """Against the data's labels, 0 to 1."""
    exact_match: float | None
    """Against the data's references, 0 to 1."""
    chrf: float | None
    """Against the data's references, 0 to 100."""
    greedy_identical: int | None
    greedy_prompts: int | None
    tokens_per_second: float | None
    pytorch_tokens_per_second: float | None
    """Of the live model in PyTorch, in fp32, measured in turns with it; null for PyTorch itself."""
    prefill_seconds: float | None
    speed_over_pytorch: float | None
    load_seconds: float | None
    peak_rss_bytes: int | None
    text: str | None
    """Its answer to the first prompt."""


@dataclass(frozen=True)
class ComparedExport:
    """One of the two exports."""

    id: str | None
    folder: str
    run: str | None
    step: int | None
    ending: bool
    status: str | None
    created: str | None
    base: str | None
    base_digest: str | None
    loss: float | None
    epoch: float | None
    best_metric: float | None
    adapter_kl: float | None
    """How much the adapter changes the base: divergence in nats per position."""
    adapter_agreement: float | None
    """Share of positions where base and base + adapter choose the same token."""
    wall_seconds: float | None
    cpu: str | None
    prompt: str | None
    """The first prompt."""
    live_text: str | None
    """The answer of the live model (base + adapter) to it."""
    artifacts: Mapping[str, ComparedArtifact]

    @property
    def label(self) -> str:
        """What people call it."""
        return f"{self.run or '?'} {'final' if self.ending else f'step {self.step}' if self.step is not None else ''}".strip()


@dataclass(frozen=True)
class ComparedFigure:
    """What two exports' figures of one variant say together, by the texts, or turns, that both were measured on."""

    better: str | None
    """`a` or `b`; null where no difference was seen."""
    value: float
    """B minus A; of perplexities and speeds B over A."""
    low: float | None
    """Begin of the 95 % interval of `value`; null where there is none."""
    high: float | None
    """End of it."""
    sentence: str
    """The difference with its interval and what it rests on, or that none was seen."""


@dataclass(frozen=True)
class Comparison:
    """Two exports."""

    a: ComparedExport
    b: ComparedExport
    notes: tuple[str, ...]
    """Why some figures can't be compared, as sentences."""
    differences: Mapping[str, Mapping[str, ComparedFigure]]
    """Variant → figure (`perplexity`, `accuracy`, `exact_match`, `chrf`, `speed_over_pytorch`, or a task's name) → what both say together;
    what can't be compared is missing."""


def compare(state: Path, a: str, b: str) -> Comparison:
    """Two exports, each a folder, a report or what names a job of this state directory. Raises UsageError for one that is none of these."""
    (first, mine), (second, theirs) = _read(_report_of(state, a)), _read(_report_of(state, b))
    differences = {
        variant: _differences(mine, theirs, variant, speeds=not (first.cpu and second.cpu and first.cpu != second.cpu))
        for variant in first.artifacts if variant in second.artifacts
    }  # fmt: skip
    return Comparison(first, second, tuple(_notes(first, second, differences)), differences)


def _differences(first: Json, second: Json, variant: str, *, speeds: bool) -> dict[str, ComparedFigure]:
    a, b = point_of(first), point_of(second)
    if a is None or b is None:
        return {}
    figures = {}
    if a.comparison and a.comparison == b.comparison:
        mine, theirs = a.artifacts[variant].by_text, b.artifacts[variant].by_text
        for metric, more in METRICS:
            between = difference(metric, mine.get(metric, ()), theirs.get(metric, ()))
            if between is not None:
                figures[metric] = _figure(metric, between, more=more)
    first_tasks, second_tasks = (at.artifacts[variant].tasks for at in (a, b))
    for name in (name for name, task in first_tasks.items() if second_tasks.get(name) == task):  # the same items
        between = difference(name, a.artifacts[variant].by_text[name], b.artifacts[variant].by_text[name])
        if between is not None:
            figures[name] = _figure(name, between, more=first_tasks[name].more)
    speed = _speeds(_turns(first, variant), _turns(second, variant)) if speeds else None
    return {**figures, **({SPEED: speed} if speed else {})}


def _figure(metric: str, between: Difference, *, more: bool) -> ComparedFigure:
    ratio = between.ratio if metric == "perplexity" else None
    value, low, high = ratio or (between.value, between.low, between.high)
    if not between.sure:
        return ComparedFigure(None, value, low, high, no_difference(between, metric))
    said = translated("B beside A: {difference}").format(difference=difference_said(metric, between))
    return ComparedFigure("b" if (between.value > 0) is more else "a", value, low, high, said)


def _turns(report: Json, variant: str) -> tuple[float, float, float] | None:
    """Speed over PyTorch with the slowest and the fastest of its turns; None where it was not measured in turns."""
    row = next(row for row in report["artifacts"] if isinstance(row, dict) and row.get("variant") == variant)
    figures = figures_of(row.get("figures"), ArtifactFigures) or ArtifactFigures()
    turns = figures.speed_over_pytorch_range
    return (figures.speed_over_pytorch, *turns) if figures.speed_over_pytorch and turns else None


def _speeds(mine: tuple[float, float, float] | None, theirs: tuple[float, float, float] | None) -> ComparedFigure | None:
    differ = ranges_apart(mine and mine[1:], theirs and theirs[1:])
    if mine is None or theirs is None or differ is None or min(mine) <= 0:
        return None
    ranges = f"A {units.ratio(mine[1])} to {units.ratio(mine[2])}, B {units.ratio(theirs[1])} to {units.ratio(theirs[2])}"
    better = ("b" if theirs[0] > mine[0] else "a") if differ else None
    said = f"the ranges of their turns exclude each other ({ranges})" if differ else f"no difference seen: their turns overlap ({ranges})"
    return ComparedFigure(better, theirs[0] / mine[0], theirs[1] / mine[2], theirs[2] / mine[1], said)


def _report_of(state: Path, wanted: str) -> Path:
    path = Path(os.path.abspath(wanted))
    if path.is_dir():
        if (path / REPORT).is_file():
            return path / REPORT
        raise UsageError(FaultCode.NO_REPORT, "compare", f"it has no {REPORT}", "give the folder of an export", path=path)
    if path.is_file():
        return path
    job = job_meant(state, wanted, "compare", "give the folder of an export, or an id from `ckptd list`")
    if job.report_file is None:
        raise UsageError(
            FaultCode.NO_REPORT, f"compare {job.id}", f"it has no report: {told_state(job.activity)}",
                "wait until it has finished (`ckptd status`)"
        )  # fmt: skip
    return Path(job.report_file)


def _read(file: Path) -> tuple[ComparedExport, Json]:
    """What an export's report says, and the report."""
    try:
        with open(file, "rb") as stream:
            report = json.loads(stream.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        cause = f"it can't be read: {error}"
        raise UsageError(FaultCode.NO_REPORT, "compare", cause, "give the folder of an export", path=file) from None
    if not isinstance(report, dict) or not isinstance(report.get("artifacts"), list):
        raise UsageError(FaultCode.NO_REPORT, "compare", "it is not a report of an export", "give the folder of an export", path=file)
    rows = [row for row in report["artifacts"] if isinstance(row, dict) and isinstance(row.get("variant"), str)]
    figures = {row["variant"]: figures_of(row.get("figures"), ArtifactFigures) or ArtifactFigures() for row in rows}
    samples = [known.sample for known in figures.values() if known.sample is not None]
    asked = next((sample for sample in samples if sample.prompt), None)
    export = ComparedExport(
        id=text_at(report, "export_id"), folder=str(file.parent), run=text_at(report, "checkpoint", "run"),
        step=whole_at(report, "checkpoint", "step"), ending=value_at(report, "checkpoint", "ending") is True,
        status=text_at(report, "status"), created=text_at(report, "created"),
        base=text_at(report, "base", "name"), base_digest=text_at(report, "base", "digest"),
        loss=number_at(report, "checkpoint", "metadata", "loss"), epoch=number_at(report, "checkpoint", "metadata", "epoch"),
        best_metric=number_at(report, "checkpoint", "metadata", "best_metric"), adapter_kl=number_at(report, "reference", "adapter", "kl"),
        adapter_agreement=number_at(report, "reference", "adapter", "agreement"), wall_seconds=number_at(report, "wall_seconds"),
        cpu=_measured_on(report), prompt=asked.prompt if asked else None, live_text=asked.reference if asked else None,
        artifacts={row["variant"]: _artifact(row, figures[row["variant"]]) for row in rows},
    )  # fmt: skip
    return export, report


def _measured_on(report: Json) -> str | None:
    """The processor that figures of speed come from: that of the stage that measured, which may have run on another machine."""
    return text_at(report, "measured_on", "model") or text_at(report, "checked_on", "model") or text_at(report, "machine", "cpu")


def _artifact(row: Mapping[str, Any], figures: ArtifactFigures) -> ComparedArtifact:
    reasons, scores = row.get("reasons"), figures.scores or Scores()
    return ComparedArtifact(
        verdict=text_at(row, "verdict") or "unknown", reasons=tuple(map(str, reasons)) if isinstance(reasons, list) else (),
        size_bytes=whole_at(row, "size_bytes"), size_ratio=number_at(row, "size_ratio"), agreement=figures.agreement, kl=figures.kl,
        error_max=figures.error_max, cosine_mean=figures.cosine_mean, perplexity=figures.perplexity,
        accuracy=scores.accuracy, exact_match=scores.exact_match, chrf=scores.chrf, greedy_identical=figures.greedy_identical,
        greedy_prompts=figures.greedy_prompts, tokens_per_second=figures.tokens_per_second,
        pytorch_tokens_per_second=figures.pytorch_tokens_per_second if figures.speed_over_pytorch is not None else None,
        prefill_seconds=figures.prefill_seconds,
        speed_over_pytorch=figures.speed_over_pytorch, load_seconds=figures.load_seconds, peak_rss_bytes=figures.peak_rss_bytes,
        text=figures.sample.text if figures.sample else None,
    )  # fmt: skip


def _notes(a: ComparedExport, b: ComparedExport, differences: Mapping[str, Mapping[str, ComparedFigure]]) -> list[str]:
    notes = []
    if a.folder == b.folder:
        notes.append("Both are the same export.")
    if a.base_digest and b.base_digest and a.base_digest != b.base_digest:
        notes.append("They have different bases: sizes and speeds differ for that reason too.")
    if a.cpu and b.cpu and a.cpu != b.cpu:
        notes.append(f"They were measured on different processors ({a.cpu}; {b.cpu}): speeds can't be compared.")
    if a.prompt and b.prompt and a.prompt != b.prompt:
        notes.append("They were checked with different prompts: agreement and texts can't be compared.")
    elif a.folder != b.folder and _has_quality(b) and not any(name != SPEED for figures in differences.values() for name in figures):
        notes.append(
            "Whether their quality differs can't be said: they were measured on other texts, or a report has no figures for each text."
        )
    return notes


def _has_quality(export: ComparedExport) -> bool:
    return any(artifact.perplexity is not None or artifact.accuracy is not None for artifact in export.artifacts.values())
