"""What the user's configuration of pip says, as pip itself reads it: which packages it leads to, and what uv must be told of it.

Used by the installers beside this file. uv reads no configuration of pip's. A setting counts as told when uv is known to treat it alike;
with any other one pip is used, since another package than pip's could come.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
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


class UnlikePip(Exception):
    """uv may bring other packages than pip, or can't be used; in words that complete "since …"."""


@dataclass
class ForUv:
    """What uv is told: options of its commands, and variables."""

    options: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    """Folders of `find-links`."""
    constraints: list[str] = field(default_factory=list)
    """Files of `constraint`, which count where packages are chosen."""
    variables: dict[str, str] = field(default_factory=dict)


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

    def for_uv(self) -> ForUv:
        """The same for uv. Raises UnlikePip where it can't be told."""
        settings = ForUv()
        for key, value in self.values.items():
            if value == "" or key in _INDIFFERENT:
                continue
            if key not in _TRANSLATIONS:
                raise UnlikePip(f"uv can't be told the setting {key!r} of your pip configuration")
            _TRANSLATIONS[key](settings, value)
        return settings


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


def _each(option: str) -> Callable[[ForUv, str], None]:
    return lambda settings, value: settings.options.extend(part for word in value.split() for part in (option, word))


def _only(option: str) -> Callable[[ForUv, str], None]:
    return lambda settings, value: settings.options.extend(
        part for package in re.split(r"[,\s]+", value.strip()) for part in (option, package)
    )


def _variable(*names: str) -> Callable[[ForUv, str], None]:
    return lambda settings, value: settings.variables.update(dict.fromkeys(names, value))


def _switch(option: str) -> Callable[[ForUv, str], None]:
    return lambda settings, value: settings.options.append(option) if value.lower() in ("1", "true", "yes", "on") else None


def _extra(settings: ForUv, value: str) -> None:
    """Of the same version in several indexes, pip takes that of the last one, and uv that of the first."""
    settings.options += [part for url in reversed(value.split()) for part in ("--index", url)]


def _links(settings: ForUv, value: str) -> None:
    for link in value.split():
        if not Path(link.removeprefix("file://")).is_dir():
            raise UnlikePip("find-links of your pip configuration is no folder")
        settings.links.append(link)


def _seconds(settings: ForUv, value: str) -> None:
    settings.variables["UV_HTTP_TIMEOUT"] = str(round(float(value)))


def _keyring(settings: ForUv, value: str) -> None:
    if value == "subprocess":
        settings.options += ["--keyring-provider", value]
    elif value != "disabled":
        raise UnlikePip(f"uv can't ask the keyring as pip does (keyring-provider = {value})")


def _features(settings: ForUv, value: str) -> None:
    if set(value.split()) - {"truststore", "fast-deps"}:
        raise UnlikePip(f"uv knows no {value.split()[0]} (use-feature of your pip configuration)")
    if "truststore" in value.split():
        settings.variables |= {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}


_TRANSLATIONS: dict[str, Callable[[ForUv, str], None]] = {
    "index-url": lambda settings, value: settings.options.extend(("--default-index", value.strip())),
    "extra-index-url": _extra, "find-links": _links, "no-index": _switch("--no-index"),
    "constraint": lambda settings, value: settings.constraints.extend(value.split()),
    "only-binary": _only("--only-binary"), "no-binary": _only("--no-binary"),
    "cert": _variable("SSL_CERT_FILE"), "client-cert": _variable("SSL_CLIENT_CERT"),
    "proxy": _variable("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "trusted-host": _each("--allow-insecure-host"),
    "timeout": _seconds, "default-timeout": _seconds, "retries": _variable("UV_HTTP_RETRIES"),
    "resume-retries": lambda settings, value: None, "keyring-provider": _keyring, "use-feature": _features,
    "use-deprecated": lambda settings, value: None,
}  # fmt: skip
"""Key of pip's → how uv is told."""
