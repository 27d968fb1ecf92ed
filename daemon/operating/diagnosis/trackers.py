"""What `ckptd check` says of the folders and variants of experiment trackers. Nothing is made to find out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from daemon.config.receivers import TRACKERS
from daemon.config.settings import Settings
from daemon.contract.faults.advice import quoted
from daemon.publishing.telling.trackers.stores import fault_of_folder


def problems_of_trackers(settings: Settings) -> Iterator[str]:
    """Yield what is wrong with the folders in which trackers' files are to be written."""
    for target in settings.notify.targets:
        place = f"notify.targets.{target.name} ({target.kind})"
        for folder in target.folders:
            if (clash := _clash(folder, settings)) is not None:
                yield f"{place}: {quoted(folder)} lies in {clash}, which is for other files; give it a folder elsewhere"
            if (fault := fault_of_folder(folder)) is not None:
                yield f"{place}: {fault}"


def doubts_of_trackers(settings: Settings) -> Iterator[str]:
    """Yield what may be meant otherwise."""
    for target in settings.notify.targets:
        if target.kind in TRACKERS and target.variant and target.variant not in settings.variants:
            yield (
                f"notify.targets.{target.name} ({target.kind}): variant = {quoted(target.variant)} is not in export.variants, so that"
                " no export has it unless a run's own settings name it"
            )


def _clash(folder: Path, settings: Settings) -> str | None:
    """The key of the folder in which this one lies and must not."""
    others = [*(("watch.roots", root) for root in settings.watch.roots), ("output.directory", settings.output.directory)]
    real = Path(os.path.realpath(folder))
    for key, other in (*others, ("state.directory", settings.state_directory)):
        if real.is_relative_to(os.path.realpath(other)):
            return key
    return None
