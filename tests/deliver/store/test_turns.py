"""Several who deliver and take away at one place at once, over all that a store promises."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from pathlib import Path

import pytest

from daemon.contract.delivering.orders import Order
from daemon.contract.faults.errors import CkptdError
from handlers.deliver.store.folder import Folder
from handlers.deliver.store.target import Store
from handlers.deliver.target import Resume, Setting
from handlers.deliver.transfer import Transfer
from tests.deliver import exports
from tests.deliver.exports import Export
from tests.deliver.store.turns import InTurns, Turns

FILES = {"README.md": b"# An export\n", "pytorch/config.json": b"{}", "pytorch/model.safetensors": 300, "onnx/empty.txt": b""}


def order(export: Export | None, **more: object) -> Order:
    values = {"kind": "store", "entry": "-", "name": "tried", "options": {}, "export": str(export.folder) if export else "", **more}
    return Order.model_validate(values)


def transfer(base: Path, turns: Turns, wanted: Order, run: str = "run-a") -> Transfer:
    store = Store(Setting({"url": f"file://{base}"}, "", base, Resume(), run=run))
    store._store = InTurns(Folder(str(base), Resume()), turns)  # type: ignore[assignment]
    return Transfer(wanted, store, lambda said: None, sleep=lambda seconds: turns.point())


def whole_versions(base: Path) -> dict[str, str]:
    """Versions that a reader takes for whole, each with what is wrong with it, or ""."""
    seen = {}
    for manifest in base.glob("run-a/[!.]*/MANIFEST.json"):
        wrong = ""
        for row in json.loads(manifest.read_bytes())["files"]:
            with contextlib.suppress(FileNotFoundError):
                if hashlib.sha256((manifest.parent / row["path"]).read_bytes()).hexdigest() == row["sha256"]:
                    continue
            wrong = row["path"]
        seen[f"run-a/{manifest.parent.name}"] = wrong
    return seen


def play(folder: Path, seed: int, kills: float) -> None:
    """One game: up to four who deliver or take away one of three versions, each in its own process, so to speak."""
    chance = random.Random(seed)
    made = [exports.make(folder / f"export-{step}", step=step, files=FILES) for step in (100, 200, 300)]
    (base := folder / "store").mkdir()
    calm = Turns(0)
    names = [transfer(base, calm, order(export)).version().name for export in made]
    for export in chance.sample(made, chance.randrange(3)):
        transfer(base, calm, order(export, move=chance.choice(["move", "keep"]))).deliver()
    turns, delivered, taken = Turns(seed, kills), set[str](), set[str]()

    def act(number: int, kind: str, keep: int, move: str) -> None:
        if kind == "remove":
            taken.add(f"run-a/{names[number]}")
            with contextlib.suppress(CkptdError):
                transfer(base, turns, order(None, action="remove", remove=(f"run-a/{names[number]}",))).remove()
            return
        with contextlib.suppress(CkptdError):
            wanted = order(made[number], keep=keep, move=move, read_back=number != 1)
            delivered.add(transfer(base, turns, wanted).deliver().version)

    for _ in range(chance.randrange(2, 5)):
        number, kind = chance.randrange(3), chance.choice(["deliver", "deliver", "remove"])
        keep, move = chance.choice([0, 1, 2]), chance.choice(["move", "move", "force"])
        if keep:
            taken |= {f"run-a/{name}" for name in names}
        turns.add(lambda number=number, kind=kind, keep=keep, move=move: act(number, kind, keep, move))  # type: ignore[misc]

    def look() -> None:
        assert not any(wrong := whole_versions(base).values()), (seed, wrong)

    turns.run(lambda: None)
    assert not turns.problems, (seed, turns.problems)
    look()
    assert delivered - taken <= whole_versions(base).keys(), seed
    latest = base / "run-a/latest.json"
    if latest.is_file() and not turns.killed:
        assert f"run-a/{json.loads(latest.read_bytes())['version']}" in whole_versions(base), seed
    for export, name in zip(made, names, strict=True):
        transfer(base, calm, order(export)).deliver()
        assert whole_versions(base)[f"run-a/{name}"] == "", seed
    look()


@pytest.mark.parametrize("kills", [0.0, 0.02])
def test_whoever_delivers_and_takes_away_at_once_leaves_whole_versions(tmp_path: Path, kills: float) -> None:
    for seed in range(60):
        (folder := tmp_path / str(seed)).mkdir()
        play(folder, seed, kills)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [0.0, 0.02])
def test_the_same_for_long(tmp_path: Path, kills: float) -> None:
    for seed in range(1000, 4000):
        (folder := tmp_path / str(seed)).mkdir()
        play(folder, seed, kills)
