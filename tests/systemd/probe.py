"""Run as the service, in all its restrictions: tries what it may and what it may not, and writes what came of it to the output."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | bytes | None) -> None:
    """A function of the C library that gives -1 where it fails. Raises OSError."""
    if getattr(LIBC, name)(*arguments) == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def outcome(work: Callable[[], object]) -> str:
    """ "ok", or the name of the error."""
    try:
        work()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "ok"


def new_file(folder: str) -> Callable[[], object]:
    return lambda: tempfile.NamedTemporaryFile(dir=folder).close()


def new_folder(folder: str) -> None:
    os.rmdir(tempfile.mkdtemp(dir=folder))


def with_mode(mode: int) -> None:
    with tempfile.NamedTemporaryFile(dir="/srv/exports") as file:
        os.chmod(file.name, mode)


def calls_back() -> None:
    """Generated code, as libraries make it for callbacks."""
    assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)() == 7


def child_that_is_idle() -> None:
    """What a stage does to itself before it begins."""
    script = "import os; os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)); os.nice(5); os.sched_setaffinity(0, {0})"
    if subprocess.run(["python3", "-c", script], check=False, start_new_session=True).returncode:
        raise OSError(errno.EPERM, "no child of the lowest priority")


def status_of(field: str) -> str:
    return next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))


MAY_NOT_WRITE = (
    "/home/trainer", "/home/trainer/runs", "/home/ckptd", "/root", "/etc/ckptd", "/usr", "/opt", "/srv", "/var/lib", "/boot",
    "/run", "/sys/fs/cgroup", "/sys/fs/cgroup/ckptd.slice", "/sys/fs/cgroup/init.scope", "/dev",
)  # fmt: skip
MAY_WRITE = ("/var/lib/ckptd", "/run/ckptd", "/srv/exports", "/tmp", "/var/tmp", "/dev/shm")


def main() -> None:
    CLONE_NEWUSER, PTRACE_ATTACH = 0x10000000, 16  # noqa: N806
    found = {
        "writes": {folder: outcome(new_file(folder)) for folder in (*MAY_NOT_WRITE, *MAY_WRITE)},
        "denied": {
            "AF_INET": outcome(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
            "AF_INET6": outcome(lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM)),
            "AF_NETLINK": outcome(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
            "AF_PACKET": outcome(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
            "user namespace": outcome(lambda: call("unshare", CLONE_NEWUSER)),
            "mount": outcome(lambda: call("mount", b"x", b"/tmp", b"tmpfs", 0, None)),
            "ptrace": outcome(lambda: call("ptrace", PTRACE_ATTACH, os.getppid(), None, None)),
            "set-user-id file": outcome(lambda: with_mode(0o4755)),
            "other user": outcome(lambda: os.setuid(os.getuid())),
            "chown": outcome(lambda: os.chown("/srv/exports", -1, os.getgid())),
            "real time": outcome(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
            "clock": outcome(lambda: time.clock_settime(time.CLOCK_REALTIME, time.time())),
            "kernel setting": outcome(lambda: Path("/proc/sys/kernel/core_pattern").write_text("|/bin/sh")),
            "kernel log": outcome(lambda: call("klogctl", 3, None, 0)),
            "host name": outcome(lambda: socket.sethostname("other")),
            "other processes": outcome(lambda: os.stat("/proc/1/status")),
        },
        "allowed": {
            "AF_UNIX": outcome(lambda: socket.socketpair()),
            "control group": outcome(lambda: new_folder("/sys/fs/cgroup/ckptd.slice/ckptd.service")),
            "memory of the box": outcome(lambda: Path("/proc/meminfo").read_text()),
            "processor": outcome(lambda: Path("/proc/cpuinfo").read_text()),
            "the trainer's files": outcome(lambda: list(Path("/home/trainer/runs").iterdir())),
            "callback": outcome(calls_back),
            "idle child": outcome(child_that_is_idle),
            "memory file": outcome(lambda: os.close(os.memfd_create("x"))),
            "output mode": outcome(lambda: with_mode(0o640)),
        },
        "devices": sorted(os.listdir("/dev")),
        "interfaces": [name for _, name in socket.if_nameindex()] if outcome(socket.if_nameindex) == "ok" else ["lo"],
        "capabilities": status_of("CapBnd:"),
        "no_new_privileges": status_of("NoNewPrivs:"),
    }  # fmt: skip
    Path("/srv/exports/probe.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
