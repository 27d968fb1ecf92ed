"""The files of a configuration: the one that is named, and the parts in `conf.d` beside it, which are read over it.

Weakest first, a value comes from: the defaults, the file, `conf.d/*.toml` in the order of their names, the short `EXPORT_*`
variables, `CKPTD_SECTION__KEY`, `--set`. Tables are put together key by key; any other value, a list too, replaces the weaker one.
"""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from daemon.config.sources import holds, keep_secrets, named_by, option_for, over
from daemon.contract.disk.files import read_bounded
from daemon.contract.faults.errors import Retryable, UsageError, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.light import dataclass
from daemon.contract.values import digest_of

PARTS = "conf.d"
MOST_BYTES = 1 << 20
"""Of a part."""
DEFAULT = "default"


@dataclass(frozen=True)
class Files:
    """What the files of a configuration say, each by itself, the weakest first."""

    each: tuple[tuple[Path, dict[str, Any]], ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """All of them merged."""
        merged: dict[str, Any] = {}
        for _, values in self.each:
            merged = over(merged, values)
        return merged

    @property
    def digest(self) -> str:
        """Of their values, in the order in which they are read: another text with the same values is no other configuration."""
        return digest_of(json.dumps([values for _, values in self.each], sort_keys=True, default=str))

    def origin(self, key: str) -> Path | None:
        """The file that gives the value of a dotted key; None where it comes from elsewhere."""
        return next((path for path, values in reversed(self.each) if holds(values, key)), None)


@dataclass(frozen=True)
class Source:
    """Which files a configuration was read from, and what they said then."""

    file: str | None
    """The main file, as an absolute path; None where there is none."""
    digest: str
    """That of `Files`."""

    @classmethod
    def of(cls, path: Path | None, files: Files) -> Source:
        """What was just read."""
        return cls(None if path is None else str(path.absolute()), files.digest)


def read(path: Path | None) -> Files:
    """The files of a configuration. Raises UsageError for one that can't be read or parsed, Retryable where no handle is left."""
    if path is None:
        return Files()
    return Files(((path, _read_file(path)), *((part, _read_file(part, part=True)) for part in parts_of(path))))


def parts_of(path: Path) -> Iterator[Path]:
    """The parts in `conf.d` beside a configuration, in the order in which they are read. Raises UsageError where it can't be listed."""
    folder = path.parent / PARTS
    try:
        names = sorted(entry.name for entry in os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        _raise_passing(error, folder)
        raise UsageError(
            FaultCode.CONFIG_UNREADABLE, "read the configuration", f"it can't be listed ({error.strerror})", "let this user read it",
            path=folder,
        ) from None  # fmt: skip
    yield from (folder / name for name in names if name.endswith(".toml") and not name.startswith("."))


def origin_of(key: str, files: Files) -> str:
    """Where the value of a dotted key comes from, in words."""
    if given := option_for(key):
        return f"{named_by.get(given, '--set')} (command line)"
    from daemon.config.environment import variable_for  # not to read files: these take longer to import than `ckptd status` may
    from daemon.config.settings import Settings

    if variable := variable_for(key, Settings, os.environ):
        return f"{variable} (environment)"
    if path := files.origin(key):
        return str(path)
    return DEFAULT


def _read_file(path: Path, *, part: bool = False) -> dict[str, Any]:
    """The file that is named may be a pipe; a part that is one would be waited for without end."""
    operation = "read the configuration"
    try:
        content = read_bounded(path, MOST_BYTES) if part else path.read_bytes()
    except FileNotFoundError:
        remedy = "it is a link that leads nowhere: remove or correct it" if part else "name another with --config"
        raise UsageError(FaultCode.CONFIG_MISSING, operation, "there is no such file", remedy, path=path) from None
    except (OSError, ValueError) as error:
        if isinstance(error, OSError):
            _raise_passing(error, path)
        cause, remedy = _why_unread(path, error)
        raise UsageError(FaultCode.CONFIG_UNREADABLE, operation, cause, remedy, path=path) from None
    text = ""
    try:
        text = content.decode("utf-8-sig")
        return _kept(tomllib.loads(text))
    except UnicodeDecodeError as error:
        raise UsageError(FaultCode.CONFIG_UNREADABLE, operation, *_why_no_text(content, error), path=path) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(
            FaultCode.CONFIG_INVALID, operation, f"it is not TOML: {said_of_syntax(error, text)}", _remedy_of_syntax(error), path=path
        ) from None


def _kept(values: dict[str, Any]) -> dict[str, Any]:
    """The values; those that may be secrets are not shown from now on, whatever becomes of them."""
    keep_secrets(values)
    return values


_PLACE = re.compile(r"\(at line \d+, (?:column \d+|the last line)\)\Z")
_OF_CHARACTERS = ("Expected ", "Unescaped", "Illegal character", "Found invalid character")
"""How the parser's sentences begin that quote single characters; the others quote whole keys, which may be anything."""


def said_of_syntax(error: Exception, content: str) -> str:
    """What the parser of TOML says is wrong in `content`, with its place, and without the keys that it quotes."""
    last = len(content.rstrip().splitlines())
    text = str(error).replace("(at end of document)", f"(at line {last}, the last line)")
    place = _PLACE.search(text)
    said = text[: place.start()] if place else text
    if not said.startswith(_OF_CHARACTERS):
        said = re.sub(r"['\"(].*", "…", said, flags=re.DOTALL)
    return f"{said.strip()[:200]} {place[0]}" if place else said[:200]


def _remedy_of_syntax(error: Exception) -> str:
    """What to do about a text that is not TOML. The parser meets a missing bracket only where the next thing begins."""
    for opened, missing in (("array", "]"), ("inline table", "}")):
        if f"Unclosed {opened}" in str(error):
            return f"add the missing {missing}; it belongs above that place"
    return "correct that line"


def _raise_passing(error: OSError, path: Path) -> None:
    """Raise Retryable for what is no mistake in the configuration, such as no handle left: whoever is told may try again."""
    ours = from_oserror(error, "read the configuration", str(path))
    if isinstance(ours, Retryable):
        raise ours from None


def _why_unread(path: Path, error: Exception) -> tuple[str, str]:
    """Why a file can't be read, and what to do."""
    if isinstance(error, IsADirectoryError):
        inside = next((file for file in (path / "config.toml", path / "ckptd.toml") if file.is_file()), path / "config.toml")
        return "it is a folder, not a file", f"name the file, for example {inside}"
    if isinstance(error, NotADirectoryError):
        file = next((parent for parent in path.parents if parent.is_file()), path.parent)
        return f"{file} is a file, and not a folder that could hold another file", "correct the path"
    if isinstance(error, PermissionError):
        return "this user may not read it", "give this user access to the file and its folders, or run the command as the file's owner"
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "it is a link that leads to itself", "remove or correct the link"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return "its name is too long", "correct the path"
    if isinstance(error, OSError):
        return error.strerror or str(error), "check the file and its file system"
    return str(error), "name a file that holds only TOML text"


def _why_no_text(content: bytes, error: UnicodeDecodeError) -> tuple[str, str]:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "it is saved as UTF-16", "save it as UTF-8"
    if b"\0" in content:
        return "it is not a text file", "name the TOML file with the configuration"
    line = content[: error.start].count(b"\n") + 1
    return f"line {line} holds a character that is not UTF-8", "save the file as UTF-8"
