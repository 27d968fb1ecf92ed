"""How the demo ends: in order, whatever ends it; and the whole of it, small, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from daemon.cli import demo
from daemon.cli.demo import processes as demo_children


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts `daemon.cli.demo.main(…)` in a process of its own whose temporary folders lie in `tmp_path`."""
    started: list[subprocess.Popen[str]] = []

    def start(call: str, first: str = "") -> subprocess.Popen[str]:
        code = f"{first}\nimport sys; from daemon.cli.demo import main; sys.exit(main({call}))"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_children(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Block until the demo has started a process; give all its processes."""
    deadline = time.monotonic() + 60
    while not (children := psutil.Process(process.pid).children(recursive=True)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children
    return children


def all_gone(children: list[psutil.Process], seconds: float = 10) -> bool:
    _, alive = psutil.wait_procs(children, timeout=seconds)
    return not [child for child in alive if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes_and_removes_the_temporary_folder(number: signal.Signals, play, tmp_path: Path) -> None:
    process = play("None")
    children = wait_for_children(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert f"Ended by {number.name}" in out and "Traceback" not in err
    assert all_gone(children)
    assert list(tmp_path.iterdir()) == []


LOSES_EXCEPTIONS = """
import time
from types import SimpleNamespace
from daemon.cli import demo

class Pause:
    def __init__(self, seconds): self.seconds = seconds
    def __del__(self): time.sleep(self.seconds)

demo.time = SimpleNamespace(sleep=Pause, monotonic=time.monotonic)
"""


def test_a_signal_whose_exception_python_drops_ends_it_too(play, tmp_path: Path) -> None:
    process = play("None", first=LOSES_EXCEPTIONS)
    children = wait_for_children(process)
    time.sleep(1)  # in a destructor, nearly all the time
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and "Ended by SIGTERM" in out, err
    assert all_gone(children) and list(tmp_path.iterdir()) == []


def test_no_process_outlives_a_demo_that_is_killed(play) -> None:
    process = play("None")
    children = wait_for_children(process)
    process.kill()
    process.communicate(timeout=60)
    assert all_gone(children)


def test_a_folder_that_holds_something_is_refused_in_one_sentence_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").touch()
    assert demo.main(tmp_path) == 2
    err = capsys.readouterr().err
    assert "not an empty folder" in err and str(tmp_path) in err and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_training_that_fails_ends_the_demo_with_a_sentence_and_exit_code_1(play, tmp_path: Path) -> None:
    process = play("None, 1, -5.0")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "Could not run the demo's process 'base'" in err and "is not a positive time" in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_lines_of_a_child_are_taken_once_and_only_when_whole(tmp_path: Path) -> None:
    lines = tmp_path / "child.jsonl"
    lines.write_bytes(b'{"event": "one"}\nnot json\n{"event": "tw')
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    child = demo_children.Child("child", process, lines, tmp_path / "log")
    assert child.events() == [{"event": "one"}]
    assert child.events() == []
    with open(lines, "ab") as stream:
        stream.write(b'o"}\n')
    assert child.events() == [{"event": "two"}]
    assert child.end(10) == 0


def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "stubborn.py").write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('{}', flush=True)\ntime.sleep(600)\n"
    )
    child = demo_children.start("stubborn", ["stubborn"], tmp_path)
    deadline = time.monotonic() + 20
    while not child.events() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert child.end(0.3) == -signal.SIGKILL


# R0
@pytest.mark.slow
def test_the_whole_demo_makes_verified_artifacts_and_removes_its_folder(play, tmp_path: Path) -> None:
    process = play("None, 1, 10.0")
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, out[-4000:] + err[-2000:]
    assert out.count("passed") >= 6
    assert "checkpoint-50 succeeded" in out
    assert "ended with exit code 0" in out
    assert list(tmp_path.iterdir()) == []
