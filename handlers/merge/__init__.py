"""The merge: an adapter's deltas fused into its base's weights.

`merge_adapter` is the face of this package for use as a library; `handlers.merge.stage` is what the daemon runs.
"""

from handlers.merge.api import MergeReport, merge_adapter

__all__ = ["MergeReport", "merge_adapter"]
