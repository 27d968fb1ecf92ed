"""Chromium without a window, over its DevTools protocol: two pipes, no port, so that nobody else can ask it anything.

Called by `page`. A browser ends with the process that started it, even if that is killed. It runs without a sandbox of its own, which root
and a service without namespaces can't have: what it loads are files of an export, which the other checks read without one too, and it has
no network.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPERATION = "run the model in a browser"
START_SECONDS = 120.0
ANSWER_SECONDS = 1800.0
"""Without a sign of life for so long, a browser counts as hung; whoever asks the engine has shorter limits."""
END_SECONDS = 5.0
_LAUNCHER = Path(__file__).with_name("launcher.py")
_ARGUMENTS = (
    "--headless", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps",
    "--disable-breakpad", "--disable-features=Translate,MediaRouter,OptimizationHints", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe", "--js-flags=--max-old-space-size=8192",
)  # fmt: skip
_TAIL = 8000


class BrowserError(Exception):
    """The browser, or the page in it, could not do what it was asked; the message says why."""


class Chromium:
    """One running browser. `heard` gets what it tells by itself: the name of an event and its facts."""

    def __init__(self, heard: Callable[[str, Json], None]) -> None:
        """Permanent where this box has no browser; BrowserError where it does not start."""
        self._heard, self._number, self._buffer = heard, 0, b""
        program = find()
        self._profile = tempfile.mkdtemp(prefix="browser-")
        self._log = Path(self._profile, "log")
        there, read = os.pipe(), os.pipe()
        command = [program, *_ARGUMENTS, f"--user-data-dir={self._profile}", "about:blank"]
        launcher = [sys.executable, "-I", "-S", str(_LAUNCHER), str(there[0]), str(read[1]), str(os.getpid()), self._profile]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                [*launcher, *command], pass_fds=(there[0], read[1]), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment()
            )
        os.close(there[0])
        os.close(read[1])
        self._to, self._from = there[1], read[0]
        try:
            self.version = str(self.ask("Browser.getVersion", seconds=START_SECONDS)["product"])
        except BaseException:
            self.close()
            raise

    def ask(self, method: str, facts: Json | None = None, session: str = "", seconds: float = ANSWER_SECONDS) -> Json:
        """The result of a command of the protocol. Raises BrowserError."""
        number = self.send(method, facts, session)
        while True:
            message = self._message(seconds)
            if message.get("id") == number:
                break
            if "method" in message:
                self._heard(message["method"], message.get("params", {}))
        if "error" in message:
            raise BrowserError(f"the browser refuses {method}: {message['error'].get('message')}")
        result: Json = message["result"]
        return result

    def send(self, method: str, facts: Json | None = None, session: str = "") -> int:
        """Give a command whose result nobody waits for; its number."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": facts or {}, **({"sessionId": session} if session else {})}
        block = memoryview(json.dumps(message).encode() + b"\0")
        try:
            while block:
                block = block[os.write(self._to, block) :]
        except BrokenPipeError:
            raise self._ended() from None
        return self._number

    def _message(self, seconds: float) -> Json:
        pieces, limit = [self._buffer], time.monotonic() + seconds
        while b"\0" not in pieces[-1]:
            ready, _, _ = select.select([self._from], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                raise BrowserError(f"the browser gave no answer within {seconds:.0f} s")
            block = os.read(self._from, 1 << 20)
            if not block:
                raise self._ended()
            pieces.append(block)
        line, _, self._buffer = b"".join(pieces).partition(b"\0")
        message: Json = json.loads(line)
        return message

    def _ended(self) -> BrowserError:
        code = self.process.wait()
        said = [line.strip() for line in self._log.read_text(errors="replace", encoding="utf-8")[-_TAIL:].splitlines() if line.strip()]
        why = next((line for line in said if ":FATAL:" in line), said[-1] if said else "")
        return BrowserError(f"the browser ended with code {code}" + (f"; it last said: {why[:300]}" if why else ""))

    def close(self) -> None:
        """End it and remove its files; safe to call again."""
        children = _below(self.process.pid)
        self.process.kill()
        self.process.wait()
        psutil.wait_procs(children, END_SECONDS)  # they see that it is gone, and write no more into the profile
        for descriptor in (self._to, self._from):
            if descriptor >= 0:
                os.close(descriptor)
        self._to = self._from = -1
        shutil.rmtree(self._profile, ignore_errors=True)


def _below(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def find() -> str:
    """The program. Permanent where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        remedy = "install one (on Debian and Ubuntu: `apt-get install chromium`)"
        raise Permanent(FaultCode.ENGINE_MISSING, OPERATION, "this box has no Chromium", remedy)
    return os.path.realpath(program) if Path(program).is_symlink() else program


def _environment() -> dict[str, str]:
    """Without the session of a desktop, which it would talk to."""
    left = {"DISPLAY", "WAYLAND_DISPLAY", "DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"}
    return {**{name: value for name, value in os.environ.items() if name not in left}, "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
