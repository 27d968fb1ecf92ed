"""A base that goes away under a real daemon, and comes back: seen from outside, and with the real merge."""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runner.conftest import STAGES_OF_ONE, Toy
from tests.runner.test_resuming import sound
from tests.service import Service

Add = Callable[..., Path]
NOTIFY = '[notify]\nurls = ["json://127.0.0.1:9/"]\n'


def own_base(pico_base: Path, folder: Path) -> tuple[Path, str]:
    """A base of the test's own, and the configuration by which it is found."""
    base = Path(shutil.copytree(pico_base, folder / "own-base"))
    return base, f"[base.map]\n{json.dumps(str(pico_base))} = {json.dumps(str(base))}\n"


def told(service: Service) -> list[str]:
    """Titles of all notifications that were ever entered."""
    with sqlite3.connect(service.state / "journal.sqlite3") as connection:
        return [row[0] for row in connection.execute("SELECT title FROM outbox ORDER BY id")]


def events(service: Service) -> list[str]:
    rows = [json.loads(line) for line in (service.state / "ckptd.log").read_text().splitlines()]
    return [row["event"] for row in rows if row["event"] in ("export.waiting", "source.back")]


def waits_for(path: Path) -> Callable[[dict[str, Any]], bool]:
    return lambda v: any(str(path) in (job["waiting_for"] or "") for job in v["jobs"])


def test_a_base_that_goes_away_under_the_merge_is_told_once_and_costs_one_attempt_that_is_not_counted(
    make_toy: Callable[..., Toy], add: Add, pico_base: Path, tmp_path: Path
) -> None:
    base, mapped = own_base(pico_base, tmp_path)
    toy = make_toy(extra=f"{mapped}{NOTIFY}[limits]\nattempts = 1\n")
    toy.held.touch()
    add(toy)
    toy.start()
    toy.wait_held()
    base.rename(tmp_path / "aside")
    toy.held.unlink()
    value = toy.wait_for(waits_for(base), 20)
    assert "limits.away_hours" in value["jobs"][0]["waiting_for"] and value["jobs"][0]["state"] == "running"
    (tmp_path / "aside").rename(base)
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded" and sorted(toy.stages_begun()) == sorted([*STAGES_OF_ONE, "merge"])
    assert events(toy) == ["export.waiting", "source.back"]
    begun, over = told(toy)[:2]
    path = begun.removeprefix("ckptd: exports wait for ")
    assert path in (str(base), f"{base}/model.safetensors") and over == f"ckptd: {path} is there now"
    sound(toy)


@pytest.mark.slow
def test_a_base_and_prompts_that_are_missing_from_the_start_are_told_once_over_a_restart_and_then_used(
    make_toy: Callable[..., Toy], add: Add, pico_base: Path, tmp_path: Path
) -> None:
    base, mapped = own_base(pico_base, tmp_path)
    prompts = tmp_path / "prompts.txt"
    toy = make_toy(extra=f'prompts = "{prompts}"\n{mapped}{NOTIFY}')
    base.rename(tmp_path / "aside")
    add(toy)
    toy.start()
    toy.wait_for(waits_for(base), 20)
    assert toy.stop() == 0
    toy.start()
    toy.wait_for(waits_for(base), 20)
    assert toy.stages_begun() == [] and len(told(toy)) == 1
    (tmp_path / "aside").rename(base)
    toy.wait_for(waits_for(prompts), 20)
    prompts.write_text("a prompt\n")
    (job,) = toy.wait_ended()
    toy.stop()
    assert job["state"] == "succeeded" and sorted(toy.stages_begun()) == sorted(STAGES_OF_ONE)
    assert events(toy) == ["export.waiting", "source.back"] * 2
    sound(toy)


@pytest.mark.slow
def test_a_real_base_that_is_away_for_8_seconds_during_the_merge_is_merged_when_it_is_back(
    make_service: Callable[..., Service], pico_checkpoint: Path, pico_base: Path, tmp_path: Path
) -> None:
    base, mapped = own_base(pico_base, tmp_path)
    service = make_service(extra=mapped)
    service.add(pico_checkpoint)
    service.start()
    while not any((service.state / "jobs").glob("*/merge.1/job.json")):  # written right before its process reads anything
        assert service.process is not None and service.process.poll() is None, service.log()
        time.sleep(0.005)
    base.rename(tmp_path / "aside")
    gone = time.monotonic()
    value = service.wait_for(waits_for(base), 8)
    assert value["jobs"][0]["state"] == "running", value
    time.sleep(max(0.0, gone + 8 - time.monotonic()))
    (tmp_path / "aside").rename(base)
    (job,) = service.wait_ended()
    assert job["state"] == "succeeded" and next(s["attempts"] for s in job["stages"] if s["name"] == "merge") == 2
    assert service.stop() == 0
    sound(service)
