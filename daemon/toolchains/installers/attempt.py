"""One installation under way, and the commands that it runs: what they say goes to its log, and what they fetch is told.

Used by `daemon.toolchains.build` and by the installers beside this file.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.faults.errors import CkptdError
from daemon.system.processes.commands import run_to_end
from daemon.toolchains.registry import Definition

TAIL = 6000
"""Bytes of a command's output that are looked at for the reason of its failure."""
_FORGET = frozenset({
    "PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIREMENT", "PIP_WHEEL_DIR",
})  # fmt: skip
"""Variables that would make pip install somewhere else."""
_NOTICES = (
    (re.compile(r"(?:Collecting|Downloading) (\S+)"), "fetching"),
    (re.compile(r"Processing (\S+)"), "reading"),
    (re.compile(r"Building wheel for (\S+) .*: started"), "building"),
)
Say = Callable[[str], None]


@dataclass(frozen=True)
class Build:
    """One installation under way."""

    definition: Definition
    folder: Path
    log: Path
    lock: int
    """Descriptor of the toolchain's lock, which every command that is run holds too."""
    say: Say

    @property
    def operation(self) -> str:
        """What an error says was being done."""
        return f"install the toolchain {self.definition.name}"

    @property
    def python(self) -> str:
        """The interpreter of the environment that is being made."""
        return str(self.folder / "bin" / "python")

    @property
    def pip(self) -> tuple[str, ...]:
        """The command of that environment's pip."""
        return (self.python, "-I", "-m", "pip", "--no-input", "--disable-pip-version-check")


def environment(temporary: Path | None = None, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a command: ours, less those that would lead it elsewhere. `temporary`: where large files pass through."""
    variables = {key: value for key, value in os.environ.items() if key not in _FORGET} | dict(more or {})
    return variables if temporary is None else {**variables, "TMPDIR": str(temporary)}


def execute(build: Build, command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a command that ends with us; gives its exit code and the end of what it said."""
    said = bytearray()
    with open(build.log, "ab") as log:

        def heard(line: bytes) -> None:
            said.extend(line)
            del said[:-TAIL]
            log.write(line)
            notice(line, build.say)

        code = run_to_end(command, heard, environment=variables, stderr=subprocess.STDOUT, pass_fds=(build.lock,))
    return code, said.decode(errors="replace")


def run(
    build: Build, command: Sequence[str], understand: Callable[[Build, str], CkptdError], temporary: Path | None = None,
) -> None:  # fmt: skip
    """Run a command; an error is what `understand` makes of its output."""
    code, said = execute(build, command, environment(temporary))
    if code != 0:
        raise understand(build, said)


def notice(line: bytes, say: Say) -> None:
    """Tell what a line of an installer's output says of its progress."""
    text = line.decode(errors="replace").strip()
    for pattern, doing in _NOTICES:
        if match := pattern.match(text):
            return say(f"{doing} {match[1].rsplit('/', 1)[-1]}")
