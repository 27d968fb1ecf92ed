"""The text of a first configuration: the keys that were chosen, each with a line of comment. Called by `ckptd init`.

What was not chosen is not there: it follows the default of the release that runs, and docs/configuration.md explains it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daemon.config import loading, receivers, reference, template
from daemon.config.places.paths import file_on_the_way, refuse_file
from daemon.config.settings import RetentionSettings, Settings
from daemon.contract.disk.files import write_atomic
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.secrets import is_credential
from daemon.contract.language.catalog import to_translate, translated, translated_text
from daemon.publishing.telling.sending import fault_of

DEFAULTS = Path(loading.__file__).with_name("defaults.toml")
"""config.toml of the repository, which documents every key with its default."""
_HEAD = (
    to_translate(
        "Written by `ckptd init`: only what was chosen. docs/configuration.md explains every key, `ckptd config show` prints all values."
    ),
    to_translate("After a change: `ckptd check` lists what is wrong, and `ckptd reload` makes the running daemon use it."),
    to_translate("Exports: ckptd {keeps}."),
)
KEYS = ("watch.roots", "base.search", "base.map", "output.directory", "export.variants", "notify.urls_file")
"""What may be chosen, apart from secrets."""
Chosen = Mapping[str, Mapping[str, Any]]
"""Section → key → value."""


def text(chosen: Chosen) -> str:
    """The file, with comments in the reader's language. Empty values are left out. Raises KeyError for a key that config.toml has not."""
    left = {name: {key: value for key, value in keys.items() if value or value is False} for name, keys in chosen.items()}
    keeps = translated_text(RetentionSettings().said)
    lines = [*(f"# {translated(line).format(keeps=keeps)}" for line in _HEAD), ""]
    for table in reference.tables(DEFAULTS.read_text("utf-8")):
        mine = left.get(table.name, {})
        keys = [key for key in table.keys if key.name in mine]
        lines += [f"[{table.name}]"] if keys else []
        for key in keys:
            lines += [template.comment(translated(_in_short(key.text)))[0], f"{key.name} = {_toml(mine.pop(key.name))}"]
        lines += [""] if keys else []
    if unknown := [f"{name}.{key}" for name, keys in left.items() for key in keys]:
        raise KeyError(*unknown)
    return "\n".join(lines)


def comments() -> list[str]:
    """What stands above the keys, in English: for the catalogue."""
    tables = reference.tables(DEFAULTS.read_text("utf-8"))
    return [_in_short(key.text) for table in tables for key in table.keys if f"{table.name}.{key.name}" in KEYS]


def _in_short(meaning: str) -> str:
    """The first sentence of what a key means."""
    return re.split(r"(?<=[.])\s", meaning, maxsplit=1)[0]


def _toml(value: Any) -> str:
    """A value of strings, numbers, lists and tables as TOML, in one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(key)} = {_toml(entry)}" for key, entry in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False).replace("\x7f", "\\u007F")


def services(notify: str) -> dict[str, Any]:
    """What `--notify` says: the URLs of standard input, or the path of a file that stays where it is. Raises UsageError."""
    if not notify:
        return {"notify.urls": [], "notify.urls_file": None}
    if "://" in notify or is_credential(notify):
        raise UsageError(
            FaultCode.CONFIG_INVALID, "use --notify", "it is a URL, and others can see a command line",
            "write the URL into a file that only you may read and give its path, or give - and write the URL to standard input",
        )  # fmt: skip
    if notify != "-":
        return {"notify.urls": [], "notify.urls_file": Path(notify).expanduser().absolute()}
    try:
        content = sys.stdin.buffer.read(receivers.MOST_BYTES + 1)
        if len(content) > receivers.MOST_BYTES:
            raise ValueError(f"it has more than {receivers.MOST_BYTES >> 10} KiB")
        urls = receivers.urls_in(content.decode("utf-8-sig"))
    except ValueError as error:
        said = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error).partition(";")[0]
        raise UsageError(
            FaultCode.CONFIG_INVALID, "read the URLs of --notify - from standard input", said,
            "write one Apprise URL a line, for example ntfys://ntfy.sh/TOPIC",
        ) from None  # fmt: skip
    return {"notify.urls": [url.get_secret_value() for url in urls], "notify.urls_file": None}


def validated(content: str) -> Settings:
    """The text as a valid configuration of a daemon. Raises UsageError with all that is wrong with the values that were chosen."""
    with tempfile.TemporaryDirectory(prefix="ckptd-init-") as folder:
        try:
            (Path(folder) / "config.toml").write_text(content, "utf-8")
            return loading.load(Path(folder) / "config.toml", need_roots=True)
        except UsageError as error:
            fault = error.fault
            raise UsageError(fault.code, "make a configuration of that", fault.cause, "use other values") from None
        except UnicodeEncodeError:
            raise UsageError(
                FaultCode.CONFIG_INVALID, "make a configuration of that", "a path is not UTF-8, which a TOML file must be", "rename it"
            ) from None


def refuse_unusable(content: str, chosen: Chosen) -> None:
    """Raise UsageError with the first thing that keeps a daemon from using the values that were chosen. `content`: the file with them."""
    settings = validated(content)
    for key, folders in (
        ("watch.roots", chosen.get("watch", {}).get("roots", ())),
        ("base.search", chosen.get("base", {}).get("search", ())),
        ("output.directory", [folder for name, folder in chosen.get("output", {}).items() if name == "directory"]),
    ):
        for folder in folders:
            refuse_file(folder, f"use it for {key}", "give a directory")
    for receiver in settings.notify.receivers:
        if (said := fault_of(receiver.url)) is not None:
            remedy = "give an Apprise URL, for example ntfys://ntfy.sh/TOPIC, or none"
            raise UsageError(FaultCode.CONFIG_INVALID, f"use {receiver.place}", said, remedy)


def write(path: Path, content: str, *, force: bool, private: bool = False) -> None:
    """Write a file, and the folder around it. `private`: it holds secrets, so that its owner alone may read it.

    Raises UsageError where a file is there already and `force` does not say to replace it.
    """
    refuse_existing(path, force=force)
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if private else 0o644
    if force:
        write_atomic(path, content, mode=mode)
        return
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        refuse_existing(path, force=False)
        raise
    with os.fdopen(number, "w", encoding="utf-8") as stream:
        os.fchmod(stream.fileno(), mode)
        stream.write(content)


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise UsageError where a file is at `path` and `force` does not say to replace it, and where no file can be written there."""
    if path.is_dir():
        raise UsageError(
            FaultCode.CONFIG_EXISTS, "write the configuration", "it is a directory, not a file",
            f"give the file to write, for example {shlex.quote(str(path / 'config.toml'))}", path=path,
        )  # fmt: skip
    if (file := file_on_the_way(path.parent)) is not None:
        cause = f"{file} is a file, not a directory"
        raise UsageError(FaultCode.NOT_A_DIRECTORY, "write the configuration", cause, "give another file to write", path=path)
    if os.path.lexists(path) and not force:
        raise UsageError(
            FaultCode.CONFIG_EXISTS, "write the configuration", "a file already exists there; it was not changed",
            "use another file, or replace it with --force", path=path,
        )  # fmt: skip
