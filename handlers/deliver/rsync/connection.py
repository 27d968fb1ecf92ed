"""One connection of ssh, over which scripts run at the far end and rsync carries files. The key is never on a disk or a command line."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.parent import end_with_parent
from handlers.deliver.far_end import unreachable
from handlers.deliver.rsync.declaration import RsyncOptions

SOCKET = "ssh"
"""In the scratch folder, where all programs run: the path of a socket must be short."""
CONNECT_SECONDS = 30
ALIVE_SECONDS, ALIVE_TIMES = 15, 4
NO_CONNECTION = 255
"""Exit code of ssh itself."""
FULL = ("No space left on device", "Disk quota exceeded")
FORBIDDEN = ("Permission denied", "Read-only file system", "Operation not permitted")
UNTRUSTED = ("Host key verification failed", "IDENTIFICATION HAS CHANGED")


class Connection:
    """It is made at the first use, and again after it was lost."""

    def __init__(self, options: RsyncOptions, secret: str, scratch: Path) -> None:
        self._options, self._scratch = options, scratch
        self._key = _in_memory(secret) if secret else None
        self._master: subprocess.Popen[bytes] | None = None

    def close(self) -> None:
        """End it, and forget the key."""
        self._drop()
        if self._key is not None:
            os.close(self._key)
            self._key = None

    def run(self, operation: str, script: str, expected: Collection[int] = (0,)) -> tuple[int, bytes]:
        """Run a script of sh in the target's folder; gives its exit code, one of `expected`, and what it printed. Raises CkptdError."""
        self._connect(operation)
        process = self.start(["sh", "-s"], stdin=subprocess.PIPE)
        printed, said = process.communicate(self._inside(script))
        self.check(operation, process.returncode, said, expected)
        return process.returncode, printed

    def contents(self, operation: str, path: str) -> Iterator[bytes]:
        """A file of the target's folder. Raises CkptdError."""
        self._connect(operation)
        process = self.start(["sh", "-s"], stdin=subprocess.PIPE)
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(self._inside(f"exec cat {path}\n"))
                process.stdin.close()
            while part := process.stdout.read(1 << 20):
                yield part
            said = process.stderr.read()
            self.check(operation, process.wait(), said)
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()

    def hold(self, operation: str, script: str) -> None:
        """Run a script in the connection's own shell, where a lock that it takes is kept until the connection ends, or `release`."""
        self._connect(operation)
        if not self._tell(f"{{ cd {quoted(self._options.folder)} && {script}; }} && echo ready || exit 1\n", 600.0):
            raise self._lost(operation)

    def release(self, script: str) -> None:
        """Let go of what `hold` took."""
        if self._master is not None and not self._tell(f"{script}; echo ready\n", 60.0):
            self._drop()

    def rsync(self, operation: str, words: Sequence[str], source: Path, path: str) -> subprocess.Popen[bytes]:
        """Start rsync with a file and its place in the target's folder. Raises CkptdError."""
        self._connect(operation)
        shell = " ".join(self._ssh()[:-1])  # of plain words
        goal = f"far:{self._options.folder}/{path}"
        return self._start(["rsync", "--secluded-args", "-e", shell, *words, "--", str(source), goal])

    def start(self, words: Sequence[str], stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        """Start a program of the far end."""
        return self._start([*self._ssh(), *words], stdin)

    def check(self, operation: str, code: int, said: bytes, expected: Collection[int] = (0,)) -> None:
        """Raise CkptdError for an exit code that is not expected."""
        if code in expected:
            return
        if code == NO_CONNECTION or self._master is None or self._master.poll() is not None:
            raise self._lost(operation, said)
        raise error_of(operation, said, f"exit code {code}", self._options.to)

    def _ssh(self) -> list[str]:
        """ssh over the connection that is there, and over no other."""
        return ["ssh", "-F", "none", "-S", SOCKET, "-o", "ControlMaster=no", "-o", "ProxyCommand=false", "-T", "far"]

    def _start(self, words: Sequence[str], stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        if shutil.which(words[0]) is None:
            remedy = f"install {words[0]} (Debian: apt-get install rsync openssh-client)"
            raise Permanent(FaultCode.DELIVERY_LIBRARY, "deliver by rsync", f"there is no program {words[0]}", remedy)
        return subprocess.Popen(
            words, cwd=self._scratch, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "LC_ALL": "C"},
            preexec_fn=end_with_parent,
        )  # fmt: skip

    def _inside(self, script: str) -> bytes:
        """A script of which nothing is run unless all of it arrives: where this process is killed a shell would run a part of a line."""
        text = f"{{ LC_ALL=C; export LC_ALL; cd {quoted(self._options.folder)} || exit 70\nset -eu\n{script}\n}}\n"
        return text.encode("utf-8", "surrogateescape")

    def _connect(self, operation: str) -> None:
        if self._master is not None and self._master.poll() is None:
            return
        self._drop()
        options = self._options
        settings = {
            "BatchMode": "yes", "StrictHostKeyChecking": "yes", "LogLevel": "ERROR", "ConnectTimeout": CONNECT_SECONDS,
            "ServerAliveInterval": ALIVE_SECONDS, "ServerAliveCountMax": ALIVE_TIMES,
            "ControlMaster": "yes", "ControlPath": SOCKET, "ControlPersist": "no",
        }  # fmt: skip
        if options.known_hosts:
            settings |= {"UserKnownHostsFile": f'"{options.known_hosts}"', "GlobalKnownHostsFile": "/dev/null"}
        if self._key is not None:
            settings |= {"IdentitiesOnly": "yes", "IdentityAgent": "none"}
        words = ["ssh", *(("-F", options.ssh_config) if options.ssh_config else ())]
        words += [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        words += ["-i", f"/proc/{os.getpid()}/fd/{self._key}"] if self._key is not None else []
        words += ["-p", str(options.port)] if options.port else []
        self._master = self._start([*words, "-T", "--", options.host, "exec sh"], subprocess.PIPE)
        if not self._tell("LC_ALL=C; export LC_ALL; echo ready\n", CONNECT_SECONDS + 30.0):
            raise self._lost(operation)

    def _tell(self, script: str, seconds: float) -> bool:
        """Have the connection's own shell do something, and wait for its "ready"."""
        master = self._master
        assert master is not None and master.stdin is not None and master.stdout is not None
        with contextlib.suppress(OSError):
            master.stdin.write(script.encode("utf-8", "surrogateescape"))
            master.stdin.flush()
            end, heard = time.monotonic() + seconds, b""
            while select.select([master.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
                if not (part := os.read(master.stdout.fileno(), 1 << 12)):
                    break
                heard += part
                if b"ready\n" in heard:
                    return True
        return False

    def _lost(self, operation: str, said: bytes = b"") -> CkptdError:
        """The error of a connection that could not be made, or is gone."""
        return error_of(operation, self._drop() + said, "the connection was cut", self._options.to, connected=False)

    def _drop(self) -> bytes:
        """End the connection; gives what ssh said."""
        if (master := self._master) is None:
            return b""
        self._master = None
        master.kill()
        _, said = master.communicate()
        (self._scratch / SOCKET).unlink(missing_ok=True)
        return said


def error_of(operation: str, said: bytes, otherwise: str, where: str, connected: bool = True) -> CkptdError:
    """The error that words of ssh, rsync or a script stand for."""
    text = said.decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip(" @\r")]
    telling = [line for line in lines if any(mark in line for mark in (*FULL, *FORBIDDEN, *UNTRUSTED))]
    cause = (telling or lines or [otherwise])[0 if telling else -1][:300]
    if any(mark in text for mark in FULL):
        remedy = "free space there, or let the target's `keep` remove older versions"
        return Retryable(FaultCode.DELIVERY_FULL, operation, cause, remedy, path=where)
    if any(mark in text for mark in UNTRUSTED):
        remedy = "compare the machine's key with `ssh-keyscan`, and write it into the target's known_hosts"
        return Permanent(FaultCode.DELIVERY_REFUSED, operation, cause, remedy, path=where)
    if any(mark in text for mark in FORBIDDEN):
        remedy = "give the target's key, or its user there, the right to write into that folder"
        return Permanent(FaultCode.DELIVERY_REFUSED, operation, cause, remedy, path=where)
    if connected:
        remedy = "look at the folder at the far end; the delivery is tried again by itself"
        return Retryable(FaultCode.DELIVERY_FAR_END, operation, cause, remedy, path=where)
    return unreachable(operation, Exception(cause), where)


def quoted(text: str) -> str:
    """A word of sh; a path is never taken for an option."""
    return "'" + ("./" if text.startswith("-") else "") + text.replace("'", "'\"'\"'") + "'"


def _in_memory(secret: str) -> int:
    """A file that has no name and ends with this process, which ssh reads as a key's."""
    handle = os.memfd_create("key", os.MFD_CLOEXEC)
    os.fchmod(handle, 0o600)
    os.write(handle, (secret.rstrip("\n") + "\n").encode())
    return handle
