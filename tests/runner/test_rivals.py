"""Which processes are named as those that have a starved child's CPU time."""

from __future__ import annotations

import os
import pwd

import pytest

from daemon.system.processes import procfs, rivals
from daemon.system.processes.procfs import ProcessInfo
from daemon.system.processes.rivals import OURS, Rivals

ME, OTHER = 4_000_000, 4_000_100
"""Ids that no process of the box has."""
ROOT = pwd.getpwuid(0).pw_name


def process(name: str, user: int, parent: int, started: float, seconds: float) -> ProcessInfo:
    """A process that sleeps."""
    return ProcessInfo(name, user, parent, 1, "S", started, seconds)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[int, ProcessInfo]:
    """The processes of the box; this one is `ME`."""
    processes: dict[int, ProcessInfo] = {ME: process("ckptd", 0, 1, 1, 10.0), ME + 1: process("ckptd:merge", 0, ME, 2, 10.0)}
    monkeypatch.setattr(rivals, "snapshot", lambda most: dict(processes))
    monkeypatch.setattr(os, "getpid", lambda: ME)
    return processes


def use(table: dict[int, ProcessInfo], pid: int, seconds: float, name: str = "train") -> None:
    """Let a process use that many seconds more of CPU time; one that is not there yet begins with them."""
    before = table.get(pid, process(name, 0, 1, pid, 0.0))
    table[pid] = process(before.name, before.user, before.parent, before.started, before.seconds + seconds)


def test_the_processes_that_used_most_between_two_looks_are_named_those_of_a_name_together(table: dict[int, ProcessInfo]) -> None:
    for pid, name in ((OTHER, "train"), (OTHER + 1, "train"), (OTHER + 2, "cc1"), (OTHER + 3, "idle"), (OTHER + 4, "a"), (OTHER + 5, "b")):
        use(table, pid, 100.0, name)
    known = Rivals()
    known.look(1000.0, 0.0)
    assert known.seen == (), "what they used before says nothing"
    for pid, seconds in ((OTHER, 10.0), (OTHER + 1, 20.0), (OTHER + 2, 5.0), (OTHER + 3, 0.1), (OTHER + 4, 2.5), (OTHER + 5, 3.0)):
        use(table, pid, seconds)
    known.look(1005.0, 0.0)
    assert known.seen == (), "it is too early"
    known.look(1020.0, 0.0)
    assert [str(rival) for rival in known.seen] == [
        f"train (user {ROOT}, 2 processes, most by pid {OTHER + 1}) 150 %", f"cc1 (user {ROOT}, pid {OTHER + 2}) 25 %",
        f"b (user {ROOT}, pid {OTHER + 5}) 15 %",
    ]  # fmt: skip


def test_a_process_that_took_the_id_of_another_one_has_used_what_it_used_since_its_start(table: dict[int, ProcessInfo]) -> None:
    use(table, OTHER, 1000.0)
    known = Rivals()
    known.look(0.0, 0.0)
    table[OTHER] = process("new", 0, 1, 999_999, 4.0)
    known.look(20.0, 0.0)
    assert [(rival.name, rival.cores) for rival in known.seen] == [("new", 0.2)]


def test_other_stages_are_named_together_without_what_the_starved_ones_get(table: dict[int, ProcessInfo]) -> None:
    known = Rivals()
    known.look(0.0, 0.2)
    use(table, ME + 1, 20.0)
    known.look(20.0, 0.2)
    assert [str(rival) for rival in known.seen] == [f"{OURS} 80 %"]
    known.look(40.0, 0.2)
    assert known.seen == (), "they used nothing"


def test_nothing_is_said_by_a_look_of_long_ago(table: dict[int, ProcessInfo]) -> None:
    known = Rivals()
    known.look(0.0, 0.0)
    use(table, OTHER, 1000.0)
    known.look(1000.0, 0.0)
    assert known.seen == ()
    use(table, OTHER, 10.0)
    known.look(1020.0, 0.0)
    assert len(known.seen) == 1
    known.forget()
    assert known.seen == ()


def test_a_process_is_read_from_proc() -> None:
    used = procfs.entry(os.getpid())
    assert used is not None and used.parent == os.getppid() and used.user == os.geteuid() and used.seconds > 0 and used.started > 0
    assert procfs.entry(2**22 + 1) is None
