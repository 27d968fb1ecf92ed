"""What a machine says of itself to `ckptd check`: what it sees of what attempts need, and which releases it has."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from daemon.contract.jobs.processes import elsewhere
from daemon.contract.jobs.processes.elsewhere import PROBE, PROBED, Probe, Probed
from daemon.contract.version import __version__
from handlers.child.scratch import Scratch


def differing_from(versions: Mapping[str, str]) -> list[str]:
    """The releases here that are others than these, as clauses."""
    return [
        f"{name} {here or 'none'} instead of {there or 'none'}" for name, there in sorted(versions.items())
        if (here := version_of(name)) != (there or None)
    ]  # fmt: skip


def version_of(name: str) -> str | None:
    """The release of a distribution that is installed here."""
    if name == "ckptd":
        return __version__
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def probe(folder: Path) -> int:
    """Say what `ckptd check` wants to know of this machine."""
    asked = elsewhere.get(folder, PROBE, Probe)
    if asked is None:
        return 1
    others = {
        *(str(Path(path).parent) for path, text in asked.marks.items() if os.path.isdir(os.path.dirname(path)) and not _says(path, text)),
        *(path for path, names in asked.entries.items()
          if os.access(path, os.R_OK | os.X_OK) and not any(os.path.lexists(os.path.join(path, name)) for name in names)),
    }  # fmt: skip
    devices = sorted(path.name for path in Path("/dev").glob("nvidia[0-9]*"))
    elsewhere.put(folder, PROBED, Probed(
        host=socket.gethostname(), python=sys.executable, cores=len(os.sched_getaffinity(0)), time=time.time(),
        unseen=tuple(path for path in asked.read if not os.access(path, os.R_OK)),
        unwritable=tuple(path for path in asked.write if os.path.exists(path) and not os.access(path, os.W_OK)),
        others=tuple(sorted(others)), scratch=_why_no_scratch(asked.scratch),
        differing=tuple(differing_from(asked.versions)), gpus=tuple(devices),
    ))  # fmt: skip
    return 0


def _says(path: str, text: str) -> bool:
    """Whether a file is there with this text; True where it may not be read, which is another matter."""
    try:
        return Path(path).read_text(encoding="utf-8") == text
    except (FileNotFoundError, ValueError):
        return False
    except OSError:
        return True


def _why_no_scratch(scratch: str) -> str:
    """Why attempts can't write into their scratch folder here, as a clause, "" where they can, or have none."""
    if not scratch:
        return ""
    root = Path(os.path.expandvars(scratch))
    try:
        Scratch(root, f"probe-{os.getpid()}").close()
    except OSError as error:
        return f"{root}: {error.strerror}"
    return ""
