"""Installs with uv, where it leads to the same packages as pip: it resolves, then installs exactly what it resolved, each by its digest.

Called by `daemon.toolchains.installers.choice`. uv's own configuration is not read: the user's configuration of pip counts, as far as uv
can be told it. What was fetched lies in a cache of uv that outlives the attempt.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from daemon.contract.disk.files import sha256_file
from daemon.contract.values import digest_of
from daemon.toolchains.installers.attempt import Build, environment, execute
from daemon.toolchains.installers.downloads import Downloads
from daemon.toolchains.installers.failures import line_of, no_packages
from daemon.toolchains.installers.pip_settings import ForUv, PipSettings, UnlikePip

LEAST = (0, 8)
"""Older ones lack part of what is used here."""
VERSION_SECONDS = 30.0
_KEPT = ("UV_HTTP_", "UV_CONCURRENT_", "UV_SYSTEM_CERTS", "UV_NATIVE_TLS", "UV_LINK_MODE")
"""Variables of the user's own that say how uv works; the others could lead it to other packages."""


@dataclass(frozen=True)
class Uv:
    """A uv of this box."""

    command: tuple[str, ...]
    version: str


@dataclass(frozen=True)
class _Resolved:
    """What one package is to be installed from."""

    name: str
    version: str
    files: dict[str, str]
    """File → SHA-256. More than one where several suit this machine; uv takes the one that suits best, as pip does."""
    doubtful: bool
    """Whether several places have different files of it that suit equally."""

    @property
    def pinned(self) -> str:
        """As a requirement."""
        return f"{self.name}=={self.version}"

    @property
    def line(self) -> str:
        """The same, and nothing but these files."""
        return " ".join([self.pinned, *(f"--hash=sha256:{digest}" for digest in sorted(set(self.files.values())))])


def find() -> Uv:
    """The uv of this box. Raises UnlikePip where there is none, or it is too old."""
    path = shutil.which("uv")
    if path is None and importlib.util.find_spec("uv") is None:
        raise UnlikePip("there is no uv on the PATH")
    command = (path,) if path else (sys.executable, "-m", "uv")
    try:
        done = subprocess.run(
            [*command, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnlikePip(f"the uv of this box can't be run ({error})") from error
    match = re.match(r"uv ((\d+)\.(\d+)\S*)", done.stdout)
    if done.returncode != 0 or match is None:
        raise UnlikePip(f"the uv of this box can't be run ({line_of(done.stderr)})")
    if (int(match[2]), int(match[3])) < LEAST:
        raise UnlikePip(f"the uv of this box is {match[1]}, older than {'.'.join(map(str, LEAST))}")
    return Uv(command, match[1])


def install(build: Build, settings: PipSettings, uv: Uv) -> dict[str, str]:
    """Resolve, fetch and install; gives file → SHA-256 of what was installed.

    Raises UnlikePip, in which case nothing was installed; CkptdError.
    """
    for_uv = settings.for_uv()
    downloads = Downloads.begin(build, "uv", settings.digest, digest_of(uv.version))
    at_work = _AtWork(build, uv, for_uv, downloads)
    lines = as_uv_reads(build.definition.lines)
    packages = at_work.resolved(lines)
    if doubtful := next((package for package in packages if package.doubtful), None):
        raise UnlikePip(f"uv and pip may choose otherwise between several files of {doubtful.pinned}")
    options = [line for line in lines if line.startswith("-")]
    asked = downloads.write("install.txt", [*options, *(package.line for package in packages)])
    exactly = ("--no-deps", "--require-hashes", "--compile-bytecode")
    code, said = at_work.run("pip", "install", *exactly, "--requirements", str(asked))
    if code != 0:
        raise no_packages(build, said)
    return {file: digest for package in packages for file, digest in sorted(_installed(build, package).items())}


def as_uv_reads(lines: Sequence[str]) -> list[str]:
    """The same lines, with one package a line where pip takes a list of them."""
    rewritten: list[str] = []
    for line in lines:
        option, _, names = line.replace("=", " ", 1).partition(" ")
        several = option in ("--only-binary", "--no-binary")
        rewritten += [f"{option} {name.strip()}" for name in names.split(",")] if several else [line]
    return rewritten


def _installed(build: Build, package: _Resolved) -> dict[str, str]:
    """Of several files that suit this machine, the one whose tags the installed package has."""
    normal = package.name.replace("-", "_")
    for path in build.folder.glob("lib/python*/site-packages/*.dist-info/WHEEL"):
        name, _, version = path.parent.name.removesuffix(".dist-info").partition("-")
        if (re.sub(r"[-_.]+", "_", name).lower(), version) == (normal, package.version):
            tags = set(re.findall(r"^Tag: (\S+)", path.read_text(errors="replace", encoding="utf-8"), re.MULTILINE))
            return {file: digest for file, digest in package.files.items() if _tags(file) == tags} or package.files
    return package.files


def _tags(file: str) -> set[str]:
    """The tags in a wheel's name, each by itself."""
    parts = file.removesuffix(".whl").split("-")[-3:]
    return {"-".join(tag) for tag in itertools.product(*(part.split(".") for part in parts))}


class _AtWork:
    """uv with all that it is told."""

    def __init__(self, build: Build, uv: Uv, settings: ForUv, downloads: Downloads) -> None:
        self._build, self._uv, self._settings, self._downloads = build, uv, settings, downloads

    def run(self, *arguments: str) -> tuple[int, str]:
        """uv's exit code, and the end of what it said."""
        folders = [part for link in self._settings.links for part in ("--find-links", link)]
        where = ["--python", self._build.python, "--index-strategy", "unsafe-best-match", *self._settings.options, *folders]
        command = [*self._uv.command, "--no-config", "--cache-dir", str(self._downloads.cache), "--color", "never", *arguments, *where]
        return execute(self._build, command, self._variables())

    def _variables(self) -> Mapping[str, str]:
        variables = environment(self._downloads.passing, {**self._settings.variables, "UV_PYTHON_DOWNLOADS": "never"})
        own = {"UV_PYTHON_DOWNLOADS", *self._settings.variables}
        return {name: value for name, value in variables.items() if name in own or not name.startswith("UV_") or name.startswith(_KEPT)}

    def resolved(self, lines: Sequence[str]) -> list[_Resolved]:
        """What uv would install for them. Raises UnlikePip where it finds no answer: pip may."""
        asked, answer = self._downloads.write("wanted.txt", lines), self._downloads.folder / "pylock.toml"
        answer.unlink(missing_ok=True)
        command = ("pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml", "--output-file", str(answer), str(asked))
        bounds = [part for file in self._settings.constraints for part in ("--constraint", file)]
        code, said = self.run(*command, *bounds)
        if code != 0 or not answer.is_file():
            raise UnlikePip(f"uv can't resolve its packages ({line_of(said)})")
        packages = [_resolved(package) for package in tomllib.loads(answer.read_text(encoding="utf-8"))["packages"]]
        if incomplete := [package.name for package in packages if not package.files]:
            raise UnlikePip(f"uv does not say what {incomplete[0]} is installed from")
        return packages


def _resolved(package: Mapping[str, Any]) -> _Resolved:
    """One entry of pylock.toml."""
    sources = package.get("wheels") or [source for source in (package.get("sdist"), package.get("archive")) if source]
    files = {(unquote(_place(source).rsplit("/", 1)[-1]), digest) for source in sources if (digest := _digest(source))}
    kinds = {(frozenset(_tags(file)), digest) for file, digest in files}
    return _Resolved(package["name"], package.get("version", ""), dict(sorted(files)), len(kinds) > len({tags for tags, _ in kinds}))


def _digest(source: Mapping[str, Any]) -> str:
    """Its SHA-256; "" where that is not known. Older releases of uv say none of files that lie on this box."""
    known = source.get("hashes", {}).get("sha256")
    if known:
        return str(known)
    place = urlsplit(_place(source))
    return sha256_file(Path(unquote(place.path))) if place.scheme == "file" else ""


def _place(source: Mapping[str, Any]) -> str:
    return str(source.get("path") or source.get("url") or source.get("name") or "")
