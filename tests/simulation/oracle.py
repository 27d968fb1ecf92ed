"""What must be true of a world that has been played: the invariants of the detection, against what the trainers meant.

The bound. A version that stood unchanged, while the daemon ran without a break, for longer than
    settle + 2 peeks + delays                      where every hint at its directory arrived,
    settle + 2 peeks + delays + rescan + SOON      where one was lost (or written through a mapping, which gives none)
    and PATIENCE_SECONDS more                      where weights are newer than the state that Trainer writes last
is taken exactly once. One that stood for less may be taken or not. Nothing else is ever taken.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

from daemon.checkpoints.layouts import PATIENCE_SECONDS
from tests.simulation.disk import Version
from tests.simulation.files import STATE
from tests.simulation.world import World

Content = tuple[Path, tuple[tuple[str, bytes], ...]]


def content_of(checkpoint: Path, files: dict[str, bytes]) -> Content:
    """What makes a checkpoint this one: its place, and all but what training merely logged."""
    return checkpoint, tuple(sorted((name, data) for name, data in files.items() if name != STATE))


def longest_life(world: World, version: Version) -> float:
    """The longest time that the version stood while one and the same daemon ran."""
    return max((min(version.until, down) - max(version.since, up) for up, down in world.uptimes), default=0.0)


def must_be_taken(world: World, version: Version) -> bool:
    """Whether the version lived beyond the bound."""
    bound = world.chances.unheard if version.unheard else world.chances.heard
    return longest_life(world, version) > bound + (PATIENCE_SECONDS if version.doubted else 0.0)


def check(world: World) -> tuple[list[str], dict[str, int]]:
    """The violated invariants in words, and how much there was to check."""
    said = list(world.violations)
    pinned: Counter[Content] = Counter()
    for job, (checkpoint, files) in world.pinned.items():
        if not any(version.files == files for version in world.disk.versions.get(checkpoint, [])):
            said.append(f"{checkpoint} was taken as it never was meant to be: {sorted((n, len(d)) for n, d in files.items())} ({job})")
        pinned[content_of(checkpoint, files)] += 1
    said += [f"{checkpoint} was taken {count} times" for (checkpoint, _), count in pinned.items() if count > 1]
    versions = [(path, version) for path, history in world.disk.versions.items() for version in history]
    due = {content_of(path, version.files): version for path, version in versions if must_be_taken(world, version)}
    for content, version in due.items():
        if not pinned[content]:
            until = "the end" if version.until == math.inf else f"{version.until:.3f}"
            said.append(f"{content[0]} was missed: it stood from {version.since:.3f} to {until}")
    entered = len(world.pinned) + len(world.damaged)
    if not world.chances.killed and world.taken < entered:
        said.append(f"{entered} jobs were entered, and only {world.taken} were announced to the runner")
    return said, {"versions": len(versions), "due": len(due), "jobs": len(world.pinned), "damaged": len(world.damaged)}
