"""A disk that fills up in the middle of an export: a sentence, nothing half, and the same command goes on once there is room."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.errors import Fault
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.messages import Outcome, StageResult
from daemon.running.rules.retry import NOT_ITS_OWN, decide
from tests.journal.conftest import enter
from tests.runner.desk import Desks

SCRIPT = """
set -u
mount -t tmpfs -o size=400m tmpfs "$OUT" || exit 99
export CKPTD_LIMITS__DISK_RESERVE=0 CKPTD_EXPORT__VARIANTS=pytorch CKPTD_VALIDATE__SAMPLES=1 CKPTD_VALIDATE__SPEED_TOKENS=0
( until find "$OUT" -name pytorch.1 | grep -q .; do sleep 0.005; done
  mount -o "remount,size=$(df -k --output=used "$OUT" | tail -n 1 | tr -d ' ')k" "$OUT" ) &
"$PYTHON" -m daemon export "$CHECKPOINT" --output "$OUT"; echo "first: $?"
kill $! 2> /dev/null; wait
find "$OUT" -path '*/.staging' -prune -o -type f -print; echo "listed"
mount -o remount,size=400m "$OUT"
"$PYTHON" -m daemon export "$CHECKPOINT" --output "$OUT"; echo "second: $?"
find "$OUT" -name MANIFEST.json
"""


@pytest.mark.slow
def test_a_full_disk_is_temporary_and_the_export_goes_on_when_there_is_room(tmp_path: Path, pico_checkpoint: Path) -> None:  # R6.2 R6.5
    out = tmp_path / "out"
    out.mkdir()
    environment = {
        **os.environ,
        "OUT": str(out),
        "PYTHON": sys.executable,
        "CHECKPOINT": str(pico_checkpoint),
        "XDG_STATE_HOME": str(tmp_path),
    }
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    answer = subprocess.run(
        [*unshare, "bash", "-c", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    said = answer.stdout + answer.stderr
    assert "first: 75" in answer.stdout, said
    assert "To fix it: free space" in answer.stderr and "Traceback" not in answer.stderr, said
    before, _, after = answer.stdout.partition("listed")
    assert before.strip().endswith("first: 75"), f"something half was published: {before}"
    assert "second: 0" in after, said
    assert str(out / "pico-run" / "step-4" / "MANIFEST.json") in after
    merges = [line for line in answer.stderr.splitlines() if line == "merge: running"]
    assert len(merges) == 1, "the finished merge must not be repeated"


@pytest.mark.parametrize("code", sorted(NOT_ITS_OWN))
def test_a_full_disk_never_counts_against_a_stage(code: FaultCode) -> None:
    fault = Fault(code=code, operation="o", cause="c", remedy="r")
    result = StageResult(outcome=Outcome.RETRYABLE, fault=fault)
    decision = decide(result, 99, 3, 10.0, random.Random(1))
    assert decision.state == "waiting" and not decision.counted and decision.delay is not None
    other = decide(result.model_copy(update={"fault": fault.model_copy(update={"code": FaultCode.CRASHED})}), 99, 3, 10.0, random.Random(1))
    assert other.state == "failed" and other.counted


def test_a_stage_that_met_a_full_disk_goes_on_at_once_when_there_is_room(make_desk: Desks) -> None:
    desk = make_desk(limits={"attempts": 1, "retry_seconds": 3600})
    job = desk.add("run", 4)
    full = Fault(code=FaultCode.DISK_FULL, operation="write", cause="No space left", remedy="free some")
    good = desk.script
    desk.script = lambda context: StageResult(outcome=Outcome.RETRYABLE, fault=full, retry_after=3600.0)
    noted: list[Any] = []
    desk.runner.waits.refused = noted.append
    desk.tick(5)
    assert desk.started == ["run-4 merge"] and desk.state(job) == "running" and full.code in [fault.code for fault in noted if fault]
    desk.script = good
    desk.tick(3)
    assert len(desk.started) == 1, "it waits"
    desk.runner.room_again()
    desk.tick(40)
    assert desk.state(job) == "succeeded" and desk.journal.stages.of(job)["merge"].failures == 0


def test_what_waits_for_another_reason_is_not_hastened(make_desk: Desks) -> None:
    desk = make_desk()
    enter(desk.journal)
    desk.journal.jobs.start("job", None)
    for stage, code in (("merge", FaultCode.DISK_FULL), ("pytorch", FaultCode.CRASHED)):
        fault = Fault(code=code, operation="o", cause="c", remedy="r").model_dump_json()
        desk.journal.database.write("test", lambda c, s=stage, f=fault: c.execute(
            "UPDATE stage SET retry_at = ?2, retry_delay = 3600, fault = ?1 WHERE name = ?3", (f, time.time() + 3000, s)))  # fmt: skip
    desk.journal.stages.hasten([FaultCode.DISK_FULL])
    assert {name: row.due(time.time()) for name, row in desk.journal.stages.of("job").items() if name in ("merge", "pytorch")} == {
        "merge": True, "pytorch": False,
    }  # fmt: skip
