"""Plays worlds of absences, one after the other, and says which seed broke what."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from daemon.checkpoints.pinning import additions
from daemon.contract.disk import failpoints
from daemon.running import resumption
from daemon.running.rules import resume_keys
from daemon.running.sources import outside
from daemon.system import episodes
from daemon.system.filesystems.mounts import Mount, mount_of
from daemon.system.processes import looks
from daemon.toolchains.registry import digest_for
from tests.runner.absences import without_override
from tests.simulation.absences.world import World
from tests.simulation.play import RAM
from tests.simulation.test_running import virtual_time

FIRST_LOOKS = 8.0
"""Takes the place of the pause between the first looks, so that a world has fewer rounds."""


class _Mounted:
    """The row of the output in the table of mounts."""

    fstype = "nfs4"

    def __init__(self, mountpoint: str) -> None:
        self.mountpoint = mountpoint


@contextmanager
def _bent_to(world: World) -> Iterator[None]:
    """Named points and the table of mounts as the world has them."""
    point, ismount, ask = failpoints.point, os.path.ismount, looks.Looks.ask
    output = str(world.things["output"].path)

    def mounted(path: str) -> bool:
        said = world.is_mounted(str(path))
        return ismount(path) if said is None else said

    def holds(real: str, table: Iterable[Mount]) -> Mount | None:
        return _Mounted(output) if real == output and world.is_mounted(output) else mount_of(real, table)

    failpoints.point, os.path.ismount, outside.mount_of = world.point, mounted, holds  # type: ignore[assignment]
    looks.Looks.ask = lambda self, key, question: question()  # type: ignore[method-assign]  # every file system answers here
    resume_keys.digest_for = functools.cache(digest_for)  # type: ignore[assignment]
    try:
        yield
    finally:
        failpoints.point, os.path.ismount, outside.mount_of = point, ismount, mount_of  # type: ignore[assignment]
        looks.Looks.ask, resume_keys.digest_for = ask, digest_for  # type: ignore[method-assign]


def play(numbers: Iterable[int], counts: Counter[str] | None = None, *, trace: bool = False) -> dict[int, list[str]]:
    """Seed → what was violated, of those in which something was. `counts` takes in what there was to check."""
    found = {}
    silent, pause = structlog.get_config(), episodes.FIRST_LOOKS
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False)
    episodes.FIRST_LOOKS = FIRST_LOOKS
    try:
        for seed in numbers:
            folder = Path(tempfile.mkdtemp(prefix="ckptd-absences-", dir=RAM if RAM.is_dir() else None))
            with virtual_time(episodes, additions, resumption) as clock, without_override():
                world = World(seed, folder, clock)
                try:
                    with _bent_to(world):
                        said = world.play()
                finally:
                    world.close()
            if said:
                found[seed] = said[:5]
            if counts is not None:
                counts.update(world.counts)
            if trace:
                print("\n".join(world.trace))
    finally:
        episodes.FIRST_LOOKS = pause
        structlog.configure(**silent)
    return found
