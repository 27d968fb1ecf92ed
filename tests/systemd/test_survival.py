"""The service in a real systemd when it is killed, stopped, or no longer answers in the middle of a stage; and what an admin reads then."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.systemd.booted import UNITS, Booted, booted, missing
from tests.systemd.test_in_the_sandbox import configuration, ended, lay_out, save, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(missing()), reason=missing()), pytest.mark.timeout(900)]
GROUP = "/sys/fs/cgroup/ckptd.slice/ckptd.service"


@pytest.fixture
def exporting(tmp_path: Path, pico_base: Path, pico_checkpoint: Path) -> Iterator[Booted]:
    """A booted box whose service has merged a checkpoint and is at the ONNX export of it, which takes seconds."""
    lay_out(tmp_path, pico_base, pico_checkpoint)
    with booted(tmp_path, configuration("pytorch", "onnx")) as here:
        here.run("sh", "-c", "mkdir -p /home/trainer/runs/run && chown -R trainer:trainer /home/trainer")
        here.drop_in("output", (UNITS / "drop-ins" / "output.conf").read_text())
        here.drop_in("quick", "[Service]\nWatchdogSec=6\nTimeoutAbortSec=5\nRestartSec=3\n")
        here.systemctl("start", "ckptd")
        save(here)
        wait_for(here, lambda value: stage(value, "onnx")["state"] == "running" and stage(value, "merge")["state"] == "succeeded")
        yield here


def stage(value: dict[str, Any], name: str) -> dict[str, Any]:
    """A stage of the only job; {"state": ""} while there is none."""
    found = [one for job in value["jobs"] for one in job["stages"] if one["name"] == name]
    return found[0] if found else {"state": ""}


def left_in_the_group(box: Booted) -> list[str]:
    """Pids in the service's control group and those below it."""
    return box.run("sh", "-c", f"find {GROUP} -name cgroup.procs -exec cat {{}} + 2>/dev/null", check=False).stdout.split()


def ends_whole(box: Booted, before: int) -> None:
    """Another process has taken over, the merge is not made again, and the export is whole."""
    value = wait_for(box, lambda one: ended(one) and one["daemon"]["running"], 280)
    assert value["daemon"]["pid"] != before
    (job,) = value["jobs"]
    assert (job["state"], job["artifacts"]) == ("succeeded", {"pytorch": "passed", "onnx": "passed"}), job
    assert stage(value, "merge")["attempts"] == 1, "what was finished is not made again"
    assert stage(value, "onnx")["state"] == "succeeded"
    assert not [name for name in box.run("ls", "-A", job["target"]).stdout.split() if name.startswith(".")]


def errors(box: Booted) -> str:
    return box.run("journalctl", "--unit", "ckptd", "-p", "err", "-o", "cat", "--no-pager").stdout


def test_one_that_no_longer_answers_is_ended_by_the_watchdog_and_the_export_goes_on(exporting: Booted) -> None:
    pid = exporting.status()["daemon"]["pid"]
    exporting.run("kill", "-STOP", str(pid))
    end = time.monotonic() + 60
    while exporting.systemctl("show", "ckptd", "--property=Result", "--value").stdout.strip() != "watchdog":  # till it is started again
        assert time.monotonic() < end, exporting.systemctl("status", "ckptd", check=False).stdout
        time.sleep(0.2)
    ends_whole(exporting, pid)


def test_a_killed_one_is_started_again_and_the_export_goes_on(exporting: Booted) -> None:
    pid = exporting.status()["daemon"]["pid"]
    exporting.systemctl("kill", "--signal=KILL", "--kill-whom=main", "ckptd")
    ends_whole(exporting, pid)


def test_a_stop_in_the_middle_of_a_stage_leaves_no_process_and_the_next_start_goes_on(exporting: Booted) -> None:
    pid = exporting.status()["daemon"]["pid"]
    begun = time.monotonic()
    exporting.systemctl("stop", "ckptd")
    assert time.monotonic() - begun < 60
    assert exporting.systemctl("show", "ckptd", "--property=Result", "--value").stdout.strip() == "success"
    assert left_in_the_group(exporting) == []
    value = exporting.status()
    assert not value["daemon"]["running"] and [job["activity"] for job in value["jobs"]] == ["stopped"]
    assert errors(exporting) == ""
    exporting.systemctl("start", "ckptd")
    ends_whole(exporting, pid)
    assert errors(exporting) == ""


def test_an_export_that_fails_is_an_error_in_the_journal_with_what_to_do(exporting: Booted) -> None:
    assert errors(exporting) == ""
    exporting.run("sh", "-c", "cp -r /srv/lab/checkpoint-4 /tmp/new && "
                  "sed -i '/base_model_name/s|: *\"[^\"]*\"|: \"nobody/knows\"|' /tmp/new/adapter_config.json && "
                  "mkdir /home/trainer/runs/other && mv /tmp/new /home/trainer/runs/other/checkpoint-4")  # fmt: skip
    value = wait_for(exporting, lambda one: len(one["jobs"]) == 2 and ended(one), 280)
    assert {job["run"]: job["state"] for job in value["jobs"]} == {"run": "succeeded", "other": "failed"}, value["jobs"]
    said = [json.loads(line) for line in errors(exporting).splitlines()]
    assert said and {one["level"] for one in said} == {"error"} and {one["run"] for one in said} == {"other"}
    assert any("Fix: " in one["message"] for one in said), said
