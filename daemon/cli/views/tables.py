"""The table of a report's artifacts."""

from __future__ import annotations

from rich.table import Table

from daemon.cli.views.markup import escape, styled
from daemon.contract import units
from daemon.contract.jobs.figures import ArtifactFigures, figures_of
from daemon.contract.language.catalog import to_translate, translated
from daemon.contract.values import Json

OF_ARTIFACT = (
    to_translate("size"), to_translate("× base"), to_translate("error"), to_translate("agree"), to_translate("tok/s"),
    to_translate("speed"),
)  # fmt: skip
"""Titles of the figures of an artifact."""


def artifact_table(report: Json) -> Table:
    """A row per artifact of a report: size, error, agreement, and speed, which is also said in times that of PyTorch. Fits 80 columns."""
    shown = Table(header_style="bold", box=None, pad_edge=False, collapse_padding=True)
    for title in (to_translate("artifact"), to_translate("verdict")):
        shown.add_column(translated(title), no_wrap=True)
    for title in OF_ARTIFACT:
        shown.add_column(translated(title), justify="right", no_wrap=True)
    for artifact in report.get("artifacts", []):
        figures = figures_of(artifact.get("figures"), ArtifactFigures) or ArtifactFigures()
        shown.add_row(
            escape(artifact["variant"]), styled(artifact["verdict"]), units.size(artifact.get("size_bytes") or None),
            units.times(artifact.get("size_ratio")), units.sigma(figures.error_max), units.percent(figures.agreement),
            units.number(figures.tokens_per_second), units.times(figures.speed_over_pytorch),
        )  # fmt: skip
    return shown
