"""What the output of an installer that failed means, as one sentence with what to do.

Called by `daemon.toolchains.build` and the installers beside this file. The installers change their words from release to release; what is
not understood is told as they said it.
"""

from __future__ import annotations

import re
import sys

from daemon.contract.faults.errors import CkptdError, Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from daemon.toolchains.installers.attempt import Build

_NETWORK = re.compile(
    r"NewConnectionError|Failed to establish a new connection|name resolution|Name or service not known|ConnectTimeout|ReadTimeout|"
    r"Network is unreachable|ProxyError|Max retries exceeded|SSLError|Connection(?: was)? (?:refused|reset|aborted|broken)|"
    r"RemoteDisconnected|IncompleteRead",
    re.IGNORECASE,
)
_NO_CONNECTION = re.compile(r"NewConnectionError|Failed to establish|name resolution|ConnectTimeout|ProxyError", re.IGNORECASE)
_FULL = re.compile(r"No space left on device|Disk quota exceeded")
_NOT_WHOLE = re.compile(r"DO NOT MATCH THE HASHES|Hash mismatch for|(?:Wheel|wheel) .+ is invalid|has an invalid wheel|BadZipFile")
"""What older releases of pip say of a file whose connection broke: they take what came for the whole."""
_NOT_FOUND = re.compile(r"No matching distribution found for (.+)")
_NO_COMPILER = re.compile(r"No CMAKE_C(XX)?_COMPILER could be found|CMAKE_C(XX)?_COMPILER not set|(Could not|Unable to) find (a )?compiler")


def missing_in(text: str) -> str | None:
    """The requirement that no place has which the installer looked at, where that is why it failed."""
    match = None if _NETWORK.search(text) or _FULL.search(text) else _NOT_FOUND.search(text)
    return match[1].strip() if match else None


def broke_off(text: str) -> bool:
    """Whether an installer failed because a connection broke, so that it may go on at once; not where there was none."""
    broken = _NETWORK.search(text) or _NOT_WHOLE.search(text)
    return broken is not None and not _FULL.search(text) and not _NO_CONNECTION.search(text)


def no_venv(build: Build, text: str) -> CkptdError:
    """Why there is no environment."""
    if "ensurepip" in text:
        remedy = "install your system's package for it (python3-venv on Debian and Ubuntu)"
        return Permanent(
            FaultCode.NO_VENV, build.operation, "this Python can't create virtual environments: its ensurepip is missing", remedy
        )
    return unclear(build, text)


def no_packages(build: Build, text: str) -> CkptdError:
    """Why there are no packages."""
    if _FULL.search(text):
        return Retryable(
            FaultCode.DISK_FULL, build.operation, "the disk is full", "free space there", path=build.folder.parent, details=text
        )
    if _NETWORK.search(text):
        remedy = (
            "check the network, and pip's index, proxy and certificate (`pip config list`), then try again; what was fetched so far is kept"
        )
        return Retryable(
            FaultCode.NO_NETWORK, build.operation, "pip could not reach its package index", remedy, path=build.log, details=text
        )
    if _NOT_WHOLE.search(text):
        cause = "a file that came is not the one that the index promised: the connection broke, or a proxy gave another file"
        remedy = "try again; what was fetched so far is kept. If it stays so, look at the index and the proxy (`pip config list`)"
        return Retryable(FaultCode.INSTALL_FAILED, build.operation, cause, remedy, path=build.log, details=text)
    if requirement := missing_in(text):
        cause = f"pip's package index has no {requirement} for Python {sys.version.split()[0]} on this machine"
        return Permanent(
            FaultCode.NO_PACKAGE, build.operation, cause, "configure pip with an index that has it (`pip config list`)",
            path=build.log, details=text,
        )  # fmt: skip
    if _NO_COMPILER.search(text):
        remedy = "install one (build-essential on Debian and Ubuntu), or configure pip with an index that has a wheel (`pip config list`)"
        cause = "one of its packages is built from source, and this box has no C and C++ compiler"
        return Permanent(FaultCode.INSTALL_FAILED, build.operation, cause, remedy, path=build.log, details=text)
    return unclear(build, text)


def unclear(build: Build, text: str) -> CkptdError:
    """The line with the error, as it was said."""
    cause = line_of(text)
    return Permanent(FaultCode.INSTALL_FAILED, build.operation, cause, "read the log", path=build.log, details=text)


def line_of(text: str) -> str:
    """The line of an installer's output that says why it failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    at = next((number for number, line in enumerate(lines) if line.lower().startswith("error:")), len(lines) - 1)
    return re.sub("^error: ", "", lines[at], flags=re.IGNORECASE).rstrip(".") if lines else "it printed nothing"
