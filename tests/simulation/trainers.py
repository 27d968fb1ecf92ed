"""Random trainers as generators: each yields a pause after every operation on the disk, and may end anywhere.

What structure can tell is left to chance entirely: a save into a fresh directory pauses as long as it likes. Over a
checkpoint that still claims to be whole (a resumed run, a deletion), only pauses shorter than the settle time are made
where nothing but time can tell; `reckless` trainers pause there as well.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.disk import NOT_EXPORTED, Disk
from tests.simulation.files import BLOCK, ORDER, STATE, TRAINERS_OWN, WEIGHTS, make_checkpoint, make_state

CRASH = 0.01
"""Chance, at each operation that leaves something visibly unfinished, that the trainer dies there."""


@dataclass(frozen=True)
class Pause:
    """So many seconds until the next operation. `broken`: what lies there is visibly unfinished meanwhile."""

    seconds: float
    broken: bool = False


@dataclass
class Trainer:
    """One training run: some saves, some rotations, some accidents."""

    disk: Disk
    rng: random.Random
    run: Path
    settle: float
    bound: float
    reckless: bool = False

    def train(self) -> Iterator[Pause]:
        """The whole life of a run."""
        limit = self.rng.choice([1, 1, 2, 9])
        kept: list[Path] = []
        step = 0
        yield Pause(self.rng.uniform(0, self.bound))
        for _ in range(self.rng.randint(2, 5)):
            again = bool(kept) and self.rng.random() < 0.25
            step = int(kept[-1].name.split("-")[1]) if again else step + self.rng.choice([1, 5, 100])
            target = self.run / f"checkpoint-{step}"
            crashed = yield from self._until_it_crashes(target, self._save(target, step))
            if crashed:
                if self.rng.random() < 0.5:
                    return
                yield Pause(self.rng.uniform(0, 2 * self.bound))
                yield from self._save(target, step)  # resumed: the same step, other content
            if target not in kept:
                kept.append(target)
            yield self._life()
            yield from self._afterwards(target)
            while len(kept) > limit:
                yield from self._delete(kept.pop(0))
                yield self._life()

    def _life(self) -> Pause:
        """How long until the next save: now and then too short for anybody, mostly long enough."""
        return Pause(self.rng.choice([self.rng.uniform(0, self.settle), self.rng.uniform(0, 2 * self.bound), 1.5 * self.bound]))

    def _until_it_crashes(self, target: Path, saving: Iterator[Pause]) -> Generator[Pause, None, bool]:
        """Gives whether it crashed."""
        for pause in saving:
            if pause.broken and (self.reckless or self._is_told(target)) and self.rng.random() < CRASH:
                return True
            yield pause
        return False

    def _is_told(self, target: Path) -> bool:
        """Whether what lies there could be no adapter that somebody saved by hand, which is whole without Trainer's files."""
        names = {path.name for path in target.iterdir()} if target.is_dir() else set()
        return not {WEIGHTS, "adapter_config.json"} <= names or bool(names & set(TRAINERS_OWN))

    def _save(self, target: Path, step: int) -> Iterator[Pause]:
        whole = self._claims_to_be_whole(target)
        staged = not target.exists() and self.rng.random() < 0.3
        seen = staged and self.rng.random() < 0.5  # under a name that is watched, so that it must not stand there
        folder = target.with_name(f"incoming-{step}" if seen else f"tmp-{target.name}") if staged else target
        files = make_checkpoint(self.rng, step)
        standing = self.disk.standing(target)
        if standing is not None and self.rng.random() < 0.3:  # a deterministic run comes to the same weights again
            files = {**files, **standing.files, STATE: make_state(self.rng, step)}
            late = [name for name in files if name not in ORDER]
            files = {name: data for name, data in files.items() if name not in late}
            for name in late:
                self.disk.unlink(folder / name)
        self.disk.make_directory(folder)
        calm = seen or (whole and not self.reckless)
        for name in ORDER:
            yield Pause(self._moment(0.07 if name in NOT_EXPORTED else 0.3) if calm else self._pause(), broken=not whole and not seen)
            for pause in self._write(folder / name, files[name], calm=calm, brief=seen):
                yield Pause(pause.seconds, broken=(pause.broken or not whole) and not seen)
        if staged:
            yield Pause(self._moment() if seen else self._pause(), broken=not seen)
            self.disk.rename_directory(folder, target)
        present = {path.name for path in target.iterdir()} - set(NOT_EXPORTED)
        left = {name: (target / name).read_bytes() for name in present - set(files) if not name.startswith(".tmp")}
        self.disk.finished(target, {name: data for name, data in {**left, **files}.items() if name not in NOT_EXPORTED})

    def _claims_to_be_whole(self, target: Path) -> bool:
        try:
            json.loads((target / STATE).read_bytes())
        except (OSError, ValueError):
            return False
        return True

    def _write(self, path: Path, data: bytes, *, calm: bool, brief: bool = False) -> Iterator[Pause]:
        """One file. `calm`: pause only for moments where the directory looks whole. `brief`: and between the pieces of a file."""
        ways = ["at once", "pieces", "rename"] + (["hole", "zeros", "mmap"] if path.name == WEIGHTS else [])
        way = self.rng.choice(ways)
        rest = self._moment if calm else self._pause
        if way == "at once":
            self.disk.write(path, data)
        elif way == "rename":
            temporary = path.with_name(f".tmp{self.rng.getrandbits(24):06x}")
            self.disk.write(temporary, data[: len(data) // 2])
            yield Pause(rest())
            self.disk.write(temporary, data[len(data) // 2 :], at=len(data) // 2)
            self.disk.replace(temporary, path)
        elif way == "pieces":
            cut = self.rng.randrange(len(data))
            self.disk.write(path, data[:cut])
            yield Pause(rest() if brief or path.name in NOT_EXPORTED else self._pause(), broken=path.name not in NOT_EXPORTED)
            self.disk.write(path, data[cut:], at=cut)
        else:
            yield from self._fill(path, data, way)

    def _fill(self, path: Path, data: bytes, way: str) -> Iterator[Pause]:
        """Full size from the start, contents later: as a hole, as zeros, or through a mapping that gives no event."""
        if way == "hole":
            last = len(data) // BLOCK * BLOCK
            self.disk.write(path, data[:BLOCK], size=len(data))
            self.disk.write(path, data[last:], at=last)
            yield Pause(self._pause(), broken=True)
            self.disk.write(path, data[BLOCK:last], at=BLOCK)
            return
        first = self.rng.randint(BLOCK, len(data) - BLOCK)
        self.disk.write(path, data[:first] + bytes(len(data) - first))
        yield Pause(self._pause(), broken=True)
        self.disk.write(path, data[first:], at=first, silent=way == "mmap")

    def _afterwards(self, target: Path) -> Iterator[Pause]:
        """What may come after completion."""
        chance = self.rng.random()
        standing = self.disk.standing(target)
        if standing is None or chance > 0.4:
            return
        if chance < 0.1:
            self.disk.touch(target / self.rng.choice(sorted(standing.files)))
        elif chance < 0.2:
            self.disk.write(target / "rng_state_1.pth", self.rng.randbytes(50))
        elif chance < 0.3:
            data = json.dumps({"late": self.rng.random()}).encode()
            yield from self._write(target / "late.json", data, calm=not self.reckless)
            self.disk.finished(target, {**standing.files, "late.json": data})
        yield self._life()

    def _delete(self, target: Path) -> Iterator[Pause]:
        """rmtree in any order; now and then it stops halfway for ever."""
        names = sorted(path.name for path in target.iterdir())
        self.rng.shuffle(names)
        stop = self.rng.randrange(len(names)) if self.rng.random() < 0.2 else None
        for index, name in enumerate(names):
            unfinished = bool(set(names[:index]) & {WEIGHTS, STATE, "adapter_config.json"}) and self._is_told(target)
            if index == stop and (self.reckless or unfinished):
                return
            self.disk.unlink(target / name)
            yield Pause(self._pause() if self.reckless else self._moment())
        self.disk.remove_directory(target)

    def _moment(self, share: float = 0.07) -> float:
        """So short that the operations between two changes of exported files stay below the settle time together."""
        return self.rng.choice([0.0, self.rng.uniform(0, share * self.settle)])

    def _pause(self) -> float:
        return self.rng.choice(
            [0.0, 0.0, self.rng.uniform(0, 0.05), self.rng.uniform(0, self.settle), self.rng.uniform(1, 3) * self.settle]
        )
