"""Toolchains: environments of their own for exporters whose requirements contradict ours. What is known, what is installed.

A toolchain is defined by two files in the folder of the format that needs it, or in handlers/toolchains if several do: NAME.toml (what it
is) and NAME.txt (its locked packages; those of npm lie in NAME.package.json and NAME.package-lock.json, where it has some). Installed, it
is the folder NAME-DIGEST below the state directory's `toolchains`, with a manifest that is written last. Used by the runner (may a stage
start, with which command), by `ckptd formats`, `check` and `toolchain`; `daemon.toolchains.install` makes and removes the folders.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ByteSize, Field, ValidationError

import daemon
from daemon.contract.disk import away
from daemon.contract.disk.files import temporary_of
from daemon.contract.faults.errors import Fault, UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Frozen, digest_of
from daemon.toolchains import npm, programs

DEFINITIONS = Path(daemon.__file__).parents[1] / "handlers"
BOOTSTRAP = DEFINITIONS / "toolchains" / "bootstrap.py"
MANIFEST = "toolchain.json"
OFFERED = "toolchains"
"""Folder of the cache with a link to each toolchain that stages may use."""
IN_USE = "in-use"
DAMAGED = "damaged"
"""How the state of a toolchain begins that is there and can't be used."""
HANDLERS = (sys.executable, "-m", "handlers")
GUESSED_SHARE = 3
"""Of the disk that an installation takes at its peak, about one part in so many is downloaded."""
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Definition(Frozen):
    """What the project knows of a toolchain before it is installed."""

    name: str
    about: str
    disk: ByteSize
    """Bytes that installing takes below the state directory at its peak."""
    seconds: float
    download: ByteSize | None = None
    """Bytes that are fetched with torch's CPU build where torch is among the packages; None where nobody has measured it."""
    probe: str
    """Module that is run inside: exit code 0 and an answer mean that it works."""
    requirements: Path
    programs: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Debian's package → names of programs, of which this box must have one for the toolchain to work."""
    installers: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """The same, for installing it alone."""

    @property
    def lines(self) -> list[str]:
        """The lines of `requirements` that say something: options of pip, which begin with a dash, and packages with their versions."""
        lines = [line.split(" #")[0].strip() for line in self.requirements.read_text(encoding="utf-8").splitlines()]
        return [line for line in lines if line and not line.startswith("#")]

    @property
    def digest(self) -> str:
        """Digest of what is installed by it: the requirement lines, and the Python that they are installed for."""
        return digest_of([self.lines, _PYTHON, platform.machine(), *npm.digested(self.requirements)])[:12]

    @property
    def fetched(self) -> int:
        """Bytes that installing downloads, as far as is known: measured, else guessed from what it takes on the disk."""
        return int(self.download) if self.download is not None else int(self.disk) // GUESSED_SHARE


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
    installer: str = ""
    """What installed the packages, with its version ("pip 26.1"); "" in a manifest of an earlier ckptd."""
    installer_why: str = ""
    """"", but for what ckptd 1.0.0 installed: why it did not use uv."""
    wheels: dict[str, str] = Field(default_factory=dict)
    """File → SHA-256 of all that was downloaded and installed; of a package that pip built here, its wheel."""
    unlike: dict[str, str] = Field(default_factory=dict)
    """Files that were not as their packages' own records say when they had just been installed."""


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
        if not os.access(self.python, os.X_OK):
            return "the Python that it was created with no longer exists"
        return "" if (self.folder / IN_USE).is_file() else "its lock file is missing"


def definitions(folder: Path | None = None) -> dict[str, Definition]:
    """Name → definition of every toolchain in `folder` and in the folders in it: each NAME.toml that has a NAME.txt beside it."""
    return {path.stem: _definition(path) for path in _defined_in(folder or DEFINITIONS)}


def _defined_in(folder: Path) -> list[Path]:
    paths = (path for path in (*folder.glob("*.toml"), *folder.glob("*/*.toml")) if path.with_suffix(".txt").is_file())
    return sorted(paths, key=lambda path: path.stem)


def _definition(path: Path) -> Definition:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return Definition(name=path.stem, requirements=path.with_suffix(".txt"), **content)


class Toolchains:
    """The toolchains below one state directory. `known`: what could be installed."""

    def __init__(self, state: Path, known: dict[str, Definition] | None = None) -> None:
        self.home = self.home_of(state)
        self.known = definitions() if known is None else known

    @staticmethod
    def home_of(state: Path) -> Path:
        """The folder of all toolchains of a state directory."""
        return state / "toolchains"

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
        manifests = [(path, _manifest(path)) for path in sorted(self.home.glob(f"{name}-*"))]
        return [Installed(path, manifest, path == wanted) for path, manifest in manifests if manifest is not None and manifest.name == name]

    def remains(self, name: str) -> list[Path]:
        """Folders of a toolchain without a manifest that can be read: a disk that failed leaves such, or a hand."""
        digest = re.compile(re.escape(name) + "-[0-9a-f]{12}")
        return [path for path in sorted(self.home.glob(f"{name}-*")) if digest.fullmatch(path.name) and _manifest(path) is None]

    def get(self, name: str) -> Installed | None:
        """The toolchain as it can be used now, else None."""
        if programs.missing(self.definition(name).programs):
            return None
        return next((version for version in self.versions(name) if version.current and not version.broken), None)

    def lacking(self, name: str, operation: str) -> Fault | None:
        """Why a stage can't run in this toolchain ("" is no toolchain), with the command that fixes it; None if it can."""
        known = name in self.known  # a stage of another package's may name any
        if not name or (known and self.get(name) is not None):
            return None
        cause = f"the toolchain {name} is {self.state(name)}"
        remedy = self._remedy(name) if known else "leave the variants that need it out of export.variants, and tell their authors"
        return Fault(code=FaultCode.TOOLCHAIN_MISSING, operation=operation, cause=cause, remedy=remedy)

    def _remedy(self, name: str) -> str:
        """What makes a known toolchain usable, in one sentence without its end."""
        definition, there = self.definition(name), self._usable(name)
        needed = definition.programs | ({} if there else definition.installers)
        steps = [programs.remedy(needed)] if programs.missing(needed) else []
        return ", then ".join([*steps, *([] if there else [f"run `ckptd toolchain install {name}`"])])

    def _usable(self, name: str) -> bool:
        return any(version.current and not version.broken for version in self.versions(name))

    def state(self, name: str) -> str:
        """How a toolchain is, as the end of "it is …": installed, not installed, damaged, …"""
        if name not in self.known:
            return "not known to this version of ckptd"
        there = self.versions(name)
        current = next((version for version in there if version.current), None)
        if current is None and self.folder(name) in self.remains(name):
            return f"{DAMAGED} (its manifest is missing or can't be read)"
        if current is None:
            return "of an earlier version of ckptd" if there else "not installed"
        if current.broken:
            return f"{DAMAGED} ({current.broken})"
        lost = programs.missing(self.definition(name).programs)
        return f"installed, but this box has no {programs.listed(lost)}" if lost else "installed"

    def gone(self, name: str, cache: Path) -> OSError | None:
        """Why a known toolchain that was offered to stages, and that nobody removed, is away now; None where it is there, or never was.

        The error names the path: the toolchain's folder, or the Python that it was made with.
        """
        folder, link = self.folder(name), cache / OFFERED / name
        if not link.is_symlink() or os.readlink(link) != str(folder):
            return None
        if (problem := away.problem_of(folder)) is not None:
            return problem
        manifest = away.problem_of(folder / MANIFEST)
        if manifest is not None and not isinstance(manifest, FileNotFoundError):  # without one it is damaged
            return manifest
        return away.problem_of(folder / "bin" / "python")

    def offer(self, cache: Path) -> None:
        """Let stages find the installed toolchains: `CACHE/toolchains/NAME` leads to each; to one that is away it goes on doing so.

        Raises OSError.
        """
        offered = cache / OFFERED
        for name in self.known:
            link, wanted = offered / name, self.get(name)
            target = os.readlink(link) if link.is_symlink() else None
            if wanted is None and target is not None:
                if self.gone(name, cache) is None:
                    link.unlink(missing_ok=True)
            elif wanted is not None and target != str(wanted.folder):
                offered.mkdir(parents=True, exist_ok=True)
                fresh = temporary_of(link)
                fresh.unlink(missing_ok=True)
                fresh.symlink_to(wanted.folder)
                fresh.replace(link)


def _manifest(folder: Path) -> Manifest | None:
    with contextlib.suppress(OSError, ValidationError):
        return Manifest.model_validate_json((folder / MANIFEST).read_bytes())
    return None


def digest_for(name: str) -> str:
    """Return what of a toolchain the output of its stages depends on. Asked for each key of a stage: only its own file is read."""
    return next((_definition(path).digest for path in _defined_in(DEFINITIONS) if path.stem == name), "")


def command_in(folder: Path, module: str) -> tuple[str, ...]:
    """The command that runs one of our modules with the Python of the toolchain in `folder`."""
    return (str(folder / "bin" / "python"), "-I", "-u", str(BOOTSTRAP), module)


def command_of(context: StageContext) -> tuple[str, ...]:
    """The command that runs an attempt, less the job file: in its own environment where it asks for one. Raises OSError where
    that is gone."""
    if not context.toolchain:
        return HANDLERS
    return command_in(Path(os.path.realpath(Path(context.cache) / OFFERED / context.toolchain, strict=True)), "handlers")
