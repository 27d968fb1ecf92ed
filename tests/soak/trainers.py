"""Trainers of a soak: what they write below the roots, well and badly, and what they will have to be able to find exported.

Contents are copies of one real checkpoint whose last value differs, so that each has a digest of its own and the toy stages take it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.detection.helpers import in_trainers_order

WEIGHTS = "adapter_model.safetensors"


class Trainers:
    """Threads that write checkpoints; `expected`: the directories that stay as they are."""

    def __init__(self, source: Path, root: Path, rng: random.Random, name: str = "run") -> None:
        self.source, self.root, self._rng, self._name = source, root, rng, name
        self.counts: Counter[str] = Counter()
        self._expected: list[Path] = []
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._number = 0

    def begin(self) -> str:
        """Start one trainer of a random kind; gives its kind."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) >= 4:
            return "enough trainers"
        kind: Callable[[Path, random.Random], None] = self._rng.choice(KINDS_OF_TRAINER)(self)
        self._number += 1
        rng = random.Random(self._rng.random())
        run = self.root / rng.choice(["", "team/"]) / f"{self._name}-{self._number:04}"
        thread = threading.Thread(target=kind, args=(run, rng), name=run.name)
        self._threads.append(thread)
        thread.start()
        name = kind.__name__.removeprefix("_").replace("_", " ")
        self.counts[f"trainer: {name}"] += 1
        return name

    def end(self) -> None:
        """Wait until every trainer has written what it had to write."""
        for thread in self._threads:
            thread.join()

    @property
    def expected(self) -> list[Path]:
        """Directories that stay as they are."""
        with self._lock:
            return list(self._expected)

    def _steady(self, run: Path, rng: random.Random) -> None:
        for step in range(1, rng.randint(2, 4)):
            self._save(run / f"checkpoint-{step * 10}", step * 10, rng, stays=True)
            time.sleep(rng.uniform(0.2, 2))

    def _rotating(self, run: Path, rng: random.Random) -> None:
        kept: list[Path] = []
        for step in range(1, rng.randint(3, 5)):
            kept.append(self._save(run / f"checkpoint-{step}", step, rng))
            time.sleep(rng.uniform(0.5, 2))
            while len(kept) > 1:
                shutil.rmtree(kept.pop(0))
        self._stays(kept[0])

    def _rewriting(self, run: Path, rng: random.Random) -> None:
        target = run / "checkpoint-7"
        for _ in range(rng.randint(2, 3)):
            self._save(target, 7, rng)
            time.sleep(rng.uniform(0.1, 4))
        self._stays(target)

    def _slow(self, run: Path, rng: random.Random) -> None:
        self._save(run / "checkpoint-3", 3, rng, pause=1.5, stays=True)

    def _interrupted(self, run: Path, rng: random.Random) -> None:
        """A trainer that dies while it saves: what it leaves must never be exported."""
        target = self._save(run / "checkpoint-5", 5, rng, files=rng.randint(1, 3))
        if rng.random() < 0.5:  # and is begun again
            time.sleep(rng.uniform(0, 2))
            self._save(target, 5, rng, stays=True)

    def _ended(self, run: Path, rng: random.Random) -> None:
        self._save(run / "checkpoint-9", 9, rng, stays=True)
        self._save(run / "final", 9, rng, stays=True)

    def _save(self, target: Path, step: int, rng: random.Random, *, pause: float = 0.1, files: int = 99, stays: bool = False) -> Path:
        target.mkdir(parents=True, exist_ok=True)
        value = rng.uniform(1, 2)
        for source in in_trainers_order(self.source)[:files]:
            data = source.read_bytes()
            if source.name == WEIGHTS:
                data = data[:-4] + struct.pack("<f", value)
            elif source.name == "trainer_state.json":
                data = json.dumps({**json.loads(data), "global_step": step}).encode()
            middle = rng.randint(0, len(data))
            with open(target / source.name, "wb") as stream:
                stream.write(data[:middle])
                stream.flush()
                time.sleep(rng.uniform(0, pause))
                stream.write(data[middle:])
            time.sleep(rng.uniform(0, pause))
        if stays:
            self._stays(target)
        return target

    def _stays(self, target: Path) -> None:
        with self._lock:
            self._expected.append(target)


KINDS_OF_TRAINER: list[Callable[[Trainers], Callable[[Path, random.Random], None]]] = [
    lambda self: self._steady,
    lambda self: self._rotating,
    lambda self: self._rewriting,
    lambda self: self._slow,
    lambda self: self._interrupted,
    lambda self: self._ended,
]


def make_hostile(root: Path, source: Path, rng: random.Random, number: int) -> str:
    """Leave a directory that means trouble below the root; gives its kind. Nothing of it may be exported, nothing else may suffer."""
    target = root / f"hostile-{number:04}" / "checkpoint-1"
    target.mkdir(parents=True)
    config = json.loads((source / "adapter_config.json").read_text())
    kind = rng.choice(
        [
            "pipe",
            "wrong fields",
            "links in a circle",
            "many entries",
            "deep",
            "endless",
            "odd names",
            "no rights",
            "pattern",
            "long state",
            "long header",
        ]
    )
    if kind in ("wrong fields", "pattern"):
        shutil.copytree(source, target, dirs_exist_ok=True)
        wrong = {"r": rng.choice(["four", 0, -1, None, True]), "lora_alpha": rng.choice(["NaN", [], 8])}
        if kind == "pattern":
            wrong = {"target_modules": "(a*)*b", "rank_pattern": {f"layer.{place}": 4 for place in range(20_000)}}
        (target / "adapter_config.json").write_text(json.dumps({**config, **wrong, "base_model_name_or_path": rng.choice([5, "../x", ""])}))
    elif kind == "long state":  # a file that takes a minute to parse
        shutil.copytree(source, target, dirs_exist_ok=True)
        entry = b'{"loss": [' + b"[0.5, {}], " * (rng.choice([20, 200]) * 10_000) + b"0]},"
        (target / "trainer_state.json").write_bytes(b'{"global_step": "x", "log_history": [' + entry * 8 + b"0]}")
    elif kind == "long header":  # of millions of tensors
        shutil.copytree(source, target, dirs_exist_ok=True)
        header = b"{" + b",".join(b'"a%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % place for place in range(400_000)) + b"}"
        (target / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header)
    elif kind == "pipe":
        os.mkfifo(target / "adapter_config.json")
        os.mkfifo(target / WEIGHTS)
    elif kind == "endless":
        (target / "adapter_config.json").symlink_to("/dev/zero")
        shutil.copy(source / WEIGHTS, target)
    elif kind == "links in a circle":
        (target / "again").symlink_to(target.parent)
        (target / "adapter_config.json").symlink_to("adapter_config.json")
    elif kind == "many entries":
        for place in range(3000):
            (target / f"{place}.txt").touch()
    elif kind == "deep":
        path = target
        for _ in range(60):
            path /= "d"
        path.mkdir(parents=True)
    elif kind == "odd names":
        for name in (b"\xff\xfe", b"a\nb", b"\x1b[31mred", b"-rf", b"%s%n", b" " * 40):
            os.mkdir(os.path.join(os.fsencode(target), name))
    elif kind == "no rights":
        shutil.copy(source / "adapter_config.json", target)
        with contextlib.suppress(OSError):
            (target / "adapter_config.json").chmod(0)
    return kind
