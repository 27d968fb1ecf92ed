"""The daemon's side of the process that is connected with a Ray cluster (`driver.py`): starts it, asks it, replaces it when it hangs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from daemon.running.cluster.port import CALL_SECONDS, Refused, Unasked, Unsure

DRIVER = Path(__file__).with_name("driver.py")
PAUSE_SECONDS = 30.0
"""Before another process is started where the last one could not be connected: each costs a second of a core."""
REACH_SECONDS = 5.0
UNSURE_SECONDS = 60.0
"""For which a process may answer only that it can't say anything, before another one is connected."""
STRANGE = re.compile(r"ClusterID|cluster ID|AuthenticationError|Unauthenticated", re.IGNORECASE)
"""What Ray says to a process that was connected with the cluster before: it never gets to the new one at the same address."""
SAID_SIZE = 1 << 20
"""Bytes kept of what Ray prints."""


class Connection:
    """A process with a connection, once it is needed. For one thread."""

    def __init__(self, python: str, address: str, patience: float = CALL_SECONDS) -> None:
        """`python`: an interpreter with the cluster's Ray. `patience`: seconds for an answer."""
        self._python, self._address, self.patience = python, address, patience
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._rest = b""
        self._failed: tuple[float, str] | None = None
        self._unsure_since: float | None = None
        self._end: Callable[[], object] = bool

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return self._process.pid if self._process is not None else None

    def ask(self, verb: str, **values: Any) -> Any:
        """The answer to a question. Raises Refused, and Unsure where there is none."""
        if self._process is None:
            self._start()
        return self._exchange({"verb": verb, **values})

    def close(self) -> None:
        """End the process; what runs on the cluster goes on."""
        self._end()
        self._process, self._rest, self._unsure_since = None, b"", None

    def _start(self) -> None:
        if self._failed is not None and time.monotonic() - self._failed[0] < PAUSE_SECONDS:
            raise Unasked(self._failed[1])
        _reach(self._address)
        self._said = tempfile.TemporaryFile("ab+")  # noqa: SIM115
        try:
            self._process = subprocess.Popen(
                [self._python, str(DRIVER), self._address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, cwd="/",
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise Unasked(f"{self._python} can't be run: {error.strerror}") from None
        self._end = weakref.finalize(self, _end, self._process, self._said)
        try:
            self._exchange(None)
            self._failed = None
        except Unsure as error:
            self.close()
            self._failed = time.monotonic(), str(error)
            raise Unasked(str(error)) from None

    def _exchange(self, question: dict[str, Any] | None) -> Any:
        """Ask; None: wait for the first answer."""
        process = self._process
        assert process is not None and process.stdin is not None and self._said is not None
        if os.fstat(self._said.fileno()).st_size > SAID_SIZE:
            self._said.truncate(0)
        try:
            if question is not None:
                process.stdin.write(json.dumps(question).encode() + b"\n")
                process.stdin.flush()
            said = json.loads(self._line(process))
        except (OSError, ValueError) as error:
            last = _last_line(self._said)
            self.close()
            raise Unsure(last or f"its client ended: {error}") from None
        if "unsure" in said:
            self._renew_where_lost(said["unsure"])
            raise Unsure(said["unsure"])
        self._unsure_since = None
        if "refused" in said:
            raise Refused(said["refused"])
        return said["answer"]

    def _renew_where_lost(self, why: str) -> None:
        """End a process that will not get an answer any more: the next question is another one's."""
        now = time.monotonic()
        self._unsure_since = now if self._unsure_since is None else self._unsure_since
        if STRANGE.search(why) or now - self._unsure_since >= UNSURE_SECONDS:
            self.close()

    def _line(self, process: subprocess.Popen[bytes]) -> bytes:
        """The next line that the process writes. Raises OSError where it ends, or takes too long."""
        assert process.stdout is not None
        deadline = time.monotonic() + self.patience
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                self.close()
                raise Unsure(f"no answer in {self.patience:.0f} s")
            block = os.read(process.stdout.fileno(), 1 << 16)
            if not block:
                raise OSError(f"exit code {process.wait()}")
            self._rest += block
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def _end(process: subprocess.Popen[bytes], said: IO[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, said):
        if pipe is not None:
            with contextlib.suppress(OSError):  # what was not sent any more
                pipe.close()


def _reach(address: str) -> None:
    """Raise Unasked where nobody listens at an address: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except OSError as error:
        raise Unasked(f"nobody answers at {address}: {error.strerror or error}") from None


def _last_line(said: IO[bytes]) -> str:
    """The last line that a process wrote about itself."""
    said.seek(max(0, os.fstat(said.fileno()).st_size - 4000))
    lines = [line.strip() for line in said.read().decode(errors="replace").splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "")
