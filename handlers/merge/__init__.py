"""The merge: an adapter's deltas added to its base's weights.

`merge_adapter` is the entry for use as a library; `handlers.merge.stage` is what the daemon runs.
"""

from daemon.contract.jobs.options import MergeOptions
from handlers.merge.api import MergeReport, merge_adapter
from handlers.merge.engine.execute import Execution

__all__ = ["Execution", "MergeOptions", "MergeReport", "merge_adapter"]
