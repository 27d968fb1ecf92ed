"""Packages of npm in a toolchain: locked with the digest of each, installed into its folder, and looked at again by its check.

Called by `build` and `registry`. A toolchain has them where NAME.package.json and NAME.package-lock.json lie beside its NAME.toml. npm is
that of this box, with the user's configuration (registry, proxies, certificates). No script of a package is run.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode

FILES = ("package.json", "package-lock.json")
INSTALLED = Path("node_modules", ".package-lock.json")
"""What npm writes of what it has installed."""
PREFIX = "npm:"
"""In front of a package's name where the packages of pip are listed too."""
_COMMAND = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=http")
_NETWORK = re.compile(
    r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|ERR_SOCKET_TIMEOUT|UNABLE_TO_\w+|SELF_SIGNED_CERT_IN_CHAIN)\b"
)
_FULL = re.compile(r"\b(ENOSPC|EDQUOT)\b")
_MISSING = re.compile(r"(?:E404|ETARGET|notarget).*?(\S+@\S+)", re.DOTALL)
_CHANGED = re.compile(r"\bEINTEGRITY\b")

Run = Callable[[list[str], Callable[[str], CkptdError]], None]


def locked(requirements: Path) -> tuple[Path, ...]:
    """The files that lock a toolchain's packages of npm, beside its `requirements`; none where it has no such packages."""
    return tuple(path for name in FILES if (path := requirements.with_suffix(f".{name}")).is_file())


def digested(requirements: Path) -> list[object]:
    """What of them counts into the toolchain's digest: the meaning of the files, not how they are written."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in locked(requirements)]


def install(requirements: Path, folder: Path, scratch: Path, log: Path, operation: str, run: Run) -> None:
    """Install them into `folder`, by `run`, which is given a command and what its output means. Raises CkptdError."""
    files = locked(requirements)
    if not files:
        return
    for path, name in zip(files, FILES, strict=True):
        shutil.copyfile(path, folder / name)
    command = ["npm", *_COMMAND, "--prefix", str(folder), "--cache", str(scratch / "npm")]
    run(command, lambda text: _failed(operation, log, text))


def _failed(operation: str, log: Path, text: str) -> CkptdError:
    """What npm's output means."""
    if _FULL.search(text):
        return Retryable(FaultCode.DISK_FULL, operation, "the disk is full", "free space there", path=log.parent, details=text)
    if _CHANGED.search(text):
        cause = "npm's registry gave a package that is not the one that is locked"
        return Permanent(FaultCode.INSTALL_FAILED, operation, cause, "use a registry with the original packages", path=log, details=text)
    if _NETWORK.search(text):
        remedy = "check the network, and npm's registry, proxy and certificate (`npm config list`), then try again"
        return Retryable(FaultCode.NO_NETWORK, operation, "npm could not reach its registry", remedy, path=log, details=text)
    if match := _MISSING.search(text):
        wanted = match[1].strip(".'")
        cause = f"npm's registry has no {wanted}"
        remedy = "configure npm with a registry that has it (`npm config list`)"
        return Permanent(FaultCode.NO_PACKAGE, operation, cause, remedy, path=log, details=text)
    lines = [line for line in text.splitlines() if line.startswith("npm error ")]
    cause = lines[0].removeprefix("npm error ").strip().rstrip(".") if lines else "npm failed"
    return Permanent(FaultCode.INSTALL_FAILED, operation, cause, "read the log", path=log, details=text)


def packages(folder: Path) -> dict[str, str]:
    """`npm:NAME` → version of all that npm has installed in a toolchain, as it lies there now."""
    try:
        known = json.loads((folder / INSTALLED).read_text(encoding="utf-8"))["packages"]
    except (OSError, ValueError, KeyError):
        return {}
    return {PREFIX + place.removeprefix("node_modules/"): _version(folder / place) for place in sorted(known)}


def _version(place: Path) -> str:
    try:
        return str(json.loads((place / "package.json").read_text(encoding="utf-8"))["version"])
    except (OSError, ValueError, KeyError):
        return "gone"
