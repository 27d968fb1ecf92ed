"""What people see in the terminal: tables, progress, readable logs. Plain lines where there is no terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from daemon.cli.views.markup import escape, say_error, say_whole, styled, terminal
from daemon.contract import units
from daemon.contract.jobs.figures import ArtifactFigures, figures_of
from daemon.contract.language.catalog import to_translate, translated
from daemon.contract.values import Json
from daemon.operating.log.wrapping import width_of

if TYPE_CHECKING:
    pass


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


def print_log(file: Path, *, follow: bool, lines: int, job: str, as_json: bool) -> None:
    """`ckptd logs`."""
    from daemon.operating.log.log_line import log_lines
    from daemon.operating.log.logs import follow as records

    console = terminal(soft_wrap=True)
    if not file.exists():
        say_error(translated("There is no log yet at {file}; the daemon writes it when it runs.").format(file=file))
        if not follow:
            return
    try:
        for record in records(file, tail=lines, forever=follow, job=job):
            if as_json:
                say_whole(json.dumps(record))
            else:
                for line in log_lines(record, width_of(console)):
                    console.print(line)
    except KeyboardInterrupt:
        return
