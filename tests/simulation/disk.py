"""The simulated trainers' disk: real files on a real file system, with the virtual clock's times and the hints they cause.

Keeps, for each checkpoint directory, the versions that its writer held to be complete, each with the bytes it meant and
the time through which nothing of it changed. That is the oracle's knowledge; the detection never sees it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.files import STATE

EPOCH_NS = 1_700_000_000 * 10**9
TICK_NS = 4_000_000
"""File systems stamp files with the kernel's tick: what is written within one bears the same time."""
NOT_EXPORTED = ("README.md", "training_args.bin", "optimizer.pt", "rng_state.pth", "rng_state_1.pth")


_stat = os.stat  # the plain one: the detection's own is wrapped, and would let the world move here


def _weights_follow_state(checkpoint: Path) -> bool:
    state = _stat(checkpoint / STATE).st_mtime_ns
    weights = [name for name in os.listdir(checkpoint) if name.endswith(".safetensors")]
    return any(_stat(checkpoint / name).st_mtime_ns > state for name in weights)


@dataclass
class Version:
    """What a writer meant to be a whole checkpoint, and the time through which it stood unchanged."""

    files: dict[str, bytes]
    since: float
    until: float = math.inf
    unheard: bool = False
    """Whether a hint at this directory has been lost before or while it stood."""
    doubted: bool = False
    """Whether it looks as if Trainer were at it again: weights newer than the state that it writes last."""


class Disk:
    """Operations of the trainers. `hint(path)` carries an event on and says whether it will arrive."""

    def __init__(self, clock: Callable[[], float], hint: Callable[[str], bool]) -> None:
        self._clock = clock
        self._hint = hint
        self._unheard: set[Path] = set()
        self.versions: dict[Path, list[Version]] = {}
        self.renamed: dict[Path, tuple[Path, int]] = {}
        """Staging directory → the checkpoint that it became, and its inode."""
        self.trace: list[str] = []

    def write(self, path: Path, data: bytes, *, at: int | None = None, size: int | None = None, silent: bool = False) -> None:
        """`data` at offset `at`; without one the file is begun anew. `size`: then make it so long. `silent`: without a hint."""
        with open(path, "wb" if at is None else "r+b", buffering=0) as stream:
            stream.seek(at or 0)
            stream.write(data)
            if size is not None:
                stream.truncate(size)
        self._stamp(path)
        self._touched(f"wrote {len(data)} bytes at {at} (size {size}) of", path, silent=silent)

    def replace(self, source: Path, target: Path) -> None:
        """A file's atomic rename over another."""
        os.replace(source, target)
        self._touched("renamed away", source)
        self._touched("renamed to", target)

    def touch(self, path: Path) -> None:
        """A new time, the same content: the version begins again."""
        self._stamp(path)
        again = self.standing(path.parent)
        self._touched("touched", path)
        if again is not None:
            self.finished(path.parent, again.files)

    def unlink(self, path: Path) -> None:
        """One file goes."""
        path.unlink()
        self._touched("deleted", path)

    def make_directory(self, path: Path) -> None:
        """A directory with its parents, where it is not there yet."""
        if not path.is_dir():
            path.mkdir(parents=True)
            self._announce(path)

    def remove_directory(self, path: Path) -> None:
        """An empty directory goes."""
        path.rmdir()
        self._announce(path)

    def rename_directory(self, source: Path, target: Path) -> None:
        """A staging directory becomes the checkpoint."""
        os.rename(source, target)
        self.renamed[source] = target, _stat(target).st_ino
        self.trace.append(f"{self._clock():9.3f} renamed {source} to {target}")
        self._announce(source)
        self._announce(target)

    def lives_on(self, path: Path) -> bool:
        """Whether a directory was renamed, and is there under its new name."""
        target, inode = self.renamed.get(path, (path, 0))
        return os.path.isdir(target) and _stat(target).st_ino == inode

    def finished(self, checkpoint: Path, files: dict[str, bytes]) -> None:
        """The writer holds this checkpoint to be complete with these contents of exported files."""
        history = self.versions.setdefault(checkpoint, [])
        unheard, doubted = checkpoint in self._unheard, _weights_follow_state(checkpoint)
        version = Version(dict(files), self._clock(), unheard=unheard, doubted=doubted)
        history.append(version)
        self.trace.append(f"{self._clock():9.3f} complete: {checkpoint}")

    def standing(self, checkpoint: Path) -> Version | None:
        """The version that stands there now."""
        history = self.versions.get(checkpoint)
        return history[-1] if history and history[-1].until == math.inf else None

    def _stamp(self, path: Path) -> None:
        moment = EPOCH_NS + int(self._clock() * 1e9) // TICK_NS * TICK_NS
        os.utime(path, ns=(moment, moment))

    def _touched(self, what: str, path: Path, *, silent: bool = False) -> None:
        self.trace.append(f"{self._clock():9.3f} {what} {path}")
        standing = self.standing(path.parent)
        if standing is not None and path.name not in NOT_EXPORTED and not path.name.startswith(".tmp"):
            standing.until = self._clock()
        if silent or not self._hint(str(path)):
            self._lost(path.parent)

    def _announce(self, directory: Path) -> None:
        if not self._hint(f"{directory}/"):
            self._lost(directory)

    def _lost(self, directory: Path) -> None:
        self._unheard.add(directory)
        standing = self.standing(directory)
        if standing is not None:
            standing.unheard = True
