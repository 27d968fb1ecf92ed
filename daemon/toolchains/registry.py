"""Toolchains: environments of their own for exporters whose requirements contradict ours. What is known, what is installed.

A toolchain is defined by two files in handlers/toolchains: NAME.toml (what it is) and NAME.txt (its locked packages). Installed, it is
the folder NAME-DIGEST below the state directory's `toolchains`, with a manifest that is written last. Used by the runner (may a stage
start, with which command), by `ckptd formats`, `check` and `toolchain`; `daemon.toolchains.install` makes and removes the folders.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ByteSize, ValidationError

import daemon
from daemon.contract.errors import Fault, UsageError
from daemon.contract.fault_codes import FaultCode
from daemon.contract.files import temporary_of
from daemon.contract.jobs import plan
from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Frozen, digest_of

DEFINITIONS = Path(daemon.__file__).parents[1] / "handlers" / "toolchains"
BOOTSTRAP = DEFINITIONS / "bootstrap.py"
MANIFEST = "toolchain.json"
IN_USE = "in-use"
HANDLERS = (sys.executable, "-m", "handlers")
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Definition(Frozen):
    """What the project knows of a toolchain before it is installed."""

    name: str
    about: str
    disk: ByteSize
    """Bytes that installing takes below the state directory at its peak."""
    seconds: float
    probe: str
    """Module that is run inside: exit code 0 and an answer mean that it works."""
    requirements: Path

    @property
    def digest(self) -> str:
        """Digest of what is installed by it: the requirement lines, and the Python that they are installed for."""
        lines = [line.split(" #")[0].strip() for line in self.requirements.read_text().splitlines()]
        return digest_of([[line for line in lines if line and not line.startswith("#")], _PYTHON, platform.machine()])[:12]


class Manifest(Frozen):
    """The description of an installed toolchain; its file is written last."""

    name: str
    digest: str
    python: str
    installed: str
    """ISO 8601 in UTC."""
    seconds: float
    """Duration of the installation."""
    size: int
    """Size of all files in bytes."""
    packages: dict[str, str]
    """Distribution → version, for all installed distributions."""
    probe: dict[str, object]
    """The result of its test."""


@dataclass(frozen=True)
class Installed:
    """One toolchain's folder."""

    folder: Path
    manifest: Manifest
    current: bool
    """Whether it was made from the present requirements."""

    @property
    def python(self) -> Path:
        """The interpreter in it."""
        return self.folder / "bin" / "python"

    @property
    def broken(self) -> str:
        """Why it can't be used although it is there; "" where no reason is known. Cheap: nothing is run."""
        return "" if os.access(self.python, os.X_OK) else "the Python that it was created with no longer exists"


def definitions(folder: Path = DEFINITIONS) -> dict[str, Definition]:
    """Name → definition of every toolchain that the project knows."""
    found = {}
    for path in sorted(folder.glob("*.toml")):
        value = tomllib.loads(path.read_text())
        found[path.stem] = Definition(name=path.stem, requirements=path.with_suffix(".txt"), **value)
    return found


class Toolchains:
    """The toolchains below one state directory. `known`: what could be installed."""

    def __init__(self, state: Path, known: dict[str, Definition] | None = None) -> None:
        self.home = state / "toolchains"
        self.known = definitions() if known is None else known

    def definition(self, name: str) -> Definition:
        """Raises UsageError for a name that is not known."""
        if name not in self.known:
            known = ", ".join(self.known) or "none"
            raise UsageError(FaultCode.NO_SUCH_TOOLCHAIN, "find the toolchain", f"there is no toolchain {name!r}", f"use one of: {known}")
        return self.known[name]

    def folder(self, name: str) -> Path:
        """Where the toolchain lies once it is installed."""
        return self.home / f"{name}-{self.definition(name).digest}"

    def versions(self, name: str) -> list[Installed]:
        """All that is there of a toolchain: the current one, and those that earlier requirements made."""
        wanted = self.folder(name)
        found = [(path, _manifest(path)) for path in sorted(self.home.glob(f"{name}-*"))]
        return [Installed(path, one, path == wanted) for path, one in found if one is not None and one.name == name]

    def get(self, name: str) -> Installed | None:
        """The toolchain as it can be used now, else None."""
        return next((one for one in self.versions(name) if one.current and not one.broken), None)

    def lacking(self, name: str, operation: str) -> Fault | None:
        """Why a stage can't run in this toolchain ("" is no toolchain), with the command that fixes it; None if it can."""
        known = name in self.known  # a stage of another package's may name any
        if not name or (known and self.get(name) is not None):
            return None
        cause = f"the toolchain {name} is {self.state(name)}"
        remedy = (
            f"run `ckptd toolchain install {name}`"
            if known
            else "leave the variants that need it out of export.variants, and tell their authors"
        )
        return Fault(code=FaultCode.TOOLCHAIN_MISSING, operation=operation, cause=cause, remedy=remedy)

    def state(self, name: str) -> str:
        """How a toolchain is, as the end of "it is …": installed, not installed, damaged, …"""
        if name not in self.known:
            return "not known to this version of ckptd"
        there = self.versions(name)
        current = next((one for one in there if one.current), None)
        if current is None:
            return "of an earlier version of ckptd" if there else "not installed"
        return f"damaged ({current.broken})" if current.broken else "installed"

    def offer(self, cache: Path) -> None:
        """Let stages find the installed toolchains: `CACHE/toolchains/NAME` leads to each. Raises OSError."""
        offered = cache / "toolchains"
        for name in self.known:
            link, wanted = offered / name, self.get(name)
            target = os.readlink(link) if link.is_symlink() else None
            if wanted is None and target is not None:
                link.unlink(missing_ok=True)
            elif wanted is not None and target != str(wanted.folder):
                offered.mkdir(parents=True, exist_ok=True)
                fresh = temporary_of(link)
                fresh.unlink(missing_ok=True)
                fresh.symlink_to(wanted.folder)
                fresh.replace(link)


@dataclass(frozen=True)
class ToolchainFolder:
    """One folder of a toolchain; the fields from `name` on are its manifest."""

    folder: str
    current: bool
    """Whether it was made from the present requirements."""
    name: str
    digest: str
    python: str
    installed: str
    seconds: float
    size: int
    packages: dict[str, str]
    probe: dict[str, object]


@dataclass(frozen=True)
class ToolchainHere:
    """A toolchain that ckptd knows. The names are stable for programs."""

    about: str
    installed: bool
    state: str
    """Its state, as words that complete "it is …"."""
    command: str | None
    """The command that installs it; None if it is installed."""
    disk: int
    """Maximum disk space during the installation, in bytes."""
    stages: tuple[str, ...]
    """The stages that need it."""
    folders: tuple[ToolchainFolder, ...]


def describe(chains: Toolchains) -> dict[str, ToolchainHere]:
    """Name → what is known of each toolchain."""
    rows = {}
    for name, definition in chains.known.items():
        lacking = chains.lacking(name, "use it")
        rows[name] = ToolchainHere(
            about=definition.about,
            installed=lacking is None,
            state=chains.state(name),
            command=None if lacking is None else f"ckptd toolchain install {name}",
            disk=int(definition.disk),
            stages=tuple(spec.name for spec in plan.all_specs() if spec.toolchain == name),
            folders=tuple(ToolchainFolder(str(one.folder), one.current, **one.manifest.model_dump()) for one in chains.versions(name)),
        )
    return rows


def _manifest(folder: Path) -> Manifest | None:
    with contextlib.suppress(OSError, ValidationError):
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    return None


def digest_for(name: str) -> str:
    """What of a toolchain the output of its stages depends on."""
    known = definitions().get(name)
    return known.digest if known else ""


def command_in(folder: Path, module: str) -> tuple[str, ...]:
    """The command that runs one of our modules with the Python of the toolchain in `folder`."""
    return (str(folder / "bin" / "python"), "-I", "-u", str(BOOTSTRAP), module)


def command_of(context: StageContext) -> tuple[str, ...]:
    """The command that runs an attempt, less the job file: in its own environment where it asks for one. Raises OSError where
    that is gone."""
    if not context.toolchain:
        return HANDLERS
    return command_in((Path(context.cache) / "toolchains" / context.toolchain).resolve(strict=True), "handlers")
