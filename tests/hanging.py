"""What ends a run that hangs, and says where: a plugin for pytest beside pytest-timeout.

That raises an error in the test when its time is over, which helps no test that catches everything, waits again while it cleans up, or
hangs in C code. So some time later all stacks are printed and the process ends, and with it the run: `make test` has no other begin.
Where a process is stopped, or says nothing for another reason, the one that collects the reports says for which tests it waits, and ends.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

LATER_SECONDS = 60.0
"""After the time limit of a test."""
SILENCE_SECONDS = 1500.0
"""More than any quick test may take."""


def _limit(item: pytest.Item) -> float:
    marker = item.get_closest_marker("timeout")
    return float(marker.args[0] if marker is not None and marker.args else item.config.getini("timeout") or 0)


class Hanging:
    """Of one process that runs tests, or collects the reports of others."""

    def __init__(self, config: pytest.Config) -> None:
        self._stderr = os.dup(2)  # what a test prints is captured
        self._running: dict[str, float] = {}
        self._heard = time.monotonic()
        self._limit = 0.0
        if getattr(config.option, "numprocesses", None) and config.option.markexpr == "not slow":
            threading.Thread(target=self._listen, name="silence", daemon=True).start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Give the test its limit and some more."""
        self._limit = _limit(item)
        self._arm()
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        """A test that failed has its cleaning up before it; pytest ends the alarm here."""
        self._arm()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins, here or in another process."""
        self._running[nodeid] = self._heard = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended."""
        self._running.pop(nodeid, None)
        self._heard = time.monotonic()

    def _arm(self) -> None:
        if self._limit:
            faulthandler.dump_traceback_later(self._limit + LATER_SECONDS, exit=True, file=self._stderr)

    def _listen(self) -> None:
        while time.monotonic() < self._heard + SILENCE_SECONDS:
            time.sleep(5.0)
        waits = [f"{test} since {time.monotonic() - began:.0f} s" for test, began in sorted(self._running.items())]
        children = psutil.Process().children(recursive=True)
        for line in (f"No test has ended for {SILENCE_SECONDS:.0f} s.", "Running:", *waits, "Processes:", *map(_described, children)):
            os.write(self._stderr, f"{line}\n".encode())
        for child in children:
            with contextlib.suppress(psutil.Error):
                child.kill()
        os._exit(pytest.ExitCode.INTERRUPTED)


def _described(process: psutil.Process) -> str:
    try:
        return f"{process.pid} of {process.ppid()}, {process.status()}: {' '.join(process.cmdline())[:200]}"
    except psutil.Error as error:
        return f"{process.pid}: {error}"


def pytest_configure(config: pytest.Config) -> None:
    """Begin, once a process."""
    if sys.gettrace() is None:  # nobody is at a debugger
        config.pluginmanager.register(Hanging(config), "hanging")
