"""What the daemon keeps of memory that it needed for a moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from daemon.config.settings import LimitSettings
from daemon.running.attempts import job_file
from daemon.running.attempts.job_file import LEAST_MEMORY, OVER_ESTIMATE, SLACK, bounds_of
from daemon.system import box

ROOT = Path(__file__).parents[2]
KEPT = """
import sys, threading
import psutil
from daemon.system.processes.allocator import give_back_early
if sys.argv[1] == "told":
    assert give_back_early()
before = psutil.Process().memory_info().rss

def work():
    for _ in range(3):
        block = [bytes(4 << 20), bytes(4 << 20)]
        del block

for _ in range(4):
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
print(psutil.Process().memory_info().rss - before)
"""
HASHED = """
import sys
from pathlib import Path
import tracemalloc
from daemon.contract.disk.files import sha256_file
tracemalloc.start()
sha256_file(Path(sys.argv[1]))
print(tracemalloc.get_traced_memory()[1])
"""


def figure(script: str, argument: str) -> int:
    done = subprocess.run([sys.executable, "-c", script, argument], capture_output=True, text=True, check=True, cwd=ROOT)
    return int(done.stdout)


def test_what_several_threads_needed_for_a_moment_is_given_back() -> None:
    told = figure(KEPT, "told")
    assert told < 6 << 20, f"{told >> 20} MiB are kept"


def test_a_file_is_hashed_in_a_small_buffer_whatever_its_size(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as stream:
        stream.truncate(64 << 20)
    assert figure(HASHED, str(tmp_path / "large")) < 1 << 20


@pytest.mark.parametrize("library", ["musl", ""])
def test_another_c_library_is_left_as_it_is(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from daemon.system.processes import allocator

    monkeypatch.setattr(allocator.platform, "libc_ver", lambda: (library, ""))
    assert not allocator.give_back_early()


@pytest.mark.parametrize("fraction", [1e-9, 1e-4, 1.0])
def test_a_child_may_load_its_modules_however_little_is_allowed(fraction: float) -> None:
    """What is too large for limits.memory_fraction does not start; the report that says so must still be written."""
    allowed = bounds_of(LimitSettings(memory_fraction=fraction)).memory
    assert allowed == max(LEAST_MEMORY, int(box.memory()[0] * fraction))


def test_a_child_may_take_several_times_its_estimate_and_no_more_than_is_allowed_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_file, "memory", lambda: (64 * SLACK, 64 * SLACK))
    bounds = bounds_of(LimitSettings(), SLACK)
    assert (bounds.memory, bounds.expected) == ((OVER_ESTIMATE + 1) * SLACK, SLACK)
    bounds = bounds_of(LimitSettings(memory_fraction=0.5), 20 * SLACK)
    assert (bounds.memory, bounds.expected) == (32 * SLACK, 0)


def test_the_reports_modules_need_less_than_every_child_may_use() -> None:
    script = "import psutil, handlers.__main__, handlers.report.stage; print(psutil.Process().memory_info().rss)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert int(done.stdout) < LEAST_MEMORY // 2
