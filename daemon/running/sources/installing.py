"""Toolchains that stages wait for, installed one at a time by a process of its own (`toolchains.auto_install`).

A part of the runner, used by its thread alone, except that `name` may be read by others. The stages wait as for anything else; a failure is
theirs, and is remembered for a while, so that a queue of exports does not build the same thing in vain again and again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from daemon.config.settings import Settings
from daemon.contract.disk.failpoints import VARIABLES
from daemon.contract.disk.files import make_folders
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode
from daemon.running.attempts.job_file import NICE
from daemon.system.logger import Logger
from daemon.toolchains.order import Ended, Order
from daemon.toolchains.registry import DEFINITIONS

log = Logger("runner")

REMEMBERED_SECONDS = 300.0
"""For how long a failed installation is not tried again."""
BUSY_SECONDS = 5.0
"""The same where another process is installing that toolchain."""
STOP_SECONDS = 10.0
"""For ending in order; pip ends at once."""
OOM_SCORE_ADJ = 800
"""As for every child."""
_OURS = re.compile(r"CKPTD_|EXPORT_|NOTIFY_SOCKET$|WATCHDOG_|LISTEN_|CREDENTIALS_DIRECTORY$")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY", re.IGNORECASE)
_OF_INSTALLERS = re.compile(r"PIP_|npm_config_|.*_proxy$", re.IGNORECASE)


@dataclass(frozen=True)
class _Failure:
    fault: Fault
    until: float


class Installing:
    """The toolchain that is being installed, if one is, and the failures of late."""

    def __init__(self, state: Path, wake: Callable[[], None]) -> None:
        self._state, self._home, self._wake = state, state / "toolchains", wake
        self._process: subprocess.Popen[bytes] | None = None
        self._since = 0.0
        self._failures: dict[str, _Failure] = {}
        self.name = ""
        """Of the toolchain that is being installed; "" where none is."""

    def want(self, name: str, stage: str, settings: Settings) -> Fault:
        """What keeps a stage from its toolchain, which is not there: it is coming, or can't come."""
        failure = self._failures.get(name)
        if failure is not None and time.monotonic() < failure.until:
            return _coming(stage, failure.fault.cause) if failure.fault.code == FaultCode.TOOLCHAIN_BUSY else failure.fault
        if not self.name:
            fault = self._start(name, settings)
            if fault is not None:
                return self._failed(name, fault)
        if self.name != name:
            return _coming(stage, f"the toolchain {name} is installed next, after {self.name}")
        return _coming(stage, f"the toolchain {name} is being installed ({self._doing()}, {time.monotonic() - self._since:.0f} s)")

    def look(self) -> None:
        """Take in how the installation ended, if it has."""
        if self._process is None or self._process.poll() is None:
            return
        name, code = self.name, self._process.returncode
        self._process, self.name = None, ""
        fault = self._fault(name, code)
        if fault is None:
            log.info(f"installed the toolchain {name}", event_id=Event.TOOLCHAIN_INSTALLED, toolchain=name)
        else:
            self._failed(name, fault)
        self._wake()

    def stop(self) -> None:
        """End it; what it has fetched is kept for the next one."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process, self.name = None, ""

    def _start(self, name: str, settings: Settings) -> Fault | None:
        """Begin; gives what kept it from that."""
        limits = settings.limits
        order = Order(
            state=self._state, definitions=DEFINITIONS, name=name,
            reserve=int(limits.disk_reserve), nice=NICE[limits.priority], idle=limits.priority == "idle", oom_score_adj=OOM_SCORE_ADJ,
            doing=self._file("doing"), ended=self._file("ended"),
        )  # fmt: skip
        try:
            make_folders(self._home)
            order.doing.unlink(missing_ok=True)
            order.ended.unlink(missing_ok=True)
            # In our session: of a process in a session of its own the workers would think that it is an attempt's. Not in our group, which
            # gets the terminal's Ctrl-C: `stop` ends it.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "daemon.toolchains.unattended", order.model_dump_json()], stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", env=_environment(), process_group=0,
            )  # fmt: skip
        except OSError as error:
            return Fault(
                code=FaultCode.SYSTEM_RESOURCES, operation=f"install the toolchain {name}", cause=error.strerror or str(error),
                remedy=f"run `ckptd toolchain install {name}`", path=str(self._home),
            )  # fmt: skip
        self.name, self._since = name, time.monotonic()
        log.info(
            f"installing the toolchain {name}, which a stage needs", event_id=Event.TOOLCHAIN_INSTALLING, toolchain=name,
            path=str(self._log(name)),
        )  # fmt: skip
        return None

    def _log(self, name: str) -> Path:
        return self._home / f"{name}.log"

    def _file(self, kind: str) -> Path:
        return self._home / f".unattended.{kind}"

    def _doing(self) -> str:
        try:
            return self._file("doing").read_text(errors="replace", encoding="utf-8").strip() or "starting"
        except OSError:
            return "starting"

    def _fault(self, name: str, code: int) -> Fault | None:
        """Why it failed; None where it did not."""
        try:
            return Ended.model_validate_json(self._file("ended").read_bytes()).fault
        except (OSError, ValidationError):
            cause = f"the process that installed it ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"
            remedy, path = 'look for "Out of memory" in the kernel\'s log, and read this log', self._log(name)
            return Fault(
                code=FaultCode.INSTALL_FAILED, operation=f"install the toolchain {name}", cause=cause, remedy=remedy, path=str(path)
            )

    def _failed(self, name: str, fault: Fault) -> Fault:
        """Remember a failure, and say it, with what brings the stages to their end."""
        busy = fault.code == FaultCode.TOOLCHAIN_BUSY
        remedy = f"{fault.remedy}; then run `ckptd toolchain install {name}` and `ckptd queue retry JOB`"
        explained = fault if busy else fault.model_copy(update={"remedy": remedy})
        self._failures[name] = _Failure(explained, time.monotonic() + (BUSY_SECONDS if busy else REMEMBERED_SECONDS))
        if not busy:
            log.error(explained.sentence(), event_id=Event.TOOLCHAIN_FAILED, toolchain=name, code=explained.code)
        return explained


def _coming(stage: str, cause: str) -> Fault:
    return Fault(
        code=FaultCode.TOOLCHAIN_COMING, operation=f"start the stage {stage}", cause=cause,
        remedy="wait until that has finished; its log is NAME.log in the state directory's toolchains",
    )  # fmt: skip


def _environment() -> dict[str, str]:
    """What it gets of our variables: what a package that is built here does not need may hold keys and URLs of notifications."""
    return {
        name: value for name, value in os.environ.items()
        if name in VARIABLES or _OF_INSTALLERS.match(name) or not (_OURS.match(name) or _SECRET.search(name))
    }  # fmt: skip
