"""Builds a toolchain in a folder that does not count as a toolchain yet: venv, locked packages (of pip, and of npm), probe, manifest.

Called by `daemon.toolchains.install`, which holds the lock and gives the folder its name. The packages of Python come by
`daemon.toolchains.installers`, with the user's configuration of pip (index, proxies, certificates); what is said goes to a log, and
failures become one sentence each.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from daemon.contract.disk import failpoints
from daemon.contract.disk.files import files_below, write_atomic
from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.toolchains import npm, programs, records
from daemon.toolchains.installers import downloads, pip
from daemon.toolchains.installers.attempt import TAIL, Build, run
from daemon.toolchains.installers.failures import no_venv
from daemon.toolchains.registry import IN_USE, MANIFEST, Definition, Manifest, command_in

PROBE_SECONDS = 300.0
EXIT_BAD_JOB = 65
"""What our entry for stages says when it is given no job file: all that it needs could be imported."""


def make(build: Build) -> None:
    """venv, packages, probe, manifest, in a folder that nobody takes for a toolchain."""
    started = time.monotonic()
    programs.check(build.definition, build.operation)
    build.log.write_bytes(b"")
    build.say("making its environment")
    run(build, [sys.executable, "-I", "-m", "venv", str(build.folder)], no_venv)
    failpoints.point("toolchain.venv")
    build.say("fetching its packages")
    version, wheels = pip.install(build)
    (kept,) = downloads.of(build.folder.parent, build.definition.name)
    npm.install(
        build.definition.requirements, build.folder, kept, build.log, build.operation,
        lambda command, meaning: run(build, command, lambda _, text: meaning(text), kept),
    )  # fmt: skip
    _remove_scripts(build.folder / "bin")
    (build.folder / IN_USE).touch()
    failpoints.point("toolchain.packages")
    if unlike := records.differing(build.folder):
        build.say(f"not as its packages' own records say: {records.summarize(unlike)}")
    build.say("probing it")
    probed = probe(
        build.definition, build.folder, build.operation, f"read {build.log}; report it if the index provided the locked versions"
    )
    manifest = Manifest(
        name=build.definition.name, digest=build.definition.digest, python=sys.version.split()[0],
        installed=datetime.now(UTC).isoformat(timespec="seconds"), seconds=round(time.monotonic() - started, 1),
        size=sum(path.stat().st_size for path in files_below(build.folder)), packages=packages(build.folder), probe=probed,
        installer=f"pip {version}", wheels=wheels, unlike=unlike,
    )  # fmt: skip
    write_atomic(build.folder / MANIFEST, manifest.model_dump_json(indent=1))
    _sync(build.folder)
    failpoints.point("toolchain.whole")


def _remove_scripts(folder: Path) -> None:
    """Remove commands whose first line names the folder that is renamed next: a toolchain is used by its Python alone."""
    for path in folder.iterdir():
        if not path.is_symlink() and not path.name.startswith("python"):
            path.unlink()


def packages(folder: Path) -> dict[str, str]:
    """Distribution → version of all that is installed in an environment, and `npm:NAME` → version of packages of npm."""
    places = [str(path) for path in folder.glob("lib*/python*/site-packages") if not path.parents[1].is_symlink()]
    return dict(
        sorted((distribution.metadata["Name"], distribution.version) for distribution in importlib.metadata.distributions(path=places))
    ) | npm.packages(folder)


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
    details = f"exit code {done.returncode}\n{done.stdout[-TAIL:].decode(errors='replace')}"
    return Permanent(FaultCode.PROBE_FAILED, operation, cause, remedy, path=folder, details=details)


def _sync(folder: Path) -> None:
    """Make a file system durable: of tens of thousands of small files that is quicker than one after the other."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)
