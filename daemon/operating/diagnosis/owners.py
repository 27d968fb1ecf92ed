"""Runs whose exports another ckptd publishes in this output, for `ckptd check`: none of this one would be published there.

Called by the doctor. The daemon says it when such an export begins (`target-taken`); `config.places.output_owners` reads the records.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from daemon.config.places.output_owners import Owner, is_anothers, is_other_training, owner_at, record_of, records_below
from daemon.config.places.paths import Paths
from daemon.config.settings import Settings
from daemon.contract.disk.answers import ask
from daemon.operating.integrity.scene import paths_of

REMEDY = "give one of the two another output.directory or output.naming, or, if that ckptd is gone for good, "


def taken_runs(settings: Settings) -> list[str]:
    """A sentence for each run of the watched roots that another ckptd has in the output."""
    output = settings.output.directory
    paths = paths_of(settings.state_directory, output)
    try:
        return ask(f"owners {output}", lambda: list(_sentences(settings, paths)))
    except (OSError, TimeoutError):  # other looks say what is wrong with the output
        return []


def _sentences(settings: Settings, paths: Paths) -> Iterator[str]:
    if not paths.output.is_dir():
        return
    for record in records_below(paths.output):
        remedy = f"{REMEDY}`rm {shlex.quote(str(record))}`"
        try:
            owner = owner_at(record)
        except PermissionError:
            if run := next((run for root in settings.watch.roots for run in _runs(root) if record_of(run) == record.name), None):
                yield (
                    f"output.directory: another ckptd, of the user who owns {record}, publishes a run {run} in {record.parent}, so that no"
                    f" export of this one is published there (target-taken); {remedy}"
                )
            continue
        except (OSError, ValueError):
            continue
        if _is_watched(owner, settings) and is_anothers(owner, paths, owner) and not is_other_training(owner, owner):
            since = owner.since[:10]
            yield (
                f"output.directory: another ckptd publishes the run {owner.run} in {record.parent} (state {owner.state} on {owner.host},"
                f" since {since}), so that no export of this one is published there (target-taken); {remedy}"
            )


def _is_watched(owner: Owner, settings: Settings) -> bool:
    """Whether a run is still there, below a root of this configuration."""
    return any(owner.root == str(root) and (root.name == owner.run or (root / owner.run).is_dir()) for root in settings.watch.roots)


def _runs(root: Path) -> list[str]:
    """The names that runs below a root may have: its own, and those of its directories, as far as two levels below it."""
    names = [root.name]
    for folder, folders, _ in os.walk(root):
        below = os.path.relpath(folder, root)
        names += [name if below == "." else f"{below}/{name}" for name in folders]
        if below != ".":
            folders.clear()
    return names
