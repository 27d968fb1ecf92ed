"""What people and programs are told of the end of an export. In English, as all notifications.

Called by `daemon.running.endings` before the commit that ends the job, with what has just been published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from daemon.contract import units
from daemon.contract.disk.files import read_bounded
from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from daemon.contract.jobs.terms import CheckTerms
from daemon.contract.jobs.verdicts import is_published
from daemon.contract.values import Json, number_at, text_at, whole_at
from daemon.journal.rows import JobRow, Notice, StageRow
from daemon.publishing.run_figures import MOST_BYTES, REPORT


def link_of(job: str, page: str) -> str | None:
    """The address of an export on the page that people reach as `page`; None for "", which is no page."""
    return f"{page}/jobs/{quote(job, safe='')}" if page else None


def ended(
    job: JobRow, stages: Mapping[str, StageRow], state: str, target: Path, checks: Sequence[ArtifactCheck], rules: CheckTerms,
    page: str = "",
) -> Notice:  # fmt: skip
    """How an export ended: its verdict in one line, what to deploy, what failed and what to do then. `target`: where it was published;
    `page`: `page.url`."""
    seen = {check.variant for stage in stages.values() if stage.result for check in stage.result.checks}  # others were not made
    rejected = [
        check.variant for check in checks if check.verdict is Verdict.FAILED and not is_published(check, rules) and check.variant in seen
    ]
    faults = [stage.fault for stage in stages.values() if stage.fault and stage.state == "failed"]
    verdict = _verdict(state, checks, rejected)
    best = best_of(target)
    lines = [verdict, *([f"Best: {in_words(best)}"] if best else [])]
    lines += [f"{check.variant}: {check.verdict}" + (f" ({check.reasons[0]})" if check.reasons else "") for check in checks]
    lines += [fault.sentence() for fault in faults]
    again = f"ckptd queue retry {job.id}" if faults or state == "failed" else None
    lines += [f"When the cause is gone: {again}"] if again else []
    lines += [f"Export: {target}", *([link] if (link := link_of(job.id, page)) else [])]
    events = [state, *(["rejected"] if rejected else [])]
    return Notice(state, f"{_name(job)}: {state}", "\n".join(lines), {
        "events": events, **_about(job), "verdict": verdict, "rejected": rejected, "target": str(target),
        **({"artifact": best} if best else {}), **({"remedy": again} if again else {}), **({"link": link} if link else {}),
    })  # fmt: skip


def refused(job: JobRow, fault: Fault) -> Notice:
    """An export can't be published before a person decides."""
    sentence = fault.sentence()
    about = {**_about(job), "verdict": sentence, "remedy": fault.remedy}
    return Notice("failed", f"{job.checkpoint.run} {job.checkpoint.label}: not published", sentence, about)


def best_of(target: Path) -> Json | None:
    """What to deploy of a published export: what its report recommends, else the smallest of those that passed, as the report has it."""
    try:
        report = json.loads(read_bounded(target / REPORT, MOST_BYTES))
        rows = report.get("artifacts") if isinstance(report, dict) else None
        there = {str(row.get("variant")): row for row in rows if isinstance(row, dict)} if isinstance(rows, list) else {}
        fit = [name for name, row in there.items() if row.get("verdict") == Verdict.PASSED and (target / name).is_dir()]
    except (OSError, ValueError, RecursionError):
        return None
    named = text_at(report, "recommendation", "best", "variant")
    variant = named if named in fit else min(fit, key=lambda name: whole_at(there[name], "size_bytes") or 0, default=None)
    if variant is None:
        return None
    row = there[variant]
    return {
        "variant": variant, "path": str(target / variant), "bytes": whole_at(row, "size_bytes"),
        "agreement": number_at(row, "figures", "agreement"),
    }  # fmt: skip


def in_words(best: Mapping[str, Any]) -> str:
    """An artifact of `best_of` in one line."""
    figures = [units.size(best["bytes"])] if best["bytes"] is not None else []
    figures += [f"agreement {units.percent(best['agreement'])}"] if best["agreement"] is not None else []
    known = f" ({', '.join(figures)})" if figures else ""
    return f"{best['variant']}{known}: {best['path']}"


def _verdict(state: str, checks: Sequence[ArtifactCheck], rejected: list[str]) -> str:
    passed = sum(check.verdict is Verdict.PASSED for check in checks)
    counted = f"{passed} of {len(checks)} artifacts passed their checks" if checks else "nothing was made"
    return f"{state}: {counted}" + (f"; rejected: {', '.join(rejected)}" if rejected else "")


def _name(job: JobRow) -> str:
    place = f"final (step {job.checkpoint.step})" if job.checkpoint.ending else f"step {job.checkpoint.step}"
    return f"{job.checkpoint.run} {place}"


def _about(job: JobRow) -> dict[str, Any]:
    return {"run": job.checkpoint.run, "step": job.checkpoint.step}
