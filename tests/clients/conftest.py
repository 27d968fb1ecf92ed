"""Exports of small trainings, and what stock clients answered that were given their folders."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.cases import CASES, READINGS, Reading
from tests.environments import ROOT, Environments, of_clients
from tests.sharing import shared
from tests.toolchains import real

PROGRAMS = Path(__file__).parent
SETTINGS = {
    "CKPTD_VALIDATE__SAMPLES": "2", "CKPTD_VALIDATE__NEW_TOKENS": "4", "CKPTD_VALIDATE__SPEED_TOKENS": "0", "CKPTD_ONNX__OPTIMIZE": "none",
}  # fmt: skip
"""The checks are not what is tested here: as much of them as finds a folder wrong that its clients would be given."""


@dataclass(frozen=True)
class Made:
    """A training and its export."""

    place: Path
    """With `base/`, `run/checkpoint-4` and `live.json`."""
    export: Path

    @property
    def live(self) -> dict[str, Any]:
        """What the live model answers, see `tests.clients.trained`."""
        value: dict[str, Any] = json.loads((self.place / "live.json").read_text())
        return value


@dataclass(frozen=True)
class Clients:
    """The clients' environments, and what they are asked."""

    environments: Environments
    state: Path
    """With the toolchains."""

    def command(self, environment: str) -> list[str | Path]:
        """The command that runs the programs of an environment."""
        if environment == "node":
            return ["node", PROGRAMS / "programs.mjs"]
        return [self.python(environment), "-W", "ignore", PROGRAMS / "programs.py"]

    def python(self, environment: str) -> Path:
        """The Python of an environment: "ours" is the one that the tests run in."""
        if environment == "ours":
            return Path(sys.executable)
        if environment == "gguf":
            return real.folder_of(self.state, "gguf") / "bin" / "python"
        return self.environments.python(environment)

    def answers(self, environment: str, orders: list[list[str]], scratch: Path) -> list[Any]:
        """What the programs of an environment answer to [program, folder, text] each."""
        scratch.mkdir(parents=True)
        asked, answered = scratch / "orders.json", scratch / "answers.json"
        asked.write_text(json.dumps(orders))
        where = self.environments.packages_of_npm() if environment == "node" else scratch
        done = subprocess.run(
            [*self.command(environment), asked, answered], cwd=where, env=stock(), capture_output=True, text=True, check=False, timeout=900
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        values: list[Any] = json.loads(answered.read_text())
        return values


def stock() -> dict[str, str]:
    """The environment variables of a client: nothing of ours, no network, no GPU."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("CKPTD_")}
    return {**kept, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}


@pytest.fixture(scope="session")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Clients:
    """All of them, installed."""
    for name in ("gguf", "openvino", "web"):
        state = real.state_with(tmp_path_factory, name)
    return Clients(of_clients(tmp_path_factory), state)


@pytest.fixture(scope="session")
def made(request: pytest.FixtureRequest, clients: Clients, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """Case → its export, of the cases that the chosen tests ask for."""
    return {
        case: shared(tmp_path_factory, f"client-{case}", lambda folder, case=case: _make(case, clients.state, folder))
        for case in _wanted(request)
    }


@pytest.fixture(scope="session")
def answers(made: dict[str, Made], clients: Clients, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, Reading], Any]:
    """(case, reading) → what the client answered. Each environment's programs run in one process, which reads all folders."""
    asked: dict[str, list[tuple[str, Reading]]] = {}
    for case in made:
        for reading in READINGS[CASES[case].kind]:
            if (made[case].export / reading.variant).is_dir():
                asked.setdefault(reading.environment, []).append((case, reading))
    values: dict[tuple[str, Reading], Any] = {}
    for environment, pairs in asked.items():
        orders = [[reading.program, str(made[case].export / reading.variant), reading.text] for case, reading in pairs]
        values |= dict(zip(pairs, clients.answers(environment, orders, tmp_path_factory.mktemp("asked") / environment), strict=True))
    return values


def _wanted(request: pytest.FixtureRequest) -> list[str]:
    chosen = (getattr(item, "callspec", None) for item in request.session.items if item.path.parent == Path(__file__).parent)
    return list(dict.fromkeys(spec.params["case"] for spec in chosen if spec is not None and "case" in spec.params))


def _make(case: str, state: Path, folder: Path) -> Made:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.clients.trained", folder, case]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    place = folder / case
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        return Made(place, real.export(place / "run" / "checkpoint-4", state, folder / "out", CASES[case].variants))
