"""The demo's child processes: started so that none outlives the demo, their JSON lines read, ended in order.

Called by `daemon.cli.demo` alone. Children write into files instead of pipes: nothing blocks when nobody reads, no thread
is needed, and with `--keep` everything that was said can be read afterwards. Linux only, like the daemon.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from daemon.contract.parent import end_with_parent
from daemon.contract.values import Json

LAST_LINES = 12
_STRIPPED = ("CKPTD_", "EXPORT_", "NOTIFY_SOCKET", "WATCHDOG_", "STATE_DIRECTORY", "RUNTIME_DIRECTORY")


def _die_with(parent: int) -> None:
    end_with_parent(signal.SIGTERM)
    if os.getppid() != parent:  # it died before this was asked for
        os._exit(1)


@dataclass
class Child:
    """A running child, its log and what of its JSON lines has been read."""

    name: str
    process: subprocess.Popen[bytes]
    lines: Path
    log: Path
    _read: int = field(default=0)

    def events(self) -> list[Json]:
        """The events that came since the last call; a line that is still being written waits for the next one."""
        with open(self.lines, "rb") as stream:
            stream.seek(self._read)
            new = stream.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        events: list[Json] = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    events.append(value)
        return events

    def last_words(self) -> str:
        """The end of what it wrote to standard error."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-LAST_LINES:])

    def end(self, seconds: float) -> int:
        """Send SIGTERM, and SIGKILL to its whole session when `seconds` were not enough; give the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()


def start(name: str, arguments: list[str], logs: Path) -> Child:
    """Run `python -m …arguments` with its output in `logs/NAME.jsonl` and `logs/NAME.log`.

    A session of its own keeps the terminal's Ctrl-C away, so that the demo alone decides who ends when; should the
    demo be killed, the kernel ends the child. Settings in the environment are meant for the user's own daemon and left out.
    """
    lines, log = logs / f"{name}.jsonl", logs / f"{name}.log"
    temporary = logs.parent / "tmp"  # what libraries leave in the temporary folder goes with the demo's
    temporary.mkdir(exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(_STRIPPED)} | {"TMPDIR": str(temporary)}
    with open(lines, "wb") as out, open(log, "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=environment,
            start_new_session=True, preexec_fn=functools.partial(_die_with, os.getpid()),
        )  # fmt: skip
    return Child(name, process, lines, log)


def wait(child: Child, seconds: float) -> int | None:
    """The child's exit code, or None when it is not there within `seconds`."""
    deadline = time.monotonic() + seconds
    while child.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return child.process.returncode
