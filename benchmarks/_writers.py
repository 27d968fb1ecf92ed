"""Scripted trainers in a process of their own, for `detection.py`: real files, real pauses, and a log of the truth.

`python benchmarks/_writers.py steady|faults ROOT LOG COUNT SECONDS`: COUNT threads write checkpoints below ROOT. Each version that a
trainer holds to be complete goes to LOG as a JSON line {path, digest, since, until}, in seconds of the monotonic clock.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import shutil
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

WEIGHTS, STATE = "adapter_model.safetensors", "trainer_state.json"
JUDGED = (WEIGHTS, "adapter_config.json", "tokenizer.json", STATE)
"""A reader has the checkpoint when it has these as they were meant."""
LIFE = 6.0
"""Seconds that a version stands before it is rotated or rewritten: more than any of the watchers asks for."""


def digest_of(files: dict[str, bytes]) -> str:
    """Digest of the files that make the checkpoint this one."""
    digest = hashlib.sha256()
    for name in JUDGED:
        digest.update(name.encode() + hashlib.sha256(files.get(name, b"")).digest())
    return digest.hexdigest()


def read_checkpoint(folder: Path) -> str:
    """What a watcher gets that takes `folder` now; what is not there reads as empty."""
    found = {}
    for name in JUDGED:
        try:
            found[name] = (folder / name).read_bytes()
        except OSError:
            found[name] = b""
    return digest_of(found)


def contents(rng: random.Random, step: int, size: int) -> dict[str, bytes]:
    """Files of a save in the order in which transformers' Trainer writes them; `size`: bytes of the adapter."""
    header = json.dumps({"lora": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return {
        "README.md": b"an adapter\n",
        WEIGHTS: struct.pack("<Q", len(header)) + header + rng.randbytes(size).replace(b"\0", b"\1"),
        "adapter_config.json": json.dumps({"peft_type": "LORA", "r": 8, "noise": rng.randbytes(8).hex()}).encode(),
        "tokenizer.json": json.dumps({"noise": rng.randbytes(5000).hex()}).encode(),
        "training_args.bin": rng.randbytes(5000),
        "optimizer.pt": rng.randbytes(2 * size),
        STATE: json.dumps({"global_step": step, "log_history": [{"step": step, "loss": rng.random()}]}).encode(),
    }


class Writers:
    """The threads' common log, and the ways in which a checkpoint comes to be."""

    def __init__(self, root: Path, log: Path) -> None:
        self.root = root
        self._log = log.open("a", buffering=1)
        self._lock = threading.Lock()

    def say(self, path: Path, files: dict[str, bytes], since: float, until: float | None) -> None:
        """A version of `path` was whole from `since` on; None: to the end."""
        with self._lock:
            self._log.write(json.dumps({"path": str(path), "digest": digest_of(files), "since": since, "until": until}) + "\n")

    def steady(self, number: int, count: int, seconds: float) -> None:
        """One save at a time of its own within `seconds`, in pieces with short pauses; nothing special."""
        rng = random.Random(number)
        target = self.root / f"run-{number:03}" / "checkpoint-10"
        target.mkdir(parents=True)
        files = contents(rng, 10, 500_000)
        time.sleep(seconds * (number + rng.random()) / count)
        for name, data in files.items():
            with open(target / name, "wb", buffering=0) as stream:
                for start in range(0, len(data), 200_000):
                    stream.write(data[start : start + 200_000])
                    time.sleep(0.002)
        self.say(target, files, time.monotonic(), None)

    def faults(self, number: int, count: int, seconds: float) -> None:
        """A run with one of the habits that make watchers fail."""
        habits: tuple[Callable[[int], None], ...] = (
            self.plain, self.pausing, self.preallocating, self.resuming, self.rotating, self.crashing, self.moving_in, self.mapping,
        )  # fmt: skip
        time.sleep(random.Random(number).uniform(0, 2))
        habits[number % len(habits)](number)

    def save(self, target: Path, files: dict[str, bytes], pause: Callable[[str], float], after: str = STATE) -> float:
        """Write the files up to `after` in two pieces each; gives the time of the last byte."""
        target.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            with open(target / name, "wb", buffering=0) as stream:
                stream.write(data[: len(data) // 2])
                time.sleep(pause(name))
                stream.write(data[len(data) // 2 :])
            if name == after:
                break
            time.sleep(pause(name))
        return time.monotonic()

    def _new(self, number: int, step: int) -> tuple[Path, dict[str, bytes]]:
        return self.root / f"run-{number}" / f"checkpoint-{step}", contents(random.Random(1000 * number + step), step, 300_000)

    def plain(self, number: int) -> None:
        """Two saves without any pause worth the name."""
        for step in (10, 20):
            target, files = self._new(number, step)
            self.say(target, files, self.save(target, files, lambda _: 0.01), None)
            time.sleep(2)

    def pausing(self, number: int) -> None:
        """Longer pauses than any debounce, within the weights and before the last file (a large optimizer)."""
        target, files = self._new(number, 10)
        self.say(target, files, self.save(target, files, lambda name: 2.5 if name in (WEIGHTS, "optimizer.pt") else 0.01), None)

    def preallocating(self, number: int) -> None:
        """Full-size files of holes, filled later."""
        target, files = self._new(number, 10)
        target.mkdir(parents=True)
        with open(target / WEIGHTS, "wb", buffering=0) as stream:
            stream.truncate(len(files[WEIGHTS]))
        time.sleep(2.5)
        self.say(target, files, self.save(target, files, lambda name: 2.0 if name == WEIGHTS else 0.01), None)

    def resuming(self, number: int) -> None:
        """The same step again with other content, rewritten in place."""
        target, files = self._new(number, 10)
        since = self.save(target, files, lambda _: 0.01)
        time.sleep(LIFE)
        again = contents(random.Random(number + 5), 10, 300_000)
        self.say(target, files, since, time.monotonic())
        self.say(target, again, self.save(target, again, lambda name: 1.5 if name == WEIGHTS else 0.01), None)

    def rotating(self, number: int) -> None:
        """save_total_limit=1: the older one goes when the newer one is saved."""
        before: tuple[Path, dict[str, bytes], float] | None = None
        for step in (10, 20, 30):
            target, files = self._new(number, step)
            since = self.save(target, files, lambda _: 0.02)
            if before is not None:
                self.say(*before, time.monotonic())
                shutil.rmtree(before[0])
            before = (target, files, since)
            time.sleep(LIFE)
        assert before is not None
        self.say(*before, None)

    def crashing(self, number: int) -> None:
        """Killed before the last file: never complete."""
        target, files = self._new(number, 10)
        self.save(target, files, lambda _: 0.02, after=("tokenizer.json", "optimizer.pt")[number // 8 % 2])

    def moving_in(self, number: int) -> None:
        """A finished run that is moved below the root as a whole."""
        target, files = self._new(number, 10)
        outside = self.root.parent / f"outside-{number}"
        self.save(outside / target.name, files, lambda _: 0.01)
        os.rename(outside, target.parent)
        self.say(target, files, time.monotonic(), None)

    def mapping(self, number: int) -> None:
        """Weights through a mapping, which gives no event for its contents; zeros until then."""
        target, files = self._new(number, 10)
        target.mkdir(parents=True)
        data = files[WEIGHTS]
        with open(target / WEIGHTS, "w+b") as stream:
            stream.write(data[:20_000] + bytes(len(data) - 20_000))
            stream.flush()
            with mmap.mmap(stream.fileno(), len(data)) as mapped:
                time.sleep(2.0)
                mapped[20_000:] = data[20_000:]
        rest = {name: files[name] for name in files if name != WEIGHTS}
        self.say(target, files, self.save(target, rest, lambda _: 0.01), None)


def main() -> None:
    """Run the threads to their end."""
    way, root, log, count, seconds = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])
    writers = Writers(root, log)
    script = {"steady": writers.steady, "faults": writers.faults}[way]
    threads = [threading.Thread(target=script, args=(number, count, seconds)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
