"""The states of jobs and stages, without the rows: what only names a state imports nothing else."""

from __future__ import annotations

ENDED_STAGE = ("succeeded", "failed", "skipped")
OPEN_JOB = ("pending", "running")
CANCELLED = "cancelled"
"""Nothing of such a job is published, whatever its artifacts' verdicts were."""
ENDED_JOB = ("succeeded", "partial", "failed", "superseded", "cancelled")


def told_state(state: str) -> str:
    """The state, or activity, of a job as a clause: "it has failed"."""
    clauses = {
        "pending": "it waits",
        "running": "it runs",
        "succeeded": "it has succeeded",
        "failed": "it has failed",
        "cancelled": "it was cancelled",
        "superseded": "it was replaced by a newer one",
        "partial": "it is partial",
    }
    return clauses.get(state, f"it is {state}")
