"""The status of an export in one line, for the top of the page. The verdicts themselves are `daemon.contract.jobs.verdicts`'."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from daemon.contract.errors import Fault
from daemon.contract.jobs.messages import ArtifactCheck, Status, Verdict


def verdict_line(
    status: Status, checks: Sequence[ArtifactCheck], faults: Sequence[tuple[str, Fault]], unverified: Collection[str] = ()
) -> str:
    """The status in one line: how many artifacts passed, which did not, and the first thing that failed. `unverified`: the variants
    that may be published without a check."""
    by_verdict = {verdict: [check.variant for check in checks if check.verdict is verdict] for verdict in Verdict}
    passed, failed, unchecked = (by_verdict[verdict] for verdict in (Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIED))
    if status == "succeeded":
        many = f"all {len(passed)} artifacts" if len(passed) > 1 else "the artifact"
        return f"Succeeded: {many} passed validation ({', '.join(passed)})."
    if status == "failed":
        why = f"the stage {faults[0][0]} failed: {faults[0][1].cause}" if faults else "; ".join(_short(check) for check in checks)
        return f"Failed: nothing was published. Reason: {(why or 'no variant was asked for').rstrip('.')}."
    parts = [f"{len(passed)} of {len(checks)} artifacts passed"]
    if failed:
        parts.append(f"{', '.join(failed)} failed and {'is' if len(failed) == 1 else 'are'} not published")
    for names, what in (
        ([name for name in unchecked if name in unverified], "published unverified"),
        ([name for name in unchecked if name not in unverified], "not published, since no check could run"),
    ):
        if names:
            parts.append(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {what}")
    return f"Partial: {'; '.join(parts)}."


def _short(check: ArtifactCheck) -> str:
    return f"{check.variant}: {check.reasons[0]}" if check.reasons else f"{check.variant} {check.verdict}"
