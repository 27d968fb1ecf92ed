"""Control groups and /proc: what fences an attempt's processes in."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemon.running.workers import cgroup
from daemon.running.workers.cgroup import Group
from daemon.system.processes import procfs
from tests.workers.helpers import HAS_GROUPS, UNIFIED

needs_groups = pytest.mark.skipif(not HAS_GROUPS, reason="needs a writable cgroup2 file system")


def eventually(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def group() -> Iterator[Group]:
    """A real group with two processes, one of them in a group of its own below."""
    assert UNIFIED is not None
    group = cgroup.make(UNIFIED, "case")
    assert group is not None
    (group.path / "below").mkdir()
    enter = ["sh", "-c", 'echo 0 >"$0/cgroup.procs"; exec sleep 600']
    with subprocess.Popen([*enter, str(group.path)]) as first, subprocess.Popen([*enter, str(group.path / "below")]) as second:
        try:
            assert eventually(lambda: group.processes() == {first.pid, second.pid})
            yield group
        finally:
            for process in (first, second):
                process.kill()
    eventually(group.remove)


@needs_groups
def test_a_group_knows_and_kills_all_of_its_processes(group: Group) -> None:
    assert not group.remove(), "a group that holds processes stays"
    assert group.kill()
    assert eventually(lambda: not group.processes())
    assert eventually(group.remove)


@needs_groups
def test_without_the_memory_controller_a_group_bounds_nothing_and_says_so(group: Group) -> None:
    before = sorted(os.listdir(group.path))
    if "memory" in (group.path / "cgroup.controllers").read_text().split():
        assert group.limit(1 << 30, 100)
        return
    assert not group.limit(1 << 30, 100)
    assert group.memory() is None
    assert group.events() == {"forks": 0}
    assert sorted(os.listdir(group.path)) == before


@needs_groups
def test_groups_of_a_daemon_that_is_no_more_are_swept_and_others_stay(tmp_path: Path) -> None:  # R6.5
    assert UNIFIED is not None
    dead = subprocess.Popen(["true"])
    dead.wait()
    gone, ours = UNIFIED / f"ckptd-{dead.pid}-abc", cgroup.make(UNIFIED, "stays")
    gone.mkdir()
    assert ours is not None
    with subprocess.Popen(["sh", "-c", f'echo 0 >"{gone}/cgroup.procs"; exec sleep 600']) as process:
        try:
            assert eventually(lambda: Group(gone).processes() == {process.pid})
            swept = cgroup.sweep(UNIFIED)
            assert gone.name in swept
            assert ours.path.name not in swept
            assert process.wait(30) == -signal.SIGKILL
            assert not gone.exists()
            assert ours.path.exists()
        finally:
            process.kill()
            ours.remove()
            with contextlib.suppress(OSError):
                gone.rmdir()


def made_group(path: Path, **files: str) -> Group:
    """A folder that looks like a group whose controllers are all there."""
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name.replace("__", ".")).write_text(text)
    return Group(path)


def test_limits_are_written_where_the_controllers_are(tmp_path: Path) -> None:
    group = made_group(tmp_path / "g", memory__max="max", memory__oom__group="0", pids__max="max")
    assert group.limit(123456, 99)
    assert (group.path / "memory.max").read_text() == "123456"
    assert (group.path / "memory.oom.group").read_text().startswith("1")
    assert (group.path / "pids.max").read_text().startswith("99")
    assert not group.limit(0, 99), "no limit was asked for"


def test_memory_of_a_group_leaves_the_page_cache_out(tmp_path: Path) -> None:
    group = made_group(tmp_path / "g", memory__stat="anon 1000\nfile 999999\nshmem 200\n", memory__swap__current="30\n")
    assert group.memory() == 1230


def test_events_of_a_group_tell_its_own_limit_from_the_boxs(tmp_path: Path) -> None:
    group = made_group(tmp_path / "g", memory__events="low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n", pids__events="max 7\n")
    assert {name: group.events()[name] for name in ("oom", "oom_kill", "forks")} == {"oom": 1, "oom_kill": 2, "forks": 7}


def delegated(tmp_path: Path, own: str, mount_root: str = "/") -> Path | None:
    """What `cgroup.delegated` makes of a process's own group below a made mount."""
    (tmp_path / "cgroup").write_text(f"4:memory:/elsewhere\n0::{own}\n")
    (tmp_path / "mountinfo").write_text(f"41 31 0:38 {mount_root} {tmp_path}/top rw,relatime - cgroup2 cgroup2 rw\n")
    return cgroup.delegated(tmp_path / "cgroup", tmp_path / "mountinfo")


def test_a_group_is_used_only_when_it_was_handed_over(tmp_path: Path) -> None:
    path = tmp_path / "top/system.slice/ckptd.service"
    made_group(path, cgroup__procs="")
    assert delegated(tmp_path, "/system.slice/ckptd.service") is None
    os.setxattr(path, "user.delegate", b"1")
    assert delegated(tmp_path, "/system.slice/ckptd.service") == path
    assert delegated(tmp_path, "/container/system.slice/ckptd.service", "/container") == path
    assert delegated(tmp_path, "/outside", "/container") is None
    assert delegated(tmp_path, "/system.slice/other.service") is None


def test_without_version_2_there_is_no_group(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("")
    assert cgroup.delegated(tmp_path / "empty", Path("/proc/self/mountinfo")) is None
    assert cgroup.delegated(tmp_path / "missing", tmp_path / "missing") is None


@needs_groups
def test_the_root_of_all_groups_is_not_ours() -> None:
    assert UNIFIED is not None
    if not (UNIFIED / "cgroup.type").exists():
        assert not cgroup._is_ours(UNIFIED)


def test_controllers_are_handed_down_once(tmp_path: Path) -> None:
    top = made_group(tmp_path / "top", cgroup__controllers="cpu memory pids", cgroup__subtree_control="memory").path
    cgroup.enable(top)
    assert (top / "cgroup.subtree_control").read_text() == "+pids"
    assert [path.name for path in top.iterdir() if path.is_dir()] == []


def test_a_process_is_named_by_its_start_after_boot() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        known = procfs.entry(process.pid)
        assert known is not None
        assert (known.parent, known.session, known.dead) == (os.getpid(), process.pid, False)
        assert 0 <= float(Path("/proc/uptime").read_text().split()[0]) - known.started < 60
        process.kill()
        assert eventually(lambda: bool((gone := procfs.entry(process.pid)) and gone.dead))
    assert procfs.entry(process.pid) is None


def test_a_mapped_file_is_no_memory_that_is_held(tmp_path: Path) -> None:  # R6.2
    (tmp_path / "weights").write_bytes(b"x" * (64 << 20))
    code = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ);"
        "sum(m[i] for i in range(0, len(m), 4096)); own = b'y' * (32 << 20); print('ready', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(["python3", "-c", code, str(tmp_path / "weights")], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        held, exact = procfs.memory([process.pid]), procfs.exact_memory([process.pid])
        process.kill()
    assert 32 << 20 < held < 60 << 20
    assert 32 << 20 < exact < 60 << 20
