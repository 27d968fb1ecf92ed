"""The trainers' environments, and the trainings beside one daemon."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.environments import Environments, of_trainers
from tests.service import ENDED, Service
from tests.trainers import bases
from tests.trainers.cases import FAILED, REFUSED, TAKEN, Case

AT_ONCE = int(os.environ.get("TRAINERS_TEST_JOBS") or 2)
QUIET_SECONDS = 50
"""After the last change: the settle time, the 30 seconds that what has no last file waits for, and some scans."""


@dataclass
class Training:
    """A training that has ended."""

    case: Case
    folder: Path
    """The directory that it wrote."""
    failed: str
    """The end of what it said, where it failed."""
    versions: dict[str, str] = field(default_factory=dict)
    saved: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Place below the folder → what the script told of it."""
    records: Path = Path()


@dataclass
class Ran:
    """Everything that ran, and what `ckptd status --json` says at the end."""

    environments: Environments
    service: Service
    trainings: dict[str, Training]
    status: dict[str, Any]


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """The trainers' environments."""
    return of_trainers(tmp_path_factory)


def _wanted(request: pytest.FixtureRequest) -> list[Case]:
    """The cases of the tests that were asked for, in the order of the table."""
    cases = {item.callspec.params["case"].name: item.callspec.params["case"] for item in request.session.items
             if isinstance(item, pytest.Function) and "case" in getattr(getattr(item, "callspec", None), "params", {})}  # fmt: skip
    return list(cases.values())


def _train(environments: Environments, models: Path, service: Service, case: Case, records: Path) -> Training:
    folder = service.root / case.name
    done = environments.run(case.environment, f"tests.trainers.scripts.{case.name}", models, folder, records)
    training = Training(case, folder, done.stderr[-4000:] if done.returncode else "", records=records)
    if not training.failed:
        training.versions = json.loads((records / "versions.json").read_text())
        rows = [json.loads(line) for line in (records / "saved.jsonl").read_text().splitlines()]
        assert len({row["path"] for row in rows}) == len(rows), "a place is saved once"
        training.saved = {row["path"]: row for row in rows}
    return training


def _settled(value: dict[str, Any]) -> str:
    """What must not change any more."""
    return json.dumps([[(job["id"], job["state"]) for job in value["jobs"]], value["passed_over"], value["incomplete"]], sort_keys=True)


@pytest.fixture(scope="session")
def ran(request: pytest.FixtureRequest, environments: Environments, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """One daemon; below its one root every training that is asked for, two at a time; and everything has come to an end."""
    folder, models = tmp_path_factory.mktemp("beside"), bases.make(tmp_path_factory.mktemp("bases"))
    cases = _wanted(request)
    for name in dict.fromkeys(case.environment for case in cases):
        environments.python(name)
    service = Service(folder, extra=f'[base.map]\n"" = "{models / "causal"}"\n"unsloth/pico-bnb-4bit" = "{models / "causal"}"\n')
    service.start()
    try:
        service.wait_for(lambda v: v["daemon"]["running"] and v["daemon"]["pid"], 30)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            done = list(pool.map(lambda case: _train(environments, models, service, case, folder / "records" / case.name), cases))
        taken = sum(place.outcome in (TAKEN, FAILED) for case in cases for place in case.places)
        refused = sum(place.outcome == REFUSED for case in cases for place in case.places)
        if not any(training.failed for training in done):
            service.wait_for(lambda v: sum(v["counts"].values()) >= taken and len(v["passed_over"]) >= refused, 120 + 60 * taken)
        status = _rest(service, 300 + 60 * taken)
        yield Ran(environments, service, {training.case.name: training for training in done}, status)
        assert service.stop() == 0
    finally:
        if service.process is not None and service.process.poll() is None:
            service.kill()


def _rest(service: Service, seconds: float) -> dict[str, Any]:
    """Wait until nothing changes any more, and all jobs have ended."""
    end, since, before = time.monotonic() + seconds, time.monotonic(), ""
    while time.monotonic() < end:
        value = service.status()
        state = _settled(value)
        if state != before:
            since, before = time.monotonic(), state
        if time.monotonic() - since > QUIET_SECONDS and all(job["state"] in ENDED for job in value["jobs"]):
            return value
        time.sleep(1)
    raise AssertionError(f"no rest: {before}\n{service.log()[-3000:]}")
