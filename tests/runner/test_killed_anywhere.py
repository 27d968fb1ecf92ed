"""kill -9 of a daemon with the real stages, at every commit and every publication step: the same artifacts, no finished stage repeated.

The quick set has it in `tests/live` and, with toy stages, in `test_killed_in_rounds`.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.places.output_owners import RECORD
from daemon.contract.disk.files import sha256_file
from tests.runner.conftest import artifacts
from tests.service import Service, listing, stray_handlers

POINTS = (
    "after.settle-attempt",
    "before.add-job", "after.add-job", "before.start-job", "after.start-job", "before.claim", "after.claim", "before.spawned",
    "runner.spawned", "before.settle-attempt", "publish.assembled", "publish.manifest", "publish.renamed", "before.finish-job",
    "after.finish-job",
)  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(pico_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Digest by file of an export that nothing disturbed, reports and READMEs left out since they tell times."""
    service = Service(tmp_path_factory.mktemp("undisturbed"))
    service.add(pico_checkpoint)
    service.start()
    (job,) = service.wait_ended()
    assert service.stop() == 0
    assert job["state"] == "succeeded"
    return artifacts(Path(job["target"]))


def _check_whole(service: Service, undisturbed: dict[str, str]) -> None:
    """The invariants after any crash: one whole export, its manifest true, links right, nothing left over."""
    (job,) = service.status()["jobs"]
    target = Path(job["target"])
    assert job["state"] == "succeeded", service.log()[-3000:]
    assert artifacts(target) == undisturbed
    manifest = json.loads((target / "MANIFEST.json").read_bytes())
    assert {entry["path"]: entry["sha256"] for entry in manifest["files"]} == {
        row: sha256_file(target / row) for row in listing(target) if (target / row).is_file() and row != "MANIFEST.json"
    }
    assert (target.parent / "latest").resolve() == target
    assert sorted(path.name for path in target.parent.iterdir() if not path.name.startswith(RECORD)) == ["latest", target.name]
    assert listing(service.state / "pins") == []
    assert [row for row in listing(service.exports / ".staging") if "/" in row] == []
    assert stray_handlers(service.folder) == []


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_daemon_killed_at_any_point_ends_with_the_sameartifacts(  # R6.5
    point: str, make_service: Callable[..., Service], pico_checkpoint: Path, undisturbed: dict[str, str]
) -> None:
    service = make_service()
    service.add(pico_checkpoint)
    service.start(fault=point)
    assert service.wait_dead() == -signal.SIGKILL, f"the point {point} was never reached"
    service.start()
    (job,) = service.wait_ended()
    assert service.stop() == 0
    _check_whole(service, undisturbed)
    # A stage runs twice only if the crash fell inside its own attempt.
    repeated = [stage["name"] for stage in job["stages"] if stage["attempts"] > 1]
    assert len(repeated) <= 1 and all(stage["attempts"] <= 2 for stage in job["stages"]), job["stages"]
    if point.startswith(("publish.", "before.finish", "after.finish", "before.start", "after.start", "before.add", "after.add")):
        assert repeated == []


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["merge", "reference", "merged"])
def test_a_daemon_killed_while_a_stage_runs_takes_its_child_along_and_goes_on(
    stage: str, make_service: Callable[..., Service], pico_checkpoint: Path, undisturbed: dict[str, str]
) -> None:
    service = make_service()
    service.add(pico_checkpoint)
    service.start()
    service.wait_for(lambda v: any(s["name"] == stage and s["state"] == "running" for job in v["jobs"] for s in job["stages"]))
    service.kill()
    deadline = time.monotonic() + 5
    while stray_handlers(service.folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert stray_handlers(service.folder) == []
    service.start()
    service.wait_ended()
    assert service.stop() == 0
    _check_whole(service, undisturbed)


@pytest.mark.slow
def test_sigterm_ends_the_children_and_the_next_start_goes_on(
    make_service: Callable[..., Service], pico_checkpoint: Path, undisturbed: dict[str, str]
) -> None:
    service = make_service()
    service.add(pico_checkpoint)
    service.start()
    service.wait_for(lambda v: any(s["name"] == "reference" and s["state"] == "running" for job in v["jobs"] for s in job["stages"]))
    began = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - began < 10
    assert stray_handlers(service.folder) == []
    assert not service.status()["daemon"]["running"]
    service.start()
    (job,) = service.wait_ended()
    assert service.stop() == 0
    _check_whole(service, undisturbed)
    attempts = {stage["name"]: stage["attempts"] for stage in job["stages"]}
    assert attempts == {"merge": 1, "pytorch": 1, "reference": 2, "merged": 1, "report": 1}
