"""A dozen formats of one checkpoint in one job, each with its real libraries, finish although the daemon is killed again and again."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.places.output_owners import RECORD
from daemon.contract.disk.files import sha256_file
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.plan import spec_of
from tests.service import Service, listing, stray_handlers
from tests.toolchains.real import run, state_with

VARIANTS = (
    "pytorch", "onnx", "onnx-int8", "gguf-q8_0", "openvino-int8", "torchscript", "pt2", "executorch-int8", "litert-int8", "coreml-int8",
    "mlx-int4", "web-int8", "tensorrt-bundle",
)  # fmt: skip
KILLS = 12
SEED = os.environ.get("KILL_SEED")

__all__ = ["run"]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every toolchain that the variants take, installed."""
    known = catalog().variants
    names = {spec_of(one).toolchain for one in VARIANTS} | {known[one].limits.toolchain for one in VARIANTS}
    places = [state_with(tmp_path_factory, name) for name in sorted(filter(None, names))]
    if len(set(places)) == 1:
        return places[0]
    together = tmp_path_factory.mktemp("together")
    (together / "toolchains").mkdir()
    for path in (path for place in places for path in (place / "toolchains").iterdir()):
        (together / "toolchains" / path.name).symlink_to(path)
    return together


@pytest.mark.slow
@pytest.mark.timeout(2400)  # twelve kills are five minutes apart from the work
def test_a_dozen_formats_finish_although_the_daemon_is_killed_at_random(  # R6.5
    make_service: Callable[..., Service], run: Path, state: Path
) -> None:
    seed = int(SEED) if SEED else random.randrange(1 << 30)
    print(f"KILL_SEED={seed}")
    draw = random.Random(seed)
    service = make_service(variants=VARIANTS, extra=f"[limits]\ncrashes = {KILLS + 1}\n")  # a stage may be hit every time
    service.state.mkdir(parents=True)
    (service.state / "toolchains").symlink_to(state / "toolchains")
    service.add(run / "checkpoint-4")
    for _ in range(KILLS):
        service.start()
        end = time.monotonic() + 4 + draw.expovariate(1 / 20)
        while time.monotonic() < end and not _ended(service):
            time.sleep(0.1)
        if _ended(service):
            break
        service.kill()
        deadline = time.monotonic() + 10
        while stray_handlers(service.folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert stray_handlers(service.folder) == [], seed
    else:
        service.start()
    (job,) = service.wait_ended(seconds=1500)
    assert service.stop() == 0
    target = Path(job["target"])
    assert job["state"] == "succeeded", (seed, job, service.log()[-3000:])
    report = json.loads((target / "report.json").read_bytes())
    verdicts = {one["variant"]: one["verdict"] for one in report["artifacts"]}
    assert verdicts == {**dict.fromkeys(VARIANTS, "passed"), "tensorrt-bundle": verdicts["tensorrt-bundle"]}, seed
    manifest = json.loads((target / "MANIFEST.json").read_bytes())
    found = [row for row in listing(target) if (target / row).is_file() and row != "MANIFEST.json"]
    assert {entry["path"]: entry["sha256"] for entry in manifest["files"]} == {row: sha256_file(target / row) for row in found}
    assert sorted(path.name for path in target.parent.iterdir() if not path.name.startswith(RECORD)) == ["latest", target.name]
    assert [row for row in listing(service.exports / ".staging") if "/" in row] == []
    # What had ended before a kill is not done again: an attempt more for every stage that ran then, at most two side by side.
    stages = [stage for stage in job["stages"] if stage["attempts"]]
    assert sum(stage["attempts"] - 1 for stage in stages) <= 2 * KILLS, [(stage["name"], stage["attempts"]) for stage in stages]


def _ended(service: Service) -> bool:
    jobs = service.status()["jobs"]
    return bool(jobs) and all(job["state"] in ("succeeded", "partial", "failed") for job in jobs)
