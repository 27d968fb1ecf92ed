"""A run of the tests that hangs ends, with the names of the tests and their stacks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CATCHES = "while True:\n        try:\n            time.sleep(600)\n        except BaseException:\n            pass"
STOPS = "os.kill(os.getpid(), signal.SIGSTOP)"
CONFTEST = f"""
import sys
sys.path.insert(0, {str(REPOSITORY)!r})
from tests import hanging
hanging.LATER_SECONDS, hanging.SILENCE_SECONDS = 1.0, 15.0
pytest_configure = hanging.pytest_configure
"""


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        (CATCHES, 1, ["in test_of_somebody", "crashed while running 'test_it.py::test_of_somebody'"]),
        (STOPS, 2, ["test_it.py::test_of_somebody since ", "stopped: "]),
    ],
)
def test_a_run_that_hangs_ends_and_says_where(body: str, code: int, said: list[str], tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(
        f"import os, pytest, signal, time\n@pytest.mark.timeout(1)\ndef test_of_somebody():\n    {body}\ndef test_after():\n    pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-n", "1", "-m", "not slow", "--max-worker-restart", "0", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=250)
    assert [text for text in said if text not in done.stdout] == []
    assert done.returncode == code
