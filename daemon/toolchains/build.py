"""Builds a toolchain in a folder that does not count as a toolchain yet: venv, locked packages, probe, manifest.

Called by `daemon.toolchains.install`, which holds the lock and gives the folder its name. pip is the venv's own, with the user's
configuration (index, proxies, certificates); what it says goes to a log, and its failures become one sentence each.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from daemon.contract import failpoints
from daemon.contract.errors import CkptdError, Permanent, Retryable
from daemon.contract.fault_codes import FaultCode
from daemon.contract.files import files_below, remove_tree, write_atomic
from daemon.system.commands import run_to_end
from daemon.toolchains.registry import IN_USE, MANIFEST, Definition, Manifest, command_in

PROBE_SECONDS = 300.0
EXIT_BAD_JOB = 65
"""What our entry for stages says when it is given no job file: all that it needs could be imported."""
_TAIL = 6000
_FORGET = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIREMENT")
"""Variables that would make pip install somewhere else."""
_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish a new connection|name resolution|Name or service not known|ConnectTimeout|ReadTimeout|"
    r"Network is unreachable|ProxyError|Max retries exceeded|SSLError|Connection(?: was)? (?:refused|reset|aborted)|RemoteDisconnected"
)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_NOT_FOUND = re.compile(r"No matching distribution found for (.+)")
_NO_COMPILER = re.compile(r"No CMAKE_C(XX)?_COMPILER could be found|CMAKE_C(XX)?_COMPILER not set|(Could not|Unable to) find (a )?compiler")
_NOTICES = (
    (re.compile(r"Collecting (\S+)"), "fetching"),
    (re.compile(r"Processing (\S+)"), "reading"),
    (re.compile(r"Building wheel for (\S+) .*: started"), "building"),
    (re.compile(r"(Installing collected packages)"), "unpacking what was fetched:"),
)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Build:
    """One installation under way."""

    definition: Definition
    folder: Path
    log: Path
    lock: int
    say: Say

    @property
    def operation(self) -> str:
        """What an error says was being done."""
        return f"install the toolchain {self.definition.name}"


def make(build: Build) -> None:
    """venv, packages, probe, manifest, in a folder that nobody takes for a toolchain."""
    started = time.monotonic()
    build.log.write_bytes(b"")
    build.say("making its environment")
    _run(build, [sys.executable, "-I", "-m", "venv", str(build.folder)], _no_venv)
    failpoints.point("toolchain.venv")
    scratch = build.folder / ".tmp"
    scratch.mkdir()
    build.say("fetching its packages")
    python = str(build.folder / "bin" / "python")
    pip = (python, "-I", "-m", "pip", "--no-input", "--disable-pip-version-check", "install", "--progress-bar", "off")
    _run(build, [*pip, "-r", str(build.definition.requirements)], _no_packages, scratch)
    remove_tree(scratch)
    _remove_scripts(build.folder / "bin")
    (build.folder / IN_USE).touch()
    failpoints.point("toolchain.packages")
    build.say("probing it")
    probed = probe(
        build.definition, build.folder, build.operation, f"read {build.log}; report it if the index provided the locked versions"
    )
    manifest = Manifest(
        name=build.definition.name, digest=build.definition.digest, python=sys.version.split()[0],
        installed=datetime.now(UTC).isoformat(timespec="seconds"), seconds=round(time.monotonic() - started, 1),
        size=sum(path.stat().st_size for path in files_below(build.folder)), packages=packages(build.folder), probe=probed,
    )  # fmt: skip
    write_atomic(build.folder / MANIFEST, manifest.model_dump_json(indent=1))
    _sync(build.folder)
    failpoints.point("toolchain.whole")


def _run(
    build: Build, command: Sequence[str], understand: Callable[[Build, str], CkptdError], temporary: Path | None = None
) -> None:  # fmt: skip
    """Run a command that ends with us, its output in the log; an error is what `understand` makes of the output."""
    environment = {key: value for key, value in os.environ.items() if key not in _FORGET}
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)  # large wheels pass through here: on the disk that was looked at
    with open(build.log, "ab") as log:

        def heard(line: bytes) -> None:
            log.write(line)
            _notice(line.decode(errors="replace"), build.say)

        code = run_to_end(command, heard, environment=environment, stderr=subprocess.STDOUT, pass_fds=(build.lock,))
    if code != 0:
        raise understand(build, build.log.read_bytes()[-_TAIL:].decode(errors="replace"))


def _notice(line: str, say: Say) -> None:
    for pattern, doing in _NOTICES:
        if found := pattern.match(line.strip()):
            say(f"{doing} {found[1].rsplit('/', 1)[-1]}" if not doing.endswith(":") else doing.rstrip(":"))


def _no_venv(build: Build, text: str) -> CkptdError:
    if "ensurepip" in text:
        remedy = "install your system's package for it (python3-venv on Debian and Ubuntu)"
        return Permanent(
            FaultCode.NO_VENV, build.operation, "this Python can't create virtual environments: its ensurepip is missing", remedy
        )
    return _unclear(build, text)


def _no_packages(build: Build, text: str) -> CkptdError:
    """What pip's output means."""
    if _FULL.search(text):
        return Retryable(
            FaultCode.DISK_FULL, build.operation, "the disk is full", "free space there", path=build.folder.parent, details=text
        )
    if _NETWORK.search(text):
        remedy = "check the network, and pip's index, proxy and certificate (`pip config list`), then try again"
        return Retryable(
            FaultCode.NO_NETWORK, build.operation, "pip could not reach its package index", remedy, path=build.log, details=text
        )
    if found := _NOT_FOUND.search(text):
        cause = f"pip's package index has no {found[1].strip()} for Python {sys.version.split()[0]} on this machine"
        return Permanent(
            FaultCode.NO_PACKAGE, build.operation, cause, "configure pip with an index that has it (`pip config list`)",
            path=build.log, details=text,
        )  # fmt: skip
    if _NO_COMPILER.search(text):
        remedy = "install one (build-essential on Debian and Ubuntu), or configure pip with an index that has a wheel (`pip config list`)"
        cause = "one of its packages is built from source, and this box has no C and C++ compiler"
        return Permanent(FaultCode.INSTALL_FAILED, build.operation, cause, remedy, path=build.log, details=text)
    return _unclear(build, text)


def _unclear(build: Build, text: str) -> CkptdError:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("ERROR:")), lines[-1] if lines else "it printed nothing")
    cause = said.removeprefix("ERROR: ").rstrip(".")
    return Permanent(FaultCode.INSTALL_FAILED, build.operation, cause, "read the log", path=build.log, details=text)


def _remove_scripts(folder: Path) -> None:
    """Remove commands whose first line names the folder that is renamed next: a toolchain is used by its Python alone."""
    for path in folder.iterdir():
        if not path.is_symlink() and not path.name.startswith("python"):
            path.unlink()


def packages(folder: Path) -> dict[str, str]:
    """Distribution → version of all that is installed in an environment."""
    places = [str(path) for path in folder.glob("lib*/python*/site-packages") if not path.parents[1].is_symlink()]
    return dict(sorted((one.metadata["Name"], one.version) for one in importlib.metadata.distributions(path=places)))


def probe(definition: Definition, folder: Path, operation: str, remedy: str) -> dict[str, object]:
    """Run the entry for stages, which needs no more than to be imported, and the toolchain's own probe; gives its answer."""
    entry = _inside([*command_in(folder, "handlers"), ""], operation, remedy, folder)
    if entry.returncode != EXIT_BAD_JOB:
        raise _failed_probe(entry, "its Python can't run ckptd's entry for stages", operation, remedy, folder)
    answer = folder / ".probe.json"
    try:
        done = _inside([*command_in(folder, definition.probe), "--answer", str(answer)], operation, remedy, folder)
        said = json.loads(answer.read_bytes()) if answer.exists() else {}
    finally:
        answer.unlink(missing_ok=True)
    if done.returncode != 0 or "answer" not in said:
        error = said.get("error", {})
        why = f"{error['type']}: {error['message'].splitlines()[0] if error['message'] else ''}" if error else "it crashed"
        raise _failed_probe(done, f"its probe failed ({why.strip()})", operation, remedy, folder)
    result: dict[str, object] = said["answer"]
    return result


def _inside(command: list[str], operation: str, remedy: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    quiet = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "ORT_DISABLE_TELEMETRY": "1"}
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **quiet},
            timeout=PROBE_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        cause = f"its probe had not finished after {PROBE_SECONDS:.0f} s"
        raise Permanent(FaultCode.PROBE_FAILED, operation, cause, remedy, path=folder) from None


def _failed_probe(done: subprocess.CompletedProcess[bytes], cause: str, operation: str, remedy: str, folder: Path) -> Permanent:
    details = f"exit code {done.returncode}\n{done.stdout[-_TAIL:].decode(errors='replace')}"
    return Permanent(FaultCode.PROBE_FAILED, operation, cause, remedy, path=folder, details=details)


def _sync(folder: Path) -> None:
    """Make a file system durable: of tens of thousands of small files that is quicker than one after the other."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)
