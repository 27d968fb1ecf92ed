"""What people and programs are told of the toolchains: which are installed, what each is for, and what it costs.

Called by `ckptd formats`, `check` and `toolchain`, and by the daemon when it starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from daemon.contract import units
from daemon.contract.jobs import plan
from daemon.toolchains.installers.downloads import size_of
from daemon.toolchains.registry import Manifest, Toolchains


class ToolchainFolder(Manifest):
    """One folder of a toolchain, with its manifest."""

    folder: str
    current: bool
    """Whether it was made from the present requirements."""


@dataclass(frozen=True)
class ToolchainHere:
    """A toolchain that ckptd knows. The names are stable for programs."""

    about: str
    installed: bool
    state: str
    """Its state, as words that complete "it is …"."""
    command: str | None
    """The command that installs it; None if it is installed, also where a program of this box is missing that it needs."""
    download: int
    """Bytes that the installation downloads, about."""
    downloaded: int
    """Bytes that an interrupted installation has downloaded, with which the next one goes on."""
    disk: int
    """Maximum disk space during the installation, in bytes."""
    seconds: float
    """Duration of the installation on two cores with a fast index, about."""
    stages: tuple[str, ...]
    """The stages that need it."""
    folders: tuple[ToolchainFolder, ...]

    @property
    def costs(self) -> str:
        """What installing it takes, as words that complete "it …"."""
        return costs(self.download, self.disk, self.seconds)


def costs(download: int, disk: int, seconds: float) -> str:
    """What an installation takes, as words that complete "it …"."""
    time = f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
    fetched, room = units.size(download), units.size(disk)
    return f"downloads about {fetched}, needs up to {room} of disk and about {time}"


def lacking_for(variants: Iterable[str], chains: Toolchains) -> tuple[str, ...]:
    """What variants of the configuration can't be made or checked without, as sentences without their ends."""
    makes, checks, sentences = dict[str, list[str]](), dict[str, list[str]](), list[str]()
    for name in variants:
        spec, check = plan.spec_of(name), plan.check_of(name)
        if chains.lacking(spec.toolchain, name):
            makes.setdefault(spec.toolchain, []).append(name)
        elif check and chains.lacking(check.toolchain, name):
            checks.setdefault(check.toolchain, []).append(name)
        if spec.programs and spec.program() is None:
            sentences.append(f"{name} can't be made: none of the programs {', '.join(spec.programs)} is there")
    for served, what in ((makes, "made"), (checks, "checked")):
        for chain, names in served.items():
            if fault := chains.lacking(chain, "make them"):
                sentences.append(f"{', '.join(names)} can't be {what}: {fault.cause}; {fault.remedy}")
    return tuple(sentences)


def describe(chains: Toolchains) -> dict[str, ToolchainHere]:
    """Name → what is known of each toolchain."""
    rows = {}
    for name, definition in chains.known.items():
        lacking = chains.lacking(name, "use it")
        rows[name] = ToolchainHere(
            about=definition.about,
            installed=lacking is None,
            state=chains.state(name),
            command=None if lacking is None or chains.state(name).startswith("installed") else f"ckptd toolchain install {name}",
            download=definition.fetched,
            downloaded=size_of(chains.home, name),
            disk=int(definition.disk),
            seconds=definition.seconds,
            stages=tuple(spec.name for spec in plan.all_specs() if spec.toolchain == name),
            folders=tuple(
                ToolchainFolder(folder=str(version.folder), current=version.current, **version.manifest.model_dump())
                for version in chains.versions(name)
            ),
        )
    return rows
