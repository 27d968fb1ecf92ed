"""A command that is told: it gets the message, little else, a bounded time, and nothing that it starts outlives it."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.journal.journal import Journal
from daemon.journal.rows import Message, Notice
from daemon.publishing.telling import notifier as notify
from daemon.publishing.telling.sender import Sender
from tests.notify.conftest import WAIT, Notify, Targets, deliver

Script = Callable[[str], list[str]]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Makes a command of Python code, which has `here`, the test's folder, `os`, `sys` and `time`."""

    def make(code: str) -> list[str]:
        file = tmp_path / "hook.py"
        file.write_text(f"import os, sys, time, signal, subprocess\nhere = {str(tmp_path)!r}\n{code}")
        return [sys.executable, "-S", "-E", str(file)]

    return make


def tell(journal: Journal, notifier: notify.Notifier) -> tuple[str, str | None]:
    """State of the delivery and the last error after one attempt."""
    journal.outbox.announce("title", Notice("failed", "title", "text"))
    deliver(notifier)
    return state(journal)


def state(journal: Journal) -> tuple[str, str | None]:
    (row,) = journal.database.read("SELECT state, last_error FROM delivery JOIN target ON digest = target")
    return row[0], row[1]


def alive(pid: int) -> bool:
    try:
        return b"\nState:\tZ" not in Path(f"/proc/{pid}/status").read_bytes()
    except FileNotFoundError:
        return False


def test_a_command_gets_the_message_and_no_secret_of_the_environment(
    journal: Journal, targets: Targets, script: Script, notifier_of: Notify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "S3CRET")
    command = script(
        "open(here + '/got', 'w').write(sys.stdin.read())\n"
        "open(here + '/env', 'w').write('\\n'.join(f'{k}={v}' for k, v in os.environ.items()))"
    )
    assert tell(journal, notifier_of(targets({"name": "hook", "command": command})))[0] == "delivered"
    got = json.loads((tmp_path / "got").read_text())
    assert (got["type"], got["data"]["title"], got["data"]["text"]) == ("failed", "title", "text")
    names = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert names["CKPTD_EVENT"] == "failed" and names["CKPTD_MESSAGE"].startswith("msg_")
    allowed = {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "CKPTD_EVENT", "CKPTD_MESSAGE"}
    assert {name for name in names if not name.startswith("LC_")} <= allowed


@pytest.mark.parametrize(("code", "attempts"), [(3, 60), (65, 3)])
def test_an_exit_code_says_whether_to_try_again(
    journal: Journal, targets: Targets, script: Script, notifier_of: Notify, code: int, attempts: int
) -> None:
    clock = [time.time()]
    notifier = notifier_of(targets({"name": "hook", "command": script(f"sys.exit({code})")}), clock=lambda: clock[0])
    assert tell(journal, notifier) == ("pending", f"the command ended with exit code {code}")
    for _ in range(4):
        clock[0] += 60.0
        deliver(notifier)
    assert state(journal)[0] == ("abandoned" if attempts == 3 else "pending")


def test_a_command_that_ignores_its_end_and_forks_is_ended_with_all_that_it_started(
    journal: Journal, targets: Targets, script: Script, notifier_of: Notify, tmp_path: Path
) -> None:
    command = script("""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(name):
    with open(f'{here}/{name}', 'w') as file:
        file.write(str(os.getpid()))
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    note('escaped')
    time.sleep(600)
note('first')
time.sleep(600)
""")
    notifier = notifier_of(targets({"name": "hook", "command": command, "limit_seconds": 2.0}))
    began = time.monotonic()
    assert tell(journal, notifier) == ("pending", "the command did not end within 2 s, and was ended")
    assert time.monotonic() - began < WAIT
    assert [alive(int((tmp_path / name).read_text())) for name in ("first", "escaped")] == [False, False]


@pytest.mark.parametrize("others", ["", ", env={}"])
def test_what_a_command_leaves_behind_ends_with_it(
    journal: Journal, targets: Targets, script: Script, notifier_of: Notify, tmp_path: Path, others: str
) -> None:
    command = script(
        f"left = subprocess.Popen(['sleep', '600'], start_new_session=True{others})\nopen(here + '/left', 'w').write(str(left.pid))"
    )
    assert tell(journal, notifier_of(targets({"name": "hook", "command": command})))[0] == "delivered"
    assert not Path("/proc", (tmp_path / "left").read_text()).exists(), "nor is it left as a zombie"


def test_the_end_of_a_daemon_ends_a_command_with_all_that_it_started(targets: Targets, script: Script, tmp_path: Path) -> None:
    code = "left = subprocess.Popen(['sleep', '600'])\nopen(here + '/new', 'w').write(f'{left.pid} {os.getpid()}')\n"
    settings = targets({"name": "hook", "command": script(code + "os.rename(here + '/new', here + '/pids')\nleft.wait()")})
    sender, end = Sender(), time.monotonic() + WAIT
    sender.begin(settings.receivers[0], Message(1, "job", "failed", "title", "body", 0, key="msg_1"))
    while not (tmp_path / "pids").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    sender.end()
    assert [alive(int(pid)) for pid in (tmp_path / "pids").read_text().split()] == [False, False]


def test_a_command_that_hangs_delays_no_other(
    journal: Journal, targets: Targets, script: Script, notifier_of: Notify, tmp_path: Path
) -> None:
    quick = tmp_path / "quick.sh"
    quick.write_text(f"#!/bin/sh\ncat >> {tmp_path}/quick\necho >> {tmp_path}/quick\n")
    quick.chmod(0o755)
    tables = {"name": "slow", "command": script("time.sleep(600)"), "limit_seconds": 50.0}, {"name": "quick", "command": [str(quick)]}
    notifier = notifier_of(targets(*tables))
    for number in range(5):
        journal.outbox.announce(f"{number}", Notice("failed", f"{number}", "text"))
    end = time.monotonic() + WAIT
    while journal.database.read("SELECT count(*) FROM delivery WHERE state = 'delivered'")[0][0] < 5:
        assert time.monotonic() < end
        notifier.tick()
        notifier.wait(0.5)
    told = [json.loads(line)["data"]["title"] for line in (tmp_path / "quick").read_text().splitlines()]
    assert told == ["0", "1", "2", "3", "4"]
    for flight in notifier._flights.values():
        flight.attempt.end()


def test_a_program_that_is_not_there_is_said_and_tried_again(journal: Journal, targets: Targets, notifier_of: Notify) -> None:
    notifier = notifier_of(targets({"name": "hook", "command": ["/no/such/program"]}))
    assert tell(journal, notifier) == ("pending", f"the command could not be started: {os.strerror(2)}")
