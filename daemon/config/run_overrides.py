"""`ckptd.toml` in a run's directory: what a run may say about its own exports.

Called by the intake for each checkpoint that it decides about. The file comes from whoever trains, so it may set
no address, no limit and no path but those of texts below the run itself, is not followed as a link, and is not used at all when anything
in it is wrong.
"""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from daemon.config import layers, suggestions
from daemon.config.loading import conflicts
from daemon.config.settings import Settings
from daemon.config.sources import RUN_FILE as NAME
from daemon.contract.disk.data_files import MARK
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.secrets import name_shown
from daemon.contract.jobs.options import PATH, ValidateOptions

SIZE_LIMIT = 1 << 16
SENTENCE_LIMIT = 1000
ALLOWED: dict[str, tuple[str, ...]] = {
    "select": ("policy", "every", "final"),
    "export": ("variants", "quantization", "deploy"),
    "validate": ("samples", "most_samples", "undecided", "new_tokens", "prompts", "data"),
}
"""The keys that a run may set, by section."""
PATHS = tuple(name for name, field in ValidateOptions.model_fields.items() if PATH in field.metadata)
"""Those of `validate` that are paths, relative to the run."""


@dataclass(frozen=True)
class Effective:
    """The settings that count for a run, and why its own file is not among them."""

    settings: Settings
    warning: str | None = None


class _Refused(Exception):
    """The cause, as half a sentence."""


def effective(settings: Settings, run: Path) -> Effective:
    """`settings` with those of the run's own file over them; without it, and with a warning, where the file is wrong."""
    path = run / NAME
    try:
        text = _read(path)
        return Effective(settings if text is None else _merged(settings, text, run))
    except _Refused as refused:
        fault = Fault(
            code=FaultCode.RUN_CONFIG_INVALID, operation="use the run's own configuration", cause=f"{refused}; the main one is used",
            remedy=f"correct {NAME}; a run may set {', '.join(f'{name}.{key}' for name, keys in ALLOWED.items() for key in keys)}",
            path=str(path),
        )  # fmt: skip
        return Effective(settings, fault.sentence())


def _read(path: Path) -> str | None:
    """The file's text, None where there is none."""
    try:
        # Without O_NONBLOCK a named pipe that nobody writes to would stop the watcher for good.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _Refused("it is a symbolic link" if path.is_symlink() else f"it can't be read ({error.strerror})") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _Refused("it is not a regular file")
        with open(descriptor, "rb", closefd=False) as stream:
            data = stream.read(SIZE_LIMIT + 1)
    finally:
        os.close(descriptor)
    if len(data) > SIZE_LIMIT:
        raise _Refused(f"it is larger than {SIZE_LIMIT >> 10} KiB")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _Refused("it is not UTF-8 text") from None


def _below(value: Any, run: Path, roots: tuple[Path, ...]) -> Any:
    """A path that a run gave, marked as its own for who opens it: no link below the watched root is followed. Raises ValueError for one
    that is not below the run; what is no text is left to the settings' own check."""
    if not isinstance(value, str) or not value:
        return value
    parts = Path(value).parts
    if Path(value).is_absolute() or ".." in parts or not parts or "\0" in value:
        raise ValueError("must be a path below the run's own directory, relative to it; another one is set in the main configuration")
    place = Path(os.path.abspath(run))
    top = next((root for root in roots if place.is_relative_to(root)), place)
    return f"{top}{MARK}{place.relative_to(top) / value}"


def _merged(settings: Settings, text: str, run: Path) -> Settings:
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _Refused(_plain(f"it is not TOML: {layers.said_of_syntax(error, text)}")) from None
    problems = [problem for section, value in values.items() for problem in _unknown(section, value)]
    sections: dict[str, BaseModel] = {}
    for section, keys in ALLOWED.items():
        given = values.get(section)
        if not isinstance(given, dict):
            continue
        main: BaseModel = getattr(settings, section)
        over = {key: value for key, value in given.items() if key in keys}
        for key in PATHS if section == "validate" else ():
            try:
                over |= {key: _below(over[key], run, settings.watch.roots)} if key in over else {}
            except ValueError as error:
                problems.append(f"{section}.{key}: {error}")
        try:
            sections[section] = type(main).model_validate({**main.model_dump(exclude_unset=True), **over})
        except ValidationError as error:
            problems += [f"{section}.{problem}" for problem in suggestions.problems_of(error, type(main))]
    merged = settings.model_copy(update=sections)
    if not problems:
        before = conflicts(settings)
        problems = [problem for problem in conflicts(merged) if problem not in before]
    if problems:
        raise _Refused(_plain("; ".join(problems)))
    return merged


def _unknown(section: str, value: Any) -> list[str]:
    if section not in ALLOWED:
        return [f"{name_shown(section)}: is nothing that a run may set; {suggestions.nearest(section, ALLOWED)}"]
    if not isinstance(value, dict):
        return [f"{section}: is a section; write [{section}]"]
    known = ALLOWED[section]
    return [
        f"{section}.{name_shown(key)}: is no key that a run may set; {suggestions.nearest(key, known)}" for key in value if key not in known
    ]


def _plain(text: str) -> str:
    """Another user's text on one line of bounded length, without what a terminal would obey."""
    return "".join(character if character.isprintable() else "?" for character in text)[:SENTENCE_LIMIT]
