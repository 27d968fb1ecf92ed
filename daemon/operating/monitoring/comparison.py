"""`ckptd compare A B`: what two exports' reports say, side by side.

An export is named by its job, or by its folder. Only the reports are read, never a model; what a report lacks is None. Both may come from
other boxes and other versions.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.figures import ArtifactFigures, Scores, figures_of
from daemon.contract.values import number_at, text_at, value_at, whole_at
from daemon.journal.states import told_state
from daemon.operating.monitoring.status import job_meant

REPORT = "report.json"
MOST_BYTES = 64 << 20
"""Bytes of a report that is read."""


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
class Comparison:
    """Two exports."""

    a: ComparedExport
    b: ComparedExport
    notes: tuple[str, ...]
    """Why some figures can't be compared, as sentences."""


def compare(state: Path, a: str, b: str) -> Comparison:
    """Two exports, each a folder, a report or what names a job of this state directory. Raises UsageError for one that is none of these."""
    first, second = _read(_report_of(state, a)), _read(_report_of(state, b))
    return Comparison(first, second, tuple(_notes(first, second)))


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


def _read(file: Path) -> ComparedExport:
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
    return ComparedExport(
        id=text_at(report, "export_id"), folder=str(file.parent), run=text_at(report, "checkpoint", "run"),
        step=whole_at(report, "checkpoint", "step"), ending=value_at(report, "checkpoint", "ending") is True,
        status=text_at(report, "status"), created=text_at(report, "created"),
        base=text_at(report, "base", "name"), base_digest=text_at(report, "base", "digest"),
        loss=number_at(report, "checkpoint", "metadata", "loss"), epoch=number_at(report, "checkpoint", "metadata", "epoch"),
        best_metric=number_at(report, "checkpoint", "metadata", "best_metric"), adapter_kl=number_at(report, "reference", "adapter", "kl"),
        adapter_agreement=number_at(report, "reference", "adapter", "agreement"), wall_seconds=number_at(report, "wall_seconds"),
        cpu=text_at(report, "machine", "cpu"), prompt=asked.prompt if asked else None, live_text=asked.reference if asked else None,
        artifacts={row["variant"]: _artifact(row, figures[row["variant"]]) for row in rows},
    )  # fmt: skip


def _artifact(row: Mapping[str, Any], figures: ArtifactFigures) -> ComparedArtifact:
    reasons, scores = row.get("reasons"), figures.scores or Scores()
    return ComparedArtifact(
        verdict=text_at(row, "verdict") or "unknown", reasons=tuple(map(str, reasons)) if isinstance(reasons, list) else (),
        size_bytes=whole_at(row, "size_bytes"), size_ratio=number_at(row, "size_ratio"), agreement=figures.agreement, kl=figures.kl,
        error_max=figures.error_max, cosine_mean=figures.cosine_mean, perplexity=figures.perplexity,
        accuracy=scores.accuracy, exact_match=scores.exact_match, chrf=scores.chrf, greedy_identical=figures.greedy_identical,
        greedy_prompts=figures.greedy_prompts, tokens_per_second=figures.tokens_per_second, prefill_seconds=figures.prefill_seconds,
        speed_over_pytorch=figures.speed_over_pytorch, load_seconds=figures.load_seconds, peak_rss_bytes=figures.peak_rss_bytes,
        text=figures.sample.text if figures.sample else None,
    )  # fmt: skip


def _notes(a: ComparedExport, b: ComparedExport) -> list[str]:
    notes = []
    if a.folder == b.folder:
        notes.append("Both are the same export.")
    if a.base_digest and b.base_digest and a.base_digest != b.base_digest:
        notes.append("They have different bases: sizes and speeds differ for that reason too.")
    if a.cpu and b.cpu and a.cpu != b.cpu:
        notes.append(f"They were measured on different processors ({a.cpu}; {b.cpu}): speeds can't be compared.")
    if a.prompt and b.prompt and a.prompt != b.prompt:
        notes.append("They were checked with different prompts: agreement and texts can't be compared.")
    return notes
