"""What the verbs give their caller."""

from __future__ import annotations

EXIT_FAILED, EXIT_USAGE, EXIT_PARTIAL, EXIT_THREAD_LOST, EXIT_TEMPORARY, EXIT_INTERRUPTED, EXIT_READER_LEFT = 1, 2, 3, 70, 75, 130, 141


def exit_of(state: str) -> int:
    """The exit code of an export that ended in this state."""
    return {"succeeded": 0, "partial": EXIT_PARTIAL}.get(state, EXIT_FAILED)
