"""Whether the texts that the configuration names can be read, for `ckptd check`. It looks at the beginning of one file, as its kind allows.

Called by the doctor. Arrow and parquet are only known by their first bytes here: what reads them is heavy, and runs in a stage.
"""

from __future__ import annotations

import json
from functools import partial

from daemon.config.settings import Settings
from daemon.contract.disk.answers import ask
from daemon.contract.disk.data_files import EXPECTED, SUFFIXES, DataFile, DataPlace, other_kind

BEGINNING = 1 << 16
"""Bytes that are looked at."""
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")


def problems_of_texts(settings: Settings) -> list[str]:
    """What keeps `validate.prompts` and `validate.data` from being read: every export's check would fail with it."""
    problems = []
    for key, value in (("validate.prompts", settings.validate.prompts), ("validate.data", settings.validate.data)):
        if not value:
            continue
        try:
            problem = ask(value, partial(_problem, value))
        except TimeoutError:
            problem = "its file system does not answer; look at the mount and its server"
        if problem is not None:
            problems.append(f"{key}: {value}: {problem}")
    return problems


def _problem(value: str) -> str | None:
    try:
        files = DataPlace.of(value).files()
        if not files:
            return f"no file in it has a name that ends with {', '.join(SUFFIXES)}; give a folder of a data set, or a file"
        problems = [_unusable(file) for file in files[:8]]
    except FileNotFoundError:
        return 'there is no such file or folder; correct the path, or set it to ""'
    except (OSError, ValueError) as error:
        return f'it can\'t be read ({getattr(error, "strerror", None) or error}); correct the path or its rights, or set it to ""'
    first = next((problem for problem in problems if problem), None)
    return first if first is not None and all(problems) else None


def _unusable(file: DataFile) -> str | None:
    """Why no row can be read at the beginning of a file."""
    with file.open() as stream:
        data = stream.read(BEGINNING)
    where = f"{file.name} " if file.parts else "it "
    if not data.strip():
        return f"{where}is empty; {EXPECTED}"
    if data.startswith((b"PAR1", *_ARROW[:1])) or (file.suffix in (".arrow", ".feather") and data.startswith(_ARROW)):
        return None
    if other := other_kind(data):
        return other.replace("it ", where, 1)
    if file.suffix in (".parquet", ".arrow", ".feather"):
        return f"{where}does not begin as a file of that kind does; write it again"
    whole = data if len(data) < BEGINNING else data[: data.rfind(b"\n") + 1] or data
    if file.suffix == ".json":
        return None if data.lstrip()[:1] in (b"[", b"{") else f"{where}is not JSON; give a list of rows: {EXPECTED}"
    if file.suffix in (".jsonl", ".ndjson"):
        return None if any(map(_is_row, whole.split(b"\n"))) or len(whole) == BEGINNING else f"{where}has no JSON row; {EXPECTED}"
    try:
        whole.decode("utf-8") if b"\n" in whole or len(data) < BEGINNING else None
    except UnicodeDecodeError:
        return f"{where}is not UTF-8 text; give one text a line"
    return None


def _is_row(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict | str)
    except (ValueError, RecursionError):
        return False
