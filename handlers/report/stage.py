"""The report stage: `report.json`, `report.html` and `README.md` of an export, whether it went well or badly.

Run by `python -m handlers` as the last stage of every job. It imports nothing heavy, reads nothing but the job file's
facts and the machine's description, and writes three small files, and a README.md for the folder of each published artifact, beside whose
files it is published. Only the page is in the job's language: programs read report.json, and the cards go to hubs with the model.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from daemon.contract.disk.export_layout import README
from daemon.contract.jobs.figures import ReportFigures
from daemon.contract.jobs.messages import StageContext
from daemon.contract.language.catalog import use_language
from handlers.child.progress import Reporter, StageOutput
from handlers.report.content.build import build
from handlers.report.model import Report
from handlers.report.pages import html, readme


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Write these files into the staging folder; give `status`, `verdict` and each artifact's verdict as figures.

    Raises Permanent when the job file holds no facts, OSError when the folder cannot be written.
    """
    reporter.progress(0.1, "collecting what the stages said")
    moment, staging = datetime.now(UTC), Path(context.staging)
    report = build(context, moment)
    (staging / "report.json").write_text(as_json(report), encoding="utf-8")
    (staging / README).write_text(readme.render(report), encoding="utf-8")
    for folder, text in readme.of_artifacts(report).items():
        (staging / folder).mkdir()
        (staging / folder / README).write_text(text, encoding="utf-8")
    reporter.progress(0.5, "drawing the page")
    with use_language(context.language):
        page = html.render(report if context.language == "en" else build(context, moment))
    (staging / "report.html").write_text(page, encoding="utf-8")
    return StageOutput(
        figures=ReportFigures(
            status=report.status,
            verdict=report.verdict,
            artifacts={artifact.variant: artifact.verdict.value for artifact in report.artifacts},
        ).written(),
        warnings=[warning.text for warning in report.warnings if warning.source == "report"],
    )


def as_json(report: Report) -> str:
    """The report as strict JSON (no NaN, no Infinity) in UTF-8's characters."""
    return json.dumps(report.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
