"""`python -m tests.deliver.contract.stopping`: a delivery's process. PAUSE is its pause before a second try, and it is killed at its n-th
change below a folder: STOP_AT, STOP_BELOW; STOP_LOG counts."""

from __future__ import annotations

import os
import runpy
import signal
import sys

CHANGES = {"os.rename", "os.link", "os.symlink", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "subprocess.Popen"}
at, below, log = int(os.environ.get("STOP_AT", "0")), os.environ.get("STOP_BELOW"), os.environ.get("STOP_LOG")
count = 0


def look(event: str, arguments: tuple[object, ...]) -> None:
    """Count what changes something, and die where it is time."""
    global count
    if event not in CHANGES and not (event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
        return
    if not any(_is_below(argument) for argument in arguments[:2]):
        return
    count += 1
    if log:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(handle, f"{event} {arguments[0]!r}\n".encode(errors="replace"))
        os.close(handle)
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)


def _is_below(argument: object) -> bool:
    """Names may be given relative to an open folder: those count too."""
    if not isinstance(argument, str | bytes):
        return False
    name = os.fsdecode(argument)
    return name != log and (name.startswith(str(below)) or not name.startswith("/"))


if __name__ == "__main__":
    if pause := os.environ.get("PAUSE"):
        from handlers.deliver import transfer

        transfer.PAUSE_SECONDS = float(pause)
    if below:
        sys.addaudithook(look)
    runpy.run_module("handlers.deliver", run_name="__main__", alter_sys=True)
