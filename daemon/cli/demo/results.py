"""What the demo's exports came to: a row for each checkpoint and artifact, the closing table, good or not.

Called by `daemon.cli.demo` when all jobs have ended. It reads what a user would read, the published report.json, and
looks whether the files that it names are there; it never trusts the status alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from daemon.cli.demo.view import STYLES
from daemon.cli.views.tables import OF_ARTIFACT
from daemon.contract import units
from daemon.contract.jobs.figures import ArtifactFigures, figures_of
from daemon.contract.language.catalog import to_translate, translated
from daemon.contract.values import Json
from daemon.operating.monitoring.status import Snapshot


@dataclass(frozen=True)
class Row:
    """One artifact that was to be made. Sizes in bytes, error in standard deviations of the logits, speeds in tokens a second."""

    step: int
    variant: str
    verdict: str
    """`passed`, `failed`, `unverified` or `missing`."""
    why: str = ""
    size: int | None = None
    ratio: float | None = None
    error: float | None = None
    agreement: float | None = None
    speed: float | None = None
    over_pytorch: float | None = None

    @property
    def good(self) -> bool:
        """Whether the artifact is there and passed."""
        return self.verdict == "passed"


def rows_of(snapshot: Snapshot, steps: Iterable[int], variants: Iterable[str]) -> list[Row]:
    """A row for each variant of each step that training saved, whether an export of it exists or not."""
    jobs = {job.step: job for job in snapshot.jobs}
    asked = tuple(variants)
    rows = []
    for step in steps:
        job = jobs.get(step)
        if job is None:
            rows += [Row(step, variant, to_translate("missing"), translated("the checkpoint was not exported")) for variant in asked]
            continue
        target = Path(job.target)
        try:
            report = json.loads((target / "report.json").read_bytes())
            artifacts = {artifact["variant"]: artifact for artifact in report["artifacts"]}
        except (OSError, ValueError, KeyError) as error:
            why = job.error or translated("its report can't be read: {error}").format(error=error)
            rows += [Row(step, variant, "missing", why) for variant in asked]
            continue
        rows += [_row(step, variant, artifacts.get(variant), target) for variant in asked]
    return rows


def _row(step: int, variant: str, artifact: Json | None, target: Path) -> Row:
    if artifact is None:
        return Row(step, variant, "missing", translated("the report says nothing about it"))
    verdict, why = artifact["verdict"], "; ".join(artifact.get("reasons") or ())
    folder = target / (artifact.get("folder") or variant)
    if verdict == "passed" and not (artifact.get("published") and folder.is_dir() and any(folder.iterdir())):
        verdict, why = "missing", translated("the report says that it passed, but {folder} is empty").format(folder=folder)
    figures = figures_of(artifact.get("figures"), ArtifactFigures) or ArtifactFigures()
    return Row(
        step, variant, verdict, why, size=artifact.get("size_bytes"), ratio=artifact.get("size_ratio"),
        error=figures.error_max, agreement=figures.agreement,
        speed=figures.tokens_per_second, over_pytorch=figures.speed_over_pytorch,
    )  # fmt: skip


def exit_code(rows: list[Row]) -> int:
    """0 when there are artifacts and each one passed, else 1."""
    return 0 if rows and all(row.good for row in rows) else 1


def table(rows: list[Row]) -> Table:
    """The closing table, 80 columns wide at most."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    made.add_column(translated("step"), justify="right", no_wrap=True)
    made.add_column(translated("artifact"), no_wrap=True)
    for title in OF_ARTIFACT:
        made.add_column(translated(title), justify="right", no_wrap=True)
    made.add_column(translated("verdict"), no_wrap=True)
    last = None
    for row in rows:
        made.add_row(
            str(row.step) if row.step != last else "",
            row.variant,
            units.size(row.size),
            units.times(row.ratio),
            units.sigma(row.error),
            units.percent(row.agreement),
            units.number(row.speed),
            units.times(row.over_pytorch),
            Text(translated(row.verdict), style=STYLES.get(row.verdict, "red")),
        )
        last = row.step
    return made


def complaints(rows: list[Row]) -> list[str]:
    """A sentence for each reason for which artifacts of a checkpoint are not good."""
    reasons: dict[tuple[int, str, str], list[str]] = {}
    for row in rows:
        if not row.good:
            reasons.setdefault((row.step, row.verdict, row.why), []).append(row.variant)
    return [
        f"checkpoint-{step}, {', '.join(names)}: {translated(verdict)}{why and ': ' + why}"
        for (step, verdict, why), names in reasons.items()
    ]
