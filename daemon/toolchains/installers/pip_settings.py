"""What the user's configuration of pip says, as pip itself reads it: which packages it leads to. Used by `pip` beside this file."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import digest_of
from daemon.toolchains.installers.attempt import TAIL, Build, environment
from daemon.toolchains.installers.failures import line_of

READ_SECONDS = 60.0
_SECTIONS = ("global", "install", ":env:")
"""What counts for `pip install`, weakest first."""
_OF_THE_WAY = frozenset({
    "cert", "client-cert", "proxy", "trusted-host", "timeout", "default-timeout", "retries", "resume-retries", "keyring-provider",
})  # fmt: skip
"""How an index is reached; not what it leads to."""
_INDIFFERENT = frozenset({
    "break-system-packages", "cache-dir", "compile", "config-file", "debug", "disable-pip-version-check", "exists-action",
    "force-reinstall", "ignore-installed", "isolated", "log", "no-cache-dir", "no-clean", "no-color", "no-compile",
    "no-input", "no-python-version-warning", "no-warn-conflicts", "no-warn-script-location",
    "progress-bar", "quiet", "require-virtualenv", "root-user-action", "upgrade",
    "upgrade-strategy", "use-pep517", "verbose", "version-check",
})  # fmt: skip
"""What neither decides which packages come nor how."""


@dataclass(frozen=True)
class PipSettings:
    """Key → value of all that counts for `pip install`, keys without their dashes in front."""

    values: dict[str, str]
    of_install: dict[str, str]
    """Those that stand in the section of `pip install` alone, which other commands of pip must be told."""

    @property
    def digest(self) -> str:
        """Of what decides which packages come, the contents of local constraints included."""
        choosing = {key: value for key, value in self.values.items() if key not in _OF_THE_WAY | _INDIFFERENT}
        contents = [
            path.read_text(errors="replace", encoding="utf-8")
            for path in map(Path, self.values.get("constraint", "").split())
            if path.is_file()
        ]
        return digest_of([choosing, contents])

    def for_pip(self) -> dict[str, str]:
        """Variables that make other commands of pip look where `pip install` does."""
        return {f"PIP_{key.upper().replace('-', '_')}": " ".join(value.split()) for key, value in self.of_install.items()}


def read(build: Build) -> PipSettings:
    """Ask the new environment's pip. Raises Permanent where its configuration can't be read."""
    done = subprocess.run(
        [*build.pip, "config", "list"], stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8",
        errors="replace", env=environment(), timeout=READ_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise Permanent(
            FaultCode.INSTALL_FAILED, build.operation, f"pip can't read its configuration: {line_of(done.stderr)}",
            "correct it (`pip config debug` shows the files)", details=done.stderr[-TAIL:],
        )  # fmt: skip
    return parsed(done.stdout)


def parsed(text: str) -> PipSettings:
    """The settings in what `pip config list` prints."""
    sections: dict[str, dict[str, str]] = {name: {} for name in _SECTIONS}
    for line in text.splitlines():
        place, equals, value = line.partition("=")
        section, _, key = place.rpartition(".")
        if equals and section in sections:
            sections[section][key.lstrip("-").replace("_", "-")] = str(ast.literal_eval(value))
    values = sections["global"] | sections["install"] | sections[":env:"]
    return PipSettings(values, {key: value for key, value in sections["install"].items() if key not in sections[":env:"]})
