"""Why an export waits, failed or was rejected, in a few words: for a column of `ckptd list` and for the eye. Pure.

The words come from fault codes and verdicts alone, so they are the same for what an older version wrote into the journal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import ArtifactCheck, Verdict

_MEMORY = "out of memory"
_FAILURES: dict[str, str] = {
    FaultCode.MEMORY_LIMIT: _MEMORY,
    FaultCode.MEMORY_PRESSURE: _MEMORY,
    FaultCode.MEMORY_UNEXPECTED: _MEMORY,
    FaultCode.NOT_ENOUGH_MEMORY: _MEMORY,
    FaultCode.MEMORY_NEVER: "too little memory",
    FaultCode.TIMEOUT: "timed out",
    FaultCode.SOURCE_AWAY: "source not there",
    FaultCode.DISK_NOW: "disk full",
    FaultCode.UNEXPECTED: "unexpected error",
    FaultCode.OS_ERROR: "system error",
    FaultCode.TARGET_TAKEN: "folder taken",
    FaultCode.POISON: "the daemon died",
    FaultCode.ENGINE: "its engine failed",
    FaultCode.SKIPPED: "not made",
}
"""Where the code itself, with blanks, is not what people call it."""
_DISK, _SOURCE = "waits for disk", "waits for what is away"
_WAITS: dict[str, str] = {
    FaultCode.DISK_FULL: _DISK,
    FaultCode.DISK_NOW: _DISK,
    FaultCode.DISK_LOW: _DISK,
    FaultCode.BASE_NOT_FOUND: "waits for its base",
    FaultCode.SOURCE_AWAY: _SOURCE,
    FaultCode.MEMORY_NOW: "waits for memory",
    FaultCode.TURN: "waits for its turn",
    FaultCode.TIMING: "waits to be timed alone",
    FaultCode.RETRY: "waits for its next try",
    FaultCode.WINDOW_CLOSED: "waits for its time window",
    FaultCode.VERIFYING: "checks its outputs",
    FaultCode.TOOLCHAIN_COMING: "waits for a toolchain",
    FaultCode.BASE_CHANGED: "waits for its base to settle",
    FaultCode.JOURNAL_UNAVAILABLE: "waits for the journal",
}
_FIGURES = {"kl": "KL", "agreement": "agreement", "error": "logit error", "perplexity": "perplexity"}
"""Threshold → what it limits."""
_THRESHOLD = re.compile(r"validate\.(?:limits|thresholds)\.[\w-]+\.(\w+)")
"""In a remedy; ckptd 1.0 wrote `thresholds`."""


def failure(code: str) -> str:
    """Why a stage failed."""
    return _FAILURES.get(code) or code.replace("-", " ")


def waiting(code: str) -> str:
    """What is waited for, as "waits for …"."""  # fmt: skip
    return _WAITS.get(code) or f"waits: {failure(code)}"


def rejection(check: ArtifactCheck) -> str:
    """Why an artifact that was made is not published: the thresholds that it misses, which its remedy names, where those are the cause."""
    if check.verdict is Verdict.UNVERIFIED:
        return "not verified"
    if any(reason.startswith("it was not made") for reason in check.reasons):
        return "not made"
    missed = dict.fromkeys(_THRESHOLD.findall(check.remedy or ""))
    what = ", ".join(_FIGURES[key] for key in missed if key in _FIGURES)
    if not what and any(reason.startswith("it could not be run") for reason in check.reasons):
        what = "it does not run"
    return f"rejected: {what}" if what else "rejected"


def together(reasons: Iterable[str]) -> str | None:
    """Each reason once; None where there is none."""
    return "; ".join(dict.fromkeys(reasons)) or None
