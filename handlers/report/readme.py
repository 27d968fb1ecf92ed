"""`README.md` of an export: a model card that says what it is, what to deploy, and how each artifact is run.

Called by `handlers.report.stage`. The template is readme.md. Its metadata is what model hubs read (`card.py`); nothing in it names a folder
of this box.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from handlers.report import card, headline, html
from handlers.report.model import Report
from handlers.report.usage import Usage


def render(report: Report) -> str:
    """The README of a report, in GitHub's Markdown."""
    usage = Usage(report)
    made = html.environment().overlay()
    made.filters = made.filters | {"md": usage.prose, "usage": usage.text, "last": lambda path: PurePosixPath(path).name}
    return made.get_template("readme.md").render(
        report=report,
        title=headline.title_line(report),
        failures=html.roots(report),
        gaps=html.gaps(report),
        metadata=card.of_report(report),
        based=card.base_in_words(report),
    )
