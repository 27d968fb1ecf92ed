"""What the rules of `[retention]` leave alone beside what they keep: exports that a person named, and what was there before the default.

`keep` puts a hidden link beside an export, `.keep-NAME`. Retention removes nothing that a link beside it points to, so the link is all
there is to it: it stands where the export stands, also after the journal or the whole state was lost, and can be made by hand. Called by
`ckptd prune --keep`; `begin` by the daemon, at its start and when a job ends.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from daemon.config.places.export_names import KEEP
from daemon.config.places.paths import StatePaths
from daemon.contract.disk.files import read_bounded, write_atomic
from daemon.publishing.exchange.beneath import held_below
from daemon.publishing.links import link_to

SPARED = "not published by this daemon since it removes exports by default; set a rule in [retention] to have all judged"
"""Why an export outside of a scope stays."""
_FILE = "retention.json"
_MOST_BYTES = 1 << 12


@dataclass(frozen=True)
class Scope:
    """Which exports the default rules may remove: those that this state's daemon published since it has them."""

    since: float
    """Epoch seconds."""
    jobs: Collection[str]
    """Ids of the daemon's jobs."""

    def spares(self, published: float, job: str) -> bool:
        """Whether an export is left alone. `published`: epoch seconds."""
        return published < self.since or job not in self.jobs


def keep(top: Path, export: Path) -> None:
    """Keep an export below `top` until `release`. Raises OSError, Permanent where a link is in the way."""
    with held_below(top, export.parent) as held:
        link_to(held.spot(KEEP + export.name), held.path / export.name)


def release(top: Path, export: Path) -> bool:
    """Leave an export to the rules again; whether it was kept. Raises as `keep` does."""
    with held_below(top, export.parent) as held:
        link = held.spot(KEEP + export.name).at
        if not link.is_symlink():
            return False
        link.unlink()
        return True


def since(state: Path) -> float | None:
    """From when on the default rules count for a state directory, in epoch seconds; None where no daemon has begun with them."""
    try:
        value = json.loads(read_bounded(state / _FILE, _MOST_BYTES))["default_since"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) else None


def begin(paths: StatePaths) -> float:
    """The same; where nothing is known it is now, which is kept. What was published before stays. Raises OSError."""
    known = since(paths.state)
    if known is None:
        known = time.time()
        write_atomic(paths.state / _FILE, json.dumps({"default_since": known}))
    return known
