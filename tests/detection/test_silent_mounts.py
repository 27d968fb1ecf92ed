"""A mount that does not answer, as of a dead NFS server, holds up its own checkpoints and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.contract.disk import answers
from daemon.contract.disk.answers import ask, silent_for
from daemon.watching.groups import groups_of
from tests.faults.services import FaultyService

ROOT = Path(__file__).parents[2]


class MountedService(FaultyService):
    """A daemon that watches a file system in user space beside its other root."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.mount = folder / "mounted"
        self.mount.mkdir()
        self.server_pid = folder / "server.pid"
        text = self.config.read_text()
        self.config.write_text(text.replace(f'roots = ["{self.root}"]', f'roots = ["{self.root}", "{self.mount}"]'))

    def start_mounted(self, *, stopped: bool = False) -> None:
        """Start it in a mount namespace of its own, in which the server runs too; `stopped`: which does not answer from the start."""
        unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
        script = (
            f'cd "{ROOT}"; coproc "{sys.executable}" -m tests.detection.fuse_server "{self.mount}"; echo $COPROC_PID > "{self.server_pid}";'
            f' read -u "${{COPROC[0]}}" said; {"kill -STOP $COPROC_PID;" if stopped else ""} exec "$@"'
        )
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*unshare, "bash", "-c", script, "daemon", *self._command()], stdout=log, stderr=log,
                env={**os.environ, **self.environment},
            )  # fmt: skip

    def tell_server(self, number: signal.Signals) -> None:
        os.kill(int(self.server_pid.read_text()), number)

    def silent(self) -> list[str]:
        return [root["path"] for root in self.status()["roots"] if root["silent_seconds"] is not None]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[MountedService]:
    one = MountedService(tmp_path)
    yield one
    if one.server_pid.exists():
        one.tell_server(signal.SIGKILL)  # lets everybody go who waits for it
    if one.process is not None and one.process.poll() is None:
        one.kill()


@pytest.mark.slow
@pytest.mark.parametrize("from_the_start", [False, True])
def test_a_server_that_stops_holds_up_no_other_root_and_is_said(
    service: MountedService, pico_checkpoint: Path, from_the_start: bool
) -> None:  # R6.2
    service.start_mounted(stopped=from_the_start)
    service.wait_for(lambda v: v["daemon"]["running"] and bool(v["roots"]), 60)
    if not from_the_start:
        service.wait_for(lambda v: all(root["exists"] for root in v["roots"]), 20)
        service.tell_server(signal.SIGSTOP)
    service.wait_for(lambda _: service.silent() == [str(service.mount)], 60)
    assert f"The file system of the watched root {service.mount} does not answer" in service.log()
    service.add(pico_checkpoint)
    assert [job["state"] for job in service.wait_ended(1, 90)] == ["succeeded"]
    assert service.status()["daemon"]["healthy"]
    assert service.run_verb("status") == 0
    said = " ".join(service.said.split())  # a long line is wrapped
    assert f"{service.mount} (poll, its file system has not answered" in said
    service.tell_server(signal.SIGCONT)
    service.wait_for(lambda _: service.silent() == [], 60)
    assert "answers again" in service.log() and "Traceback" not in service.log()
    service.tell_server(signal.SIGSTOP)
    service.wait_for(lambda _: service.silent() == [str(service.mount)], 60)
    assert service.process is not None
    began = time.monotonic()
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(30) == 0, "it ends in order though a thread of it waits"
    assert time.monotonic() - began < 20


def test_roots_are_grouped_by_mount_and_a_link_counts_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    groups = groups_of((tmp_path / "runs", Path("/proc/self"), tmp_path / "link", tmp_path / "not there"))
    assert [len(group) for group in groups] == [3, 1]
    assert groups[1] == (Path("/proc/self"),)


def test_a_question_that_gets_no_answer_is_left_and_not_put_twice() -> None:
    answered, asked = threading.Event(), []

    def question() -> str:
        asked.append(1)
        answered.wait()
        return "late"

    with pytest.raises(TimeoutError, match=r"has not answered for 0\.05 s"):
        ask("a mount", question, 0.05)
    with pytest.raises(TimeoutError, match="earlier question"):
        ask("a mount", question, 0.1)
    since = silent_for("a mount")
    assert asked == [1] and since is not None and since >= 0.05
    assert ask("another", lambda: "at once", 5) == "at once"
    answered.set()
    end = time.monotonic() + 10
    while silent_for("a mount") is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert ask("a mount", lambda: "again", 5) == "again"
    with pytest.raises(PermissionError):
        ask("a mount", lambda: (_ for _ in ()).throw(PermissionError("no")), 5)


def test_questions_that_are_put_at_the_same_time_are_answered_one_after_the_other() -> None:
    first, told = threading.Event(), list[str]()

    def slow() -> str:
        first.wait()
        return "slow"

    threads = [threading.Thread(target=lambda: told.append(ask("a root", slow, 30)))]
    threads[0].start()
    while silent_for("a root") is None:
        time.sleep(0.001)
    threads.append(threading.Thread(target=lambda: told.append(ask("a root", lambda: "quick", 30))))
    threads[1].start()
    first.set()
    for thread in threads:
        thread.join(30)
    assert sorted(told) == ["quick", "slow"]
    assert silent_for("a root") is None and not answers._asked, "nothing is remembered of what was answered"
