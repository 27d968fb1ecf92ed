"""A real Slurm on this machine, without installation: the distribution's packages are fetched, unpacked and started in a folder.

One controller and one machine, which is made to have more cores than this one. Nothing of it outlives `close`, or the thread that made
it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.ports import free_port

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "munge", "libmunge2", "libhwloc15")
FETCH_SECONDS, ANSWER_SECONDS = 300, 60
CORES, MEMORY_MIB = 8, 16_000


def fetch(cache: Path) -> Path:
    """The folder with Slurm's unpacked packages. Raises as `download`."""
    return download(cache, PACKAGES)


def download(cache: Path, packages: Sequence[str]) -> Path:
    """The folder with the unpacked packages; fetched into `cache` once. Raises OSError or SubprocessError."""
    tree = cache / "tree"
    if tree.is_dir():
        return tree
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as work:
        subprocess.run(["apt-get", "download", *packages], cwd=work, check=True, capture_output=True, timeout=FETCH_SECONDS)
        for package in Path(work).glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(package), f"{work}/tree"], check=True, capture_output=True)
        with contextlib.suppress(OSError):  # another test run was first
            os.rename(f"{work}/tree", tree)
    return tree


class SlurmSite:
    """A running Slurm. `commands` is the folder of sbatch, squeue and scancel."""

    def __init__(self, tree: Path, folder: Path, configuration: str = "") -> None:
        """`configuration`: lines for slurm.conf that replace or complete the usual ones."""
        self.folder, self._tree = folder, tree
        self.commands, self._environment = folder / "bin", self._variables()
        for name in ("state", "spool", "bin", "sbin"):
            (folder / name).mkdir(parents=True)
        (folder / "slurm.conf").write_text(self._configuration(configuration), encoding="utf-8")
        for program in ("sbatch", "squeue", "scancel", "scontrol", "sinfo", "sacct"):
            self._wrap(program)
        self.controller: subprocess.Popen[bytes] | None = None
        self.node: subprocess.Popen[bytes] | None = None
        self.start_controller()
        self.start_node()
        self._wait_until_idle()

    def _variables(self) -> dict[str, str]:
        (plugins,) = self._tree.glob("usr/lib/*/slurm-wlm")
        self._plugins = plugins
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "LD_LIBRARY_PATH": f"{plugins}:{plugins.parent}", "PATH": os.environ["PATH"]}

    def _configuration(self, more: str) -> str:
        host, user = socket.gethostname().partition(".")[0], pwd.getpwuid(os.getuid()).pw_name
        lines = {
            "ClusterName": "site", "SlurmctldHost": f"{host}(127.0.0.1)", "SlurmUser": user, "SlurmdUser": user,
            "SlurmctldPort": str(free_port()), "SlurmdPort": str(free_port()), "AuthType": "auth/none", "CredType": "cred/none",
            "PluginDir": str(self._plugins), "StateSaveLocation": str(self.folder / "state"), "SlurmdSpoolDir": str(self.folder / "spool"),
            "SlurmctldPidFile": str(self.folder / "slurmctld.pid"), "SlurmdPidFile": str(self.folder / "slurmd.pid"),
            "SlurmctldLogFile": str(self.folder / "slurmctld.log"), "SlurmdLogFile": str(self.folder / "slurmd.log"),
            "ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/none", "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory", "SlurmdParameters": "config_overrides", "MpiDefault": "none", "ReturnToService": "2",
            "SchedulerParameters": "sched_min_interval=0,batch_sched_delay=0,sched_interval=1,defer=0", "KillWait": "2", "MinJobAge": "300",
            "JobRequeue": "1", "DefMemPerCPU": "100", "SlurmdTimeout": "10", "MessageTimeout": "10",
        }  # fmt: skip
        text = "".join(f"{key}={value}\n" for key, value in lines.items() if f"{key}=" not in more)
        node = f"NodeName={host} NodeAddr=127.0.0.1 CPUs={CORES} Sockets=1 CoresPerSocket={CORES} ThreadsPerCore=1 RealMemory={MEMORY_MIB}"
        return f"{text}{more}\n{node} State=UNKNOWN\nPartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP\n"

    def _wrap(self, program: str) -> None:
        path = self.commands / program
        sets = "\n".join(f"export {name}='{value}'" for name, value in self._environment.items())
        path.write_text(f"#!/bin/sh\n{sets}\nexec '{self._tree / 'usr/bin' / program}' \"$@\"\n", encoding="utf-8")
        path.chmod(0o755)

    def run(self, program: str, *words: str) -> str:
        """Output of a command of Slurm's. Raises CalledProcessError."""
        return subprocess.run([self.commands / program, *words], check=True, capture_output=True, text=True, timeout=ANSWER_SECONDS).stdout

    def start_controller(self) -> None:
        """Start slurmctld."""
        self.controller = self._daemon("slurmctld", "-D")

    def start_node(self) -> None:
        """Start slurmd."""
        self.node = self._daemon("slurmd", "-D", "-d", str(self._program("slurmstepd")))

    def _program(self, name: str) -> Path:
        """A program by the name that it has on a site: by that its parts know where they run."""
        path = self.folder / "sbin" / name
        if not path.is_symlink():
            path.symlink_to(self._tree / "usr/sbin" / f"{name}-wlm")
        return path

    def _daemon(self, program: str, *words: str) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{program}.out", "ab") as output:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", self._program(program), *words], env=self._environment, cwd=self.folder,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.CalledProcessError):
                if self.run("sinfo", "--noheader", "--format=%T").strip() in ("idle", "mixed", "allocated"):
                    return
            time.sleep(0.2)
        raise TimeoutError(f"Slurm did not start: {(self.folder / 'slurmctld.log').read_text(errors='replace')[-2000:]}")

    def stop_controller(self) -> None:
        """Stop slurmctld: from now on there is no answer."""
        _end(self.controller)

    def kill_node(self) -> None:
        """Kill slurmd and all that runs under it, as when a machine is lost."""
        lost = [process for step in self._steps() for process in (step, *step.children(recursive=True))]
        _end(self.node)
        for process in lost:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(lost, ANSWER_SECONDS)
        (self.folder / "slurmd.pid").unlink(missing_ok=True)

    def _steps(self) -> list[psutil.Process]:
        """What slurmd has started for each job, which outlives it."""
        steps = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if "slurmstepd" in process.name() and process.environ().get("SLURM_CONF") == self._environment["SLURM_CONF"]:
                    steps.append(process)
        return steps

    def close(self) -> None:
        """End all of it."""
        with contextlib.suppress(Exception):
            self.run("scancel", "--me")
            self.run("scancel", "--signal=KILL", "--full", "--me")
        self.kill_node()
        _end(self.controller)
        shutil.rmtree(self.folder / "spool", ignore_errors=True)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is not None and process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()
