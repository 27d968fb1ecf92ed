"""The status of an export in one line, for the top of the page. The verdicts themselves are `daemon.contract.jobs.verdicts`'."""

from __future__ import annotations

from collections.abc import Sequence

from daemon.contract.errors import Fault
from daemon.contract.jobs.messages import ArtifactCheck, Status, Verdict


def verdict_line(status: Status, checks: Sequence[ArtifactCheck], faults: Sequence[tuple[str, Fault]]) -> str:
    """The status in one line: how many artifacts passed, which did not, and the first thing that failed."""
    by_verdict = {verdict: [check.variant for check in checks if check.verdict is verdict] for verdict in Verdict}
    passed, failed, unverified = (by_verdict[verdict] for verdict in (Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIED))
    if status == "succeeded":
        many = f"all {len(passed)} artifacts" if len(passed) > 1 else "the artifact"
        return f"Succeeded: {many} passed validation ({', '.join(passed)})."
    if status == "failed":
        why = f"the stage {faults[0][0]} failed: {faults[0][1].cause}" if faults else "; ".join(_short(check) for check in checks)
        return f"Failed: nothing was published. Reason: {(why or 'no variant was asked for').rstrip('.')}."
    parts = [f"{len(passed)} of {len(checks)} artifacts passed"]
    if failed:
        parts.append(f"{', '.join(failed)} failed and {'is' if len(failed) == 1 else 'are'} not published")
    if unverified:
        parts.append(f"{', '.join(unverified)} {'is' if len(unverified) == 1 else 'are'} published unverified")
    return f"Partial: {'; '.join(parts)}."


def _short(check: ArtifactCheck) -> str:
    return f"{check.variant}: {check.reasons[0]}" if check.reasons else f"{check.variant} {check.verdict}"
