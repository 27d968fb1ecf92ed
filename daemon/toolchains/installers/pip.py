"""Installs with pip: each locked package is fetched (or built) as a wheel that is kept; then all are installed from there, with no index.

Called by `daemon.toolchains.build`. What the locked packages need beyond themselves, because the index has another build of one
of them, is found by pip and fetched in the same way.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace

from daemon.contract.disk.files import remove_tree
from daemon.contract.faults.errors import CkptdError
from daemon.system.processes.commands import run_side_by_side
from daemon.toolchains.installers.attempt import TAIL, Build, environment, execute, notice
from daemon.toolchains.installers.downloads import Downloads, Fetched
from daemon.toolchains.installers.failures import broke_off, missing_in, no_packages
from daemon.toolchains.installers.pip_settings import PipSettings, read

SIDE_BY_SIDE = 3
"""Packages that are fetched at once: most of the time is waiting for answers."""
TRIES = 3
"""Of one package, while the network is what fails."""
PAUSE_SECONDS = 1.0
MOST_FURTHER = 200
"""Packages beyond the locked ones, of which a CUDA build of torch alone needs some twenty."""


def install(build: Build) -> tuple[str, dict[str, str]]:
    """Fetch and install the locked packages; gives the version of the environment's pip, and file → SHA-256 of each wheel."""
    settings, version = read(build), _version(build)
    build.say(f"using pip {version}")
    downloads = Downloads.begin(build, "pip", settings.digest)
    fetching = _Fetching(build, downloads, settings, version)
    had = downloads.kept()
    if had:
        build.say(f"{len(had)} packages are there from an earlier attempt")
    wanted = build.definition.lines
    options = [line for line in wanted if line.startswith("-")]
    fetching.fetch([line for line in wanted if not line.startswith("-")], options, had)
    further = 0
    while (lacking := _install(build, downloads, wanted)) is not None:
        further += 1
        if further > MOST_FURTHER or lacking in {wheel.requirement for wheel in fetching.got}:
            raise no_packages(build, f"ERROR: No matching distribution found for {lacking}")
        fetching.fetch([lacking], options, had)
    return version, {wheel.file: wheel.sha256 for wheel in sorted(fetching.got, key=lambda wheel: wheel.file)}


def _version(build: Build) -> str:
    folders = sorted(build.folder.glob("lib/python*/site-packages/pip-*.dist-info"))
    return folders[-1].name.removeprefix("pip-").removesuffix(".dist-info") if folders else ""


def _install(build: Build, downloads: Downloads, wanted: list[str]) -> str | None:
    """Install what lies there; gives the requirement that is missing, where one is."""
    build.say("unpacking what was fetched")
    plain = downloads.write("install.txt", [line for line in wanted if not line.startswith("-")])
    command = [*build.pip, "install", "--no-index", "--find-links", str(downloads.wheels), "--progress-bar", "off", "-r", str(plain)]
    own = {name: value for name, value in environment(downloads.passing).items() if not name.startswith("PIP_")}
    quiet = replace(build, say=lambda line: None)  # it names all of them once more
    code, said = execute(quiet, command, {**own, "PIP_CONFIG_FILE": os.devnull})
    if code == 0:
        return None
    lacking = missing_in(said)
    if lacking is None:
        raise no_packages(build, said)
    return lacking


class _Fetching:
    """Fetches packages, each by a pip of its own; what came is kept, whatever becomes of the others."""

    def __init__(self, build: Build, downloads: Downloads, settings: PipSettings, version: str) -> None:
        self._build, self._downloads, self._settings = build, downloads, settings
        # Where it can, pip goes on with a file at the byte where the connection broke.
        self._resuming = ["--resume-retries", "5"] if _number(version) >= (25, 1) else []
        self.got: list[Fetched] = []

    def fetch(self, requirements: list[str], options: list[str], had: list[Fetched]) -> None:
        """Fetch each of them that is not among those that an earlier attempt has fetched. Raises CkptdError."""
        there = {wheel.requirement: wheel for wheel in had}
        self.got += [there[requirement] for requirement in requirements if requirement in there]
        wanted = [requirement for requirement in requirements if requirement not in there]
        for left in reversed(range(TRIES)):
            wanted, failed = self._round(wanted, options)
            if failed is None:
                return
            if not left or not broke_off(str(failed.fault.details)):
                raise failed
            time.sleep(PAUSE_SECONDS)

    def _round(self, requirements: list[str], options: list[str]) -> tuple[list[str], CkptdError | None]:
        """Try each once, until one fails: what is still to be fetched then, and why."""
        build, downloads = self._build, self._downloads
        said: dict[int, bytearray] = {}
        failed: list[str] = []

        def commands() -> Iterator[list[str]]:
            for number, requirement in enumerate(requirements):
                if failed:
                    return  # those that run come to their end: what they bring is kept
                said[number] = bytearray()
                yield self._command(number, requirement, options)

        def heard(number: int, line: bytes) -> None:
            said[number].extend(line)
            del said[number][:-TAIL]
            log.write(line)
            notice(line, build.say)

        missing = dict.fromkeys(requirements)
        variables = environment(downloads.passing, self._settings.for_pip())
        ended = run_side_by_side(commands(), heard, most=SIDE_BY_SIDE, environment=variables, pass_fds=(build.lock,))
        with open(build.log, "ab") as log, contextlib.closing(ended):
            for number, code in ended:
                if code == 0:
                    self.got.append(downloads.take(requirements[number], downloads.parts / str(number)))
                    del missing[requirements[number]]
                else:
                    failed.append(said[number].decode(errors="replace"))
        return list(missing), no_packages(build, failed[0]) if failed else None

    def _command(self, number: int, requirement: str, options: list[str]) -> list[str]:
        part = self._downloads.parts / str(number)
        remove_tree(part)  # of a try before
        part.mkdir()
        asked = part / "wanted.txt"
        asked.write_text("\n".join([*options, requirement]) + "\n", encoding="utf-8")
        command = [*self._build.pip, "wheel", "--no-deps", "--progress-bar", "off", *self._resuming]
        return [*command, "--wheel-dir", str(part), "--requirement", str(asked)]


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:2]))
