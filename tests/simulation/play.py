"""Plays many worlds, one after the other, and says which seed broke what. Called by the tests and by `python -m tests.simulation`."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from tests.simulation.oracle import check
from tests.simulation.world import World

RAM = Path("/dev/shm")


@dataclass
class Outcome:
    """All worlds together."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[int, list[str]] = field(default_factory=dict)
    """Seed → what was violated."""
    kind: str = ""
    """The option of the command line that plays such worlds."""

    def report(self) -> str:
        """What a failing test prints."""
        lines = [f"{dict(self.counts)}"]
        for seed, said in self.failed.items():
            lines += [
                f"seed {seed} (replay: python -m tests.simulation {self.kind}--seed {seed} --trace):",
                *(f"    {line}" for line in said[:5]),
            ]
        return "\n".join(lines)


def play(seeds: Iterable[int], *, runs: int = 5, reckless: bool = False, trace: bool = False) -> Outcome:
    """Play a world for each seed in memory, where there is a file system for that."""
    outcome = Outcome()
    silent = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL), cache_logger_on_first_use=False)
    try:
        for seed in seeds:
            said, counts, lines = play_one(seed, runs, reckless)
            outcome.counts.update({**counts, "worlds": 1, "runs": runs})
            if said:
                outcome.failed[seed] = said
            if trace:
                print("\n".join(lines))
    finally:
        structlog.configure(**silent)
    return outcome


def play_one(seed: int, runs: int, reckless: bool = False) -> tuple[list[str], dict[str, int], list[str]]:
    """One world: the violated invariants, what there was to check, and all that happened."""
    folder = Path(tempfile.mkdtemp(prefix="ckptd-simulation-", dir=RAM if RAM.is_dir() else None))
    try:
        world = World(seed, folder, runs, reckless)
        try:
            world.run()
            said, counts = check(world)
        finally:
            world.close()
        lines = [line.replace(f"{world.root}/", "") for line in (*said, str(world.chances), *world.disk.trace)]
        return lines[: len(said)], counts, lines[len(said) :]
    finally:
        shutil.rmtree(folder)
