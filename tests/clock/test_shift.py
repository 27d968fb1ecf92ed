"""The shifted clock itself: every way in which Python asks for the wall clock follows it, the monotonic clock never."""

from __future__ import annotations

import datetime as dates
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clock.shift import Shift

PROGRAM = """
import sys, time, json, datetime
from datetime import UTC, datetime as when
from apscheduler.util import datetime as apscheduler_when
def look():
    return {
        "time": time.time(), "ns": time.time_ns() / 1e9, "gmtime": __import__("calendar").timegm(time.gmtime()),
        "now": when.now(UTC).timestamp(), "local": when.now().timestamp(), "module": datetime.datetime.now().timestamp(),
        "utcnow": when.utcnow().replace(tzinfo=UTC).timestamp(), "today": when.today().timestamp(),
        "apscheduler": apscheduler_when.now(UTC).timestamp(), "monotonic": time.monotonic(),
        "year": int(time.strftime("%Y")),
    }
def sound():
    one = when(2020, 1, 2, tzinfo=UTC)
    return (isinstance(when.now(), when) and isinstance(one, datetime.datetime) and isinstance(one, datetime.date)
            and when.fromisoformat(one.isoformat()) == one and when.fromtimestamp(one.timestamp(), UTC) == one
            and issubclass(type(one), when) and when.strptime("2020", "%Y").year == 2020)
for line in sys.stdin:
    print(json.dumps([look(), sound()]), flush=True)
"""
YEAR = 366 * 86400.0


@pytest.mark.parametrize("inner", [False, True], ids=["child", "grandchild"])
def test_all_wall_clocks_jump_while_the_process_runs_and_the_monotonic_one_does_not(tmp_path: Path, inner: bool) -> None:
    shift = Shift(tmp_path / "shift")
    command = [sys.executable, "-c", PROGRAM]
    if inner:
        command = [sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"]
    with subprocess.Popen(command, env=shift.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for seconds in (0.0, 3600.0, -3600.0, YEAR, 0.0):
            shift.set(seconds)
            before, started = time.time(), time.monotonic()
            process.stdin.write("\n")
            process.stdin.flush()
            (seen, sound) = json.loads(process.stdout.readline())
            took = time.monotonic() - started
            assert started <= seen.pop("monotonic") <= started + took
            assert seen.pop("year") == dates.datetime.fromtimestamp(before + seconds).year
            assert all(before + seconds - 1.1 <= value <= before + seconds + took + 0.1 for value in seen.values()), (seconds, seen)
            assert sound
        process.stdin.close()


def test_a_process_without_the_environment_keeps_the_true_time(tmp_path: Path) -> None:
    Shift(tmp_path / "shift").set(YEAR)
    told = subprocess.run([sys.executable, "-c", "import time; print(time.time())"], capture_output=True, text=True, check=True).stdout
    assert abs(float(told) - time.time()) < 60
