"""Runs a command with an export: it carries the files itself, and says by its exit code how that ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from daemon.contract.delivering.orders import Listed, Move, Receipt
from daemon.contract.faults.advice import quoted
from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.parent import end_with_parent
from handlers.deliver.command.declaration import CommandOptions
from handlers.deliver.target import Setting, Unreadable
from handlers.deliver.version import SourceFile, Version, changed

NEVER = 65
"""Exit code by which a command says that this export, not the moment, is the trouble (EX_DATAERR of sysexits.h), as for notifications."""
NOT_RUNNABLE = (126, 127)
"""By which a shell says the same of a program that it can't run."""
PAUSE_SECONDS = 30.0
"""Before the next try at the least: a command decides itself what it tries again at once."""
GRACE_SECONDS = 5.0
MOST_BYTES = 1 << 16
"""Of what it prints that is looked at for the place: the last ones."""
LONGEST_PLACE = 500
UNKNOWN = "what people follow there the command alone knows"


class CommandTarget:
    """A command."""

    def __init__(self, setting: Setting) -> None:
        self._options = CommandOptions.model_validate(setting.options)
        self._secret = setting.secret

    def look(self) -> None:
        """Find out whether there is such a program."""
        program = self._options.command[0]
        if shutil.which(program) is None:
            remedy = "correct the target's `command`, or install the program"
            raise Permanent(FaultCode.DELIVERY_LIBRARY, "run the command", f"there is no program {quoted(program)}", remedy)

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Carry nothing: the command does it, all at once. What it will read is what the manifest says."""
        with contextlib.closing(file.open()) as reader:
            while reader.read(1 << 20):
                pass
        return 0

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """Nothing can be read from there."""
        raise Unreadable("only the command knows where it is")

    def finish(self, version: Version, move: Move) -> Receipt:
        """Run the command. Raises Permanent, Retryable."""
        self.look()
        before = _state_of(version)
        code, printed = self._run(json.dumps(_described(version, move)).encode(), version.folder)
        if _state_of(version) != before:
            raise changed(version.folder)
        if code:
            raise self._error_of(code)
        lines = [line.strip() for line in printed.decode("utf-8", "replace").splitlines() if line.strip()]
        return Receipt(version=version.name, place=lines[-1][:LONGEST_PLACE] if lines else "", why_not_moved=UNKNOWN)

    def _run(self, text: bytes, folder: Path) -> tuple[int, bytes]:
        try:
            process = subprocess.Popen(
                self._options.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=self._environment(),
                preexec_fn=end_with_parent,
            )  # fmt: skip
        except OSError as error:
            cause = f"the command can't be started: {error.strerror}"
            raise Permanent(FaultCode.DELIVERY_LIBRARY, "run the command", cause, "correct the target's `command`") from error
        end = _Tail(process)
        try:
            with contextlib.suppress(BrokenPipeError):
                end.write(text)
            code = process.wait(self._options.limit_seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
            process.kill()
            process.wait()
            cause = f"it did not end within {self._options.limit_seconds:g} s, and was ended"
            raise _temporary(cause, "look at what it waits for, or raise the target's limit_seconds") from None
        return code, end.bytes()

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **({self._options.secret_variable: self._secret} if self._secret else {})}

    @staticmethod
    def _error_of(code: int) -> Permanent | Retryable:
        if code in (NEVER, *NOT_RUNNABLE):
            remedy = "correct the command; `ckptd logs --target` shows what it printed"
            return Permanent(FaultCode.DELIVERY_REFUSED, "run the command", f"it ended with exit code {code}", remedy)
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        return _temporary(f"it ended with {how}", "`ckptd logs --target` shows what it printed; it is tried again by itself")

    def list(self, run: str) -> Sequence[Listed]:
        """Raise: nothing is known of what lies there."""
        raise Permanent(FaultCode.DELIVERY_REFUSED, "list what lies there", "the command alone knows", "look at the place that it printed")

    def remove(self, version: str) -> None:
        """Nothing is known of what lies there."""

    def close(self) -> None:
        """Nothing is held."""


class _Tail:
    """The last bytes that a process prints, read in a thread: they also go to the delivery's log. What it is told is written in another."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self._kept = process, b""
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while part := os.read(self._process.stdout.fileno(), 1 << 16):
            self._kept = (self._kept + part)[-MOST_BYTES:]
            with contextlib.suppress(OSError):
                sys.stderr.buffer.write(part)
                sys.stderr.buffer.flush()

    def write(self, text: bytes) -> None:
        """Tell it something, without waiting for one that reads nothing."""
        threading.Thread(target=self._write, args=(text,), daemon=True).start()

    def _write(self, text: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(text)
            self._process.stdin.close()

    def bytes(self) -> bytes:
        """What it printed last, once it has ended; of what it left behind and still prints nothing is waited for."""
        self._reading.join(1.0)
        return self._kept


def _temporary(cause: str, remedy: str) -> Retryable:
    return Retryable.after(PAUSE_SECONDS, FaultCode.DELIVERY_FAR_END, "run the command", cause, remedy)


def _described(version: Version, move: Move) -> dict[str, object]:
    return {
        "version": version.name, "digest": version.digest, "export": version.export, "run": version.run, "step": version.step,
        "folder": str(version.folder), "variants": list(version.variants), "verdicts": dict(version.verdicts), "move": move,
        "bytes": version.size, "files": [{"path": file.path, "size": file.size, "sha256": file.sha256} for file in version.files],
    }  # fmt: skip


def _state_of(version: Version) -> dict[str, tuple[int, int, int]]:
    """Of each path in the export's folder what a change of it would change."""
    state = {}
    for path in sorted(version.folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            state[str(path)] = (status.st_ino, 0, 0) if path.is_dir() else (status.st_ino, status.st_size, status.st_mtime_ns)
    return state
