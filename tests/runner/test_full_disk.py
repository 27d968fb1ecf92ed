"""A disk that fills up in the middle of an export: a sentence, nothing half, and the same command goes on once there is room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
