"""The process that sends notifications: started with the first message, ended when there has been none for a while.

Called by the notifier and by `ckptd notify test`. To start a process and import Apprise takes seconds on a busy machine, so one process
sends them all, to several services at the same time. Each message has its own time limit: a service that holds a call beyond it can't be
let go of, so its process gets no further message, and is ended as soon as the others that it sends have ended.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
import weakref
from dataclasses import asdict
from typing import IO, Any

from daemon.config.receivers import Receiver
from daemon.contract.faults.secret_url import SecretUrl
from daemon.journal.rows import Message
from daemon.publishing.telling.content import payload
from daemon.publishing.telling.outcome import LIMIT_SECONDS, Attempt, Outcome
from daemon.system.filesystems.private import inherited_umask

IDLE_SECONDS = 30.0
"""The process waits so long for another message."""
END_SECONDS = 2.0
"""In which it ends the commands that it runs."""
_PIPE_BYTES = 1 << 20
"""Of orders that wait to be read."""
_ENVIRONMENT = re.compile(
    r"PATH|HOME|LANG|LC_\w+|TZ|TMPDIR|PYTHON\w+|(MLFLOW|WANDB)_\w+|SSL_CERT_(FILE|DIR)|(REQUESTS|CURL)_CA_BUNDLE|((https?|all|no)_proxy)",
    re.IGNORECASE,
)  # fmt: skip
"""What it inherits: nothing of the daemon's secrets, but what trackers' libraries read."""


class Sender:
    """Sends messages by one process at a time. Used by one thread."""

    def __init__(self) -> None:
        self._process: _Process | None = None
        self._older: list[_Process] = []
        """Those that get no further message."""
        self._idle_since = time.monotonic()

    def begin(self, receiver: Receiver, message: Message) -> Attempt:
        """Begin to send a message to a receiver. Raises OSError where no process can be started."""
        url, about = receiver.url.get_secret_value(), {"kind": message.kind, "key": message.key}
        match receiver.kind:
            case "webhook":
                assert receiver.secret is not None
                secret = receiver.secret.get_secret_value()
                return self._begin({"how": "webhook", "url": url, "secret": secret, **about, "payload": payload(message)})
            case "command":
                order = {"command": receiver.command, "limit": receiver.limit, **about, "payload": payload(message)}
                return self._begin({"how": "command", **order})
            case "tensorboard" | "mlflow" | "wandb":
                assert receiver.tracker is not None
                secret = receiver.secret.get_secret_value() if receiver.secret else ""
                order = {"url": url, "secret": secret, "tracker": asdict(receiver.tracker), **about, "payload": payload(message)}
                return self._begin({"how": receiver.kind, "umask": inherited_umask(), **order})
        return self._begin({"how": "url", "url": url, "kind": message.kind, "title": message.title, "body": message.body})

    def beat(self, receiver: Receiver) -> Attempt:
        """Begin to send a sign of life. Raises OSError as `begin` does."""
        return self._begin({"how": "heartbeat", "url": receiver.url.get_secret_value()})

    def look(self, url: SecretUrl) -> Attempt:
        """Begin to find out whether a URL names a service. Raises OSError as `begin` does."""
        return self._begin({"how": "url", "url": url.get_secret_value()})

    def _begin(self, order: dict[str, Any]) -> Attempt:
        self.tidy()
        process, self._idle_since = self._usable(), time.monotonic()
        try:
            return process.take(order)
        except OSError:
            process.spent = True
            return self._usable().take(order)

    def tidy(self) -> None:
        """End the processes that are needed no longer."""
        now = time.monotonic()
        if self._process is not None and (self._process.spent or self._process.has_ended()):
            self._older.append(self._process)
            self._process = None
        if self._process is not None and self._process.open:
            self._idle_since = now
        elif self._process is not None and now - self._idle_since > IDLE_SECONDS:
            self._process.end()
            self._process = None
        for process in [process for process in self._older if not process.open]:
            process.end()
            self._older.remove(process)

    def end(self) -> None:
        """End all of them. Whether what they are sending arrived is not known then."""
        for process in (*self._older, *([self._process] if self._process is not None else [])):
            process.end()
        self._process, self._older = None, []

    def _usable(self) -> _Process:
        if self._process is None or self._process.spent:
            if self._process is not None:
                self._older.append(self._process)
            self._process = _Process()
        return self._process


class _Process:
    """One process, and what it is sending."""

    def __init__(self) -> None:
        self.open: dict[int, _Delivery] = {}
        self.spent = False
        """It gets no further message."""
        self._numbers, self._read = itertools.count(1), b""
        # In our session: a child of ours that leads one counts as left behind by an attempt, and is ended with it.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "daemon.publishing.telling.sending"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, process_group=0, cwd="/",
            env={key: value for key, value in os.environ.items() if _ENVIRONMENT.fullmatch(key)},
        )  # fmt: skip
        assert self._child.stdin is not None and self._child.stdout is not None
        self._orders, self._answers = self._child.stdin, self._child.stdout
        for pipe in (self._orders, self._answers):
            os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._orders, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._killing = weakref.finalize(self, _kill, self._child, self._orders, self._answers)

    @property
    def handle(self) -> int:
        """The file descriptor that becomes readable when there is an answer."""
        return self._answers.fileno()

    def take(self, order: dict[str, Any]) -> _Delivery:
        """Give it an order. Raises OSError where it takes none."""
        number = next(self._numbers)
        line = json.dumps({"id": number, **order}).encode() + b"\n"
        if os.write(self._orders.fileno(), line) != len(line):
            self.spent = True
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self.open[number] = _Delivery(self, number)
        return self.open[number]

    def read(self) -> None:
        """Give the answers that are there to those who wait for them."""
        if self._answers.closed:
            return
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._answers.fileno(), 1 << 16):
                self._read += part
        *lines, self._read = self._read.split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # not ours: a library's
                answer = json.loads(line)
                if (delivery := self.open.pop(answer.pop("id"), None)) is not None:
                    delivery.outcome = Outcome(**answer)
        if self.has_ended():
            self.lose(f"the sending process ended with {self._child.returncode}")

    def has_ended(self) -> bool:
        """Whether it lives no more."""
        return self._child.poll() is not None

    def lose(self, why: str) -> None:
        """Nothing that it was sending is answered any more."""
        self.spent = True
        for delivery in self.open.values():
            delivery.outcome = Outcome(why)
        self.open.clear()

    def end(self) -> None:
        """End it now."""
        self.lose("the sending process ended before the service answered")
        self._killing()


def _kill(child: subprocess.Popen[bytes], *pipes: IO[bytes]) -> None:
    for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            if child.poll() is None:
                os.killpg(child.pid, number)
            child.wait(seconds)
    for pipe in pipes:
        with contextlib.suppress(OSError):
            pipe.close()


class _Delivery:
    """A message on its way: see `Attempt`."""

    def __init__(self, process: _Process, number: int) -> None:
        self._process, self._number = process, number
        self._deadline = time.monotonic() + LIMIT_SECONDS
        self.outcome: Outcome | None = None

    @property
    def wait_handle(self) -> int | None:
        """A file descriptor that becomes readable when there is something to poll for; None once it has ended."""
        return self._process.handle if self.outcome is None else None

    def poll(self) -> Outcome | None:
        """How it ended, the same at every further call; None while it goes on."""
        if self.outcome is None:
            self._process.read()
        if self.outcome is None and time.monotonic() > self._deadline:
            self._give_up(f"no answer within {LIMIT_SECONDS:.0f} s")
        return self.outcome

    def end(self) -> None:
        """Wait for its end no longer. Whether the message arrives is not known then."""
        if self.outcome is None:
            self._give_up("the sending process ended before the service answered")

    def _give_up(self, why: str) -> None:
        self._process.open.pop(self._number, None)
        self._process.spent = True
        self.outcome = Outcome(why)
