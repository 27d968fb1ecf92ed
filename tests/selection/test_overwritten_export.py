"""A trainer that writes the same checkpoint again while the real daemon exports it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.checkpoints.pinning.pins import identify
from tests.detection.helpers import change_weights
from tests.service import Service, listing, stray_handlers


@pytest.mark.slow
@pytest.mark.parametrize("copy_limit", ["1GiB", "10KiB"])
def test_an_export_whose_checkpoint_is_overwritten_gives_way_to_that_of_the_new_content(
    make_service: Callable[..., Service], pico_checkpoint: Path, copy_limit: str
) -> None:  # R6.5
    service = make_service(extra=f'[pin]\ncopy_limit = "{copy_limit}"\n')
    service.start()
    checkpoint = service.add(pico_checkpoint)
    service.wait_for(lambda value: any(stage["state"] == "running" for job in value["jobs"] for stage in job["stages"]))
    first = service.status()["jobs"][0]["id"]
    with open(checkpoint / "adapter_model.safetensors", "r+b") as stream:
        stream.seek(-64, 2)
        stream.write(b"\x00\x3c" * 32)
    change_weights(checkpoint, 0.01)
    jobs = {job["id"]: job for job in service.wait_for(
        lambda value: len(value["jobs"]) == 2 and all(job["state"] in ("superseded", "succeeded", "partial") for job in value["jobs"])
    )["jobs"]}  # fmt: skip
    old, new = jobs.pop(first), next(iter(jobs.values()))
    assert old["state"] == "superseded"
    assert old["error"] == f"superseded by {new['id']}" or old["error"].startswith("the trainer rewrote adapter_model.safetensors in place")
    assert new["state"] == "succeeded"
    assert not any(stage["name"] == "report" and stage["state"] == "succeeded" for stage in old["stages"])
    service.wait_for(lambda value: listing(service.state / "pins") == [])
    staging = next((service.exports / ".staging").iterdir())
    service.wait_for(lambda value: listing(staging) == [])
    assert stray_handlers(service.folder) == []
    report = json.loads((service.exports / "run" / "step-4" / "report.json").read_text())
    assert (report["export_id"], report["checkpoint"]["digest"]) == (new["id"], identify(checkpoint))
    assert sorted(path.name for path in (service.exports / "run").iterdir()) == ["latest", "step-4"]
    assert "met an error" not in service.log()
    assert service.stop() == 0
