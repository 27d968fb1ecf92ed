"""Which run is served next: pure rules over the lanes of the queue.

Called by the runner when it has room for another job. Runs take turns, so that one that saves every minute can't
keep the others waiting; within a run the journal's own order counts (newest first under the policy `latest`).
"""

from __future__ import annotations

from collections.abc import Sequence

from daemon.store.rows import Lane


def next_lane(lanes: Sequence[Lane]) -> Lane | None:
    """The lane whose run was served longest ago; among those never served the one that has waited longest."""
    return min(lanes, key=lambda lane: (lane.served or "", lane.oldest, lane.root, lane.run), default=None)
