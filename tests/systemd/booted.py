"""A real systemd that runs our real unit: process 1 of its own namespaces, beside the box's init and without touching it.

Needs root and the right to mount. What it writes lies on file systems of its own, but for the folder that is handed in, which the
services inside see as /srv/lab.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
UNITS = REPOSITORY / "daemon" / "installing" / "units"
SYSTEMD = Path("/lib/systemd/systemd")
PYTHON = Path(sys.executable)
COMMAND = "/opt/ckptd/.venv/bin/ckptd"
USERS = {"ckptd": 64001, "trainer": 64002}

_BOOT = r"""
set -e
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/etc /run/systemd/system /run/dev /run/keep
cp -a /etc/. /run/etc/
mount --bind /run/etc /etc
for row in USERS; do
    echo "${row%:*}:x:${row#*:}:${row#*:}::/home/${row%:*}:/bin/sh" >>/etc/passwd
    echo "${row%:*}:x:${row#*:}:" >>/etc/group
done
mkdir -p /etc/ckptd && rm -rf /etc/systemd/system /etc/systemd/user && mkdir /etc/systemd/system
cp -a "LAB"/units/. /etc/systemd/system/
cp -a "LAB"/etc/. /etc/ckptd/
# What would reach for the box's devices and network if it were started here.
for unit in /lib/systemd/system/systemd-*.service /lib/systemd/system/systemd-*.socket /lib/systemd/system/modprobe@.service \
        /lib/systemd/system/kmod-static-nodes.service /lib/systemd/system/*.mount /lib/systemd/system/*.automount; do
    case "$unit" in */systemd-journald.service | */systemd-journald.socket) ;; *) ln -sf /dev/null "/etc/systemd/system/${unit##*/}" ;; esac
done
index=0
for folder in "LAB" "REPOSITORY" PREFIXES; do
    mkdir /run/keep/$index && mount --bind "$folder" /run/keep/$index && index=$((index + 1))
done
mount -t tmpfs -o mode=755 tmpfs /run/dev
for name in null zero full random urandom tty; do touch /run/dev/$name && mount --bind /dev/$name /run/dev/$name; done
mkdir /run/dev/shm /run/dev/pts && mount -t tmpfs -o mode=1777 tmpfs /run/dev/shm && mount -t devpts -o newinstance devpts /run/dev/pts
ln -s /dev/null /run/dev/kmsg && ln -s pts/ptmx /run/dev/ptmx && ln -s /proc/self/fd /run/dev/fd
mount --rbind /run/dev /dev
mkdir -p /usr/local/share/man
for folder in /srv /home /root /opt /var/lib /var/log /usr/local/share/man; do mount -t tmpfs -o mode=755 tmpfs $folder; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p /srv/lab /srv/exports /opt/ckptd && chown CKPTD /srv/exports
mount --bind /run/keep/0 /srv/lab
mount --bind /run/keep/1 /opt/ckptd && mount -o remount,bind,ro /opt/ckptd
index=2
for folder in PREFIXES; do
    mkdir -p "$folder" && mount --bind /run/keep/$index "$folder" && mount -o remount,bind,ro "$folder" && index=$((index + 1))
done
mkdir -p /home/ckptd /home/trainer && chown CKPTD /home/ckptd && chown TRAINER /home/trainer
umount -R /sys
mount -t sysfs -o ro sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
exec env -i container=ckptd-test PATH="$PATH" /lib/systemd/systemd --system --unit=lab.target --show-status=0 --log-target=null
"""
_TARGET = "[Unit]\nDescription=lab\nDefaultDependencies=no\nWants=systemd-journald.service\nAfter=systemd-journald.service\n"


@functools.cache
def missing() -> str:
    """What keeps a systemd from being started here; "" where nothing does."""
    if os.geteuid() != 0:
        return "it needs root, for mounts"
    if not SYSTEMD.exists() or any(shutil.which(tool) is None for tool in ("unshare", "nsenter", "systemctl")):
        return "systemd and util-linux are not installed"
    if any(Path(prefix).is_relative_to("/tmp") for prefix in (sys.prefix, sys.base_prefix)):
        return "Python lies in /tmp, which the service does not see"
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--cgroup", "--net", "bash", "-c", "mount --make-rprivate / && mount -t tmpfs x /srv"],
        capture_output=True, check=False,
    )  # fmt: skip
    return "" if tried.returncode == 0 else "namespaces or mounts are refused here"


@dataclass
class Booted:
    """A systemd that runs. `lab` is the folder that services see as /srv/lab."""

    lab: Path
    init: int

    def run(self, *command: str, check: bool = True, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        """A command inside, as root and without any of the unit's restrictions."""
        enter = ["nsenter", "--target", str(self.init), "--mount", "--pid", "--cgroup", "--ipc", "--uts", "--wd=/"]
        answer = subprocess.run([*enter, *command], capture_output=True, text=True, check=False, timeout=seconds)
        assert not check or answer.returncode == 0, f"{command}: {answer.stdout}\n{answer.stderr}\n{self.journal()[-6000:]}"
        return answer

    def systemctl(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`systemctl …` of this systemd."""
        return self.run("systemctl", *words, check=check, seconds=180)

    def verb(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`ckptd …` from outside of the unit, as root in a shell of the box."""
        return self.run("env", "PYTHONPATH=/opt/ckptd", "NO_COLOR=1", str(PYTHON), "-m", "daemon", *words, check=check)

    def status(self) -> dict[str, Any]:
        """`ckptd status --json`, with the service's configuration."""
        value: dict[str, Any] = json.loads(self.verb("status", "--json", "--config", "/etc/ckptd/config.toml").stdout)
        return value

    def entries(self) -> list[dict[str, Any]]:
        """The journal's entries of the service."""
        told = self.run("journalctl", "--unit", "ckptd", "--output", "json", "--no-pager", check=False).stdout
        return [json.loads(line) for line in told.splitlines()]

    def journal(self) -> str:
        """The journal's text."""
        try:
            enter = ["nsenter", "--target", str(self.init), "--mount", "--pid"]
            told = subprocess.run(
                [*enter, "journalctl", "--no-pager", "-o", "cat"], capture_output=True, text=True, check=False, timeout=30
            )
        except subprocess.TimeoutExpired:
            return "the journal does not answer"
        return told.stdout

    def drop_in(self, name: str, text: str) -> None:
        """Write a drop-in of the service and read the units again."""
        folder = Path(f"/proc/{self.init}/root/etc/systemd/system/ckptd.service.d")
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.conf").write_text(text)
        self.systemctl("daemon-reload")

    def configure(self, text: str) -> None:
        """Replace the service's configuration."""
        Path(f"/proc/{self.init}/root/etc/ckptd/config.toml").write_text(text)


def unit_text() -> str:
    """Our unit with the command that runs from this checkout; nothing else of it differs."""
    return (UNITS / "ckptd.service").read_text().replace(COMMAND, f"{PYTHON} -m daemon")


@contextlib.contextmanager
def booted(lab: Path, configuration: str) -> Iterator[Booted]:
    """A systemd with our unit installed and journald running; the service is not started yet."""
    units, etc = lab / "units", lab / "etc"
    (units / "ckptd.service.d").mkdir(parents=True)
    etc.mkdir()
    (units / "ckptd.service").write_text(unit_text())
    shutil.copyfile(UNITS / "ckptd.slice", units / "ckptd.slice")
    (units / "lab.target").write_text(_TARGET)
    settings = "PYTHONPATH=/opt/ckptd CKPTD_ONNX__OPTIMIZE=none CKPTD_LIMITS__PRIORITY=normal"
    (units / "ckptd.service.d" / "checkout.conf").write_text(f"[Service]\nEnvironment={settings}\n")
    (etc / "config.toml").write_text(configuration)
    prefixes = " ".join(f"'{folder}'" for folder in dict.fromkeys((sys.base_prefix, sys.prefix)))
    script = _BOOT.replace("LAB", str(lab)).replace("REPOSITORY", str(REPOSITORY)).replace("PREFIXES", prefixes)
    script = script.replace("USERS", " ".join(f"{name}:{number}" for name, number in USERS.items()))
    script = script.replace("CKPTD", str(USERS["ckptd"])).replace("TRAINER", str(USERS["trainer"]))
    group = _group()
    log = (lab / "boot.log").open("wb")
    with log:
        holder = subprocess.Popen(
            ["bash", "-c", f'echo $$ > {group}/cgroup.procs && exec unshare "$@"', "lab", "--cgroup", "--mount", "--pid", "--fork",
             "--uts", "--ipc", "--net", "--kill-child", "bash", "-c", script],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        here = Booted(lab, _init(holder))
        _wait_running(here)
        yield here
    finally:
        holder.kill()  # and with it the namespaces' first process, and so all in them
        holder.wait(30)
        _remove(group)


def _group() -> Path:
    """A control group of its own, in the second version's tree."""
    mounts = [row.split() for row in Path("/proc/self/mountinfo").read_text().splitlines() if " - cgroup2 " in row]
    group = Path(mounts[0][4]) / f"ckptd-test-{os.getpid()}"
    group.mkdir()
    return group


def _init(holder: subprocess.Popen[bytes], seconds: float = 30) -> int:
    """The pid of the namespaces' first process, once that is systemd."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and holder.poll() is None:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        if children and Path(f"/proc/{children[0]}/comm").read_text().strip() == "systemd":
            return int(children[0])
        time.sleep(0.05)
    raise AssertionError("systemd did not start")


def _wait_running(here: Booted, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if here.run("systemctl", "is-active", "systemd-journald.service", check=False).stdout.strip() == "active":
            return
        time.sleep(0.1)
    raise AssertionError(f"no journald: {here.run('systemctl', 'status', 'systemd-journald', check=False).stdout}")


def _remove(group: Path, seconds: float = 10) -> None:
    with contextlib.suppress(OSError):
        (group / "cgroup.kill").write_text("1")
    end = time.monotonic() + seconds
    while group.exists() and time.monotonic() < end:
        for folder, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        time.sleep(0.05)
