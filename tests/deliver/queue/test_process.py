"""Processes that do not end as they should: none holds up the daemon, and each says what became of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.delivering.orders import End, Order
from daemon.delivering import process
from tests.deliver.queue.yard import Aim, Yard, ended, run_until, save, start
from tests.runner.conftest import ROOT

Script = Callable[..., Aim]


def failed_once(yard: Yard, aim: Aim) -> str:
    """The code and the cause of the first attempt's failure."""
    job = yard.end(100)
    with ended(yard.queue(aim)) as queue:
        run_until(queue, lambda: yard.row(job).failures == 1)
    row = yard.row(job)
    assert row.state == "waiting" and row.retry_at is not None and row.fault is not None
    return f"{row.fault.code}: {row.fault.cause}"


def test_a_process_that_exits_without_a_word(yard: Yard, script: Script) -> None:
    assert failed_once(yard, script({"do": "exit", "code": 3})) == "crashed: its process ended with exit code 3 and without a word"


def test_a_process_that_cannot_use_its_order(yard: Yard, script: Script) -> None:
    assert failed_once(yard, script({"do": "exit", "code": 65})) == "bad-result: its process could not use the order"


def test_a_process_that_the_kernel_kills(yard: Yard, script: Script) -> None:
    assert failed_once(yard, script({"do": "kill"})) == "killed: its process was killed by SIGKILL, which ckptd did not send"


def test_a_process_that_says_nothing_any_more_is_ended(yard: Yard, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENT_SECONDS", 3.0)
    assert failed_once(yard, script({"do": "hang"})).startswith("hung: its process said nothing for")


def test_a_process_that_takes_too_much_memory_is_ended(yard: Yard, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_MEMORY", 150 << 20)
    assert failed_once(yard, script({"do": "memory", "mebibytes": 200})).startswith("memory-limit: its process held")


def test_a_process_that_floods_its_report_is_ended(yard: Yard, script: Script) -> None:
    assert failed_once(yard, script({"do": "flood", "raw": True})).startswith("unexpected: its process writes without end")


def test_the_log_of_a_process_stays_small_whatever_it_writes(yard: Yard, script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "SILENT_SECONDS", 5.0)
    failed_once(yard, script({"do": "flood"}))
    (log,) = (yard.state / "deliveries").glob("*/*.log")
    assert 0 < log.stat().st_size <= 2 * process.LOG_BYTES


def test_nothing_of_a_delivery_lives_longer_than_its_daemon(script: Script, tmp_path: Path) -> None:
    with Yard(tmp_path) as yard:
        yard.end(100)
    save(tmp_path, script({"do": "hang"}))
    daemon = start(tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "scripted" / "attempts").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    children = [int(pid) for pid in Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split()]
    daemon.send_signal(signal.SIGKILL)
    daemon.wait()
    assert children
    while any(_lives(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False


def test_a_library_that_is_missing_is_named_with_what_installs_it_and_hides_no_kind(tmp_path: Path) -> None:
    for name in ("urllib3", "obstore"):
        (tmp_path / f"{name}.py").write_text("raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for url, package in (("s3://models", "urllib3"), ("gs://models", "obstore")):
        order = Order(kind="store", entry="handlers.deliver.store.target:Store", name="far", action="look", options={"url": url})
        asked = [sys.executable, "-m", "handlers.deliver"]
        done = subprocess.run(asked, input=order.model_dump_json(), env=environment, capture_output=True, text=True, check=True)
        end = End.model_validate_json(done.stdout.splitlines()[-1])
        assert end.permanent and end.fault is not None and end.fault.code == "delivery-library", end
        assert f"the package {package} is not installed" in end.fault.cause and "pip install 'ckptd[deliver]'" in end.fault.remedy
    code = "from daemon.contract.delivering.kinds import kinds; print(kinds().problems)"
    assert subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stdout == "()\n"
