"""The merge: an adapter's deltas added to its base's weights.

`merge_adapter` is the entry for use as a library; `handlers.merge.stage` is what the daemon runs. They are imported when they are asked
for, since other stages need parts of this package alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from daemon.contract.jobs.options import MergeOptions
    from handlers.merge.api import MergeReport, merge_adapter
    from handlers.merge.engine.execute import Execution

__all__ = ["Execution", "MergeOptions", "MergeReport", "merge_adapter"]

_PLACES = {
    "Execution": "handlers.merge.engine.execute", "MergeOptions": "daemon.contract.jobs.options", "MergeReport": "handlers.merge.api",
    "merge_adapter": "handlers.merge.api",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
