"""What `ckptd verify --deep` prints: the progress while artifacts are checked, then a table, the reasons, and what was not checked."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from daemon.cli.views.live_bar import LiveBar
from daemon.cli.views.markup import say, styled, terminal
from daemon.contract import units
from daemon.contract.faults.text import printable
from daemon.contract.jobs.figures import CheckFigures, figures_of
from daemon.contract.jobs.processes.recheck import Rechecked
from daemon.contract.language.catalog import to_translate, translated, translated_text
from daemon.contract.language.lists import labelled

TITLES = (to_translate("error"), to_translate("KL"), to_translate("agree"), to_translate("time"))


class RecheckView(LiveBar):
    """The progress on stderr: a bar on a terminal, a line for each variant elsewhere."""

    def _line(self, message: str) -> str | None:
        """`message`: "VARIANT: what is done"."""
        variant, colon, _ = message.partition(": ")
        return translated("checking {variant}").format(variant=variant) if colon else None


def print_checks(checks: Sequence[Rechecked]) -> None:
    """The verdict of each artifact with its figures, then why."""
    if not checks:
        return
    shown = Table(header_style="bold", box=None, pad_edge=False, collapse_padding=True)
    for title in (to_translate("artifact"), to_translate("verdict")):
        shown.add_column(translated(title), no_wrap=True)
    for title in TITLES:
        shown.add_column(translated(title), justify="right", no_wrap=True)
    for check in checks:
        figures = figures_of(check.figures, CheckFigures) or CheckFigures()
        kl = "–" if figures.kl is None else f"{figures.kl:.2g}"
        shown.add_row(
            printable(check.variant), styled(str(check.verdict)), units.sigma(figures.error_max), kl, units.percent(figures.agreement),
            units.duration(check.seconds),
        )  # fmt: skip
    terminal().print(shown)
    for check in checks:
        for reason in check.reasons:
            say(labelled(printable(check.variant), translated_text(reason)))
        if check.remedy:
            say(labelled(printable(check.variant), translated("Fix: {remedy}").format(remedy=translated_text(check.remedy))))
        for sentence in check.not_checked:
            say(labelled(printable(check.variant), translated("not checked: {what}").format(what=translated_text(sentence))))
        for note in check.notes:
            say(labelled(printable(check.variant), translated("note: {about}").format(about=translated_text(note))))
