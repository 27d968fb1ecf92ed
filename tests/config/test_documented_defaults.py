"""config.toml at the repository's root is the documented default of every key but those of earlier versions."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from daemon.config.loading import load
from daemon.config.older_keys import HIDDEN
from daemon.config.settings import Settings

FILE = Path(__file__).parents[2] / "config.toml"


def flat(value: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Dotted key → plain value. Models are sections; an empty dictionary is a value."""
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, dict) and (value or not path):
        return {key: inner for name, item in value.items() for key, inner in flat(item, (*path, name)).items()}
    plain = list(value) if isinstance(value, tuple) else str(value) if isinstance(value, Path) else "" if value is None else value
    return {".".join(path): plain}


def documented(settings: Settings) -> dict[str, Any]:
    """Its keys, without those of earlier versions."""
    values = flat(settings)
    return {key: value for key, value in values.items() if not any(key == old or key.startswith(f"{old}.") for old in HIDDEN)}


def test_the_file_holds_exactly_the_keys_of_the_settings() -> None:  # R5.6
    assert set(flat(tomllib.loads(FILE.read_text()))) == set(documented(Settings()))


def test_every_default_in_the_file_is_the_default_in_the_code() -> None:  # R5.6
    settings, defaults = Settings(**tomllib.loads(FILE.read_text())), Settings()
    assert flat(settings) == flat(defaults)
    written = flat(tomllib.loads(FILE.read_text()))
    # Sizes are written with a unit; all other values stand in the file exactly as the code has them.
    sizes = ("limits.disk_reserve", "limits.memory_reserve", "output.kept_size")
    assert {key: value for key, value in written.items() if key not in sizes} == {
        key: value for key, value in documented(defaults).items() if key not in sizes
    }


def test_the_documented_file_loads_without_a_complaint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert load(FILE).state_directory == tmp_path / "ckptd"


def keys_with_comments(text: str) -> Iterator[tuple[str, bool]]:
    """Every key line, with whether a comment leads its paragraph."""
    table = ""
    for paragraph in re.split(r"\n\s*\n", text):
        commented = False
        for line in paragraph.splitlines():
            if line.startswith("#"):
                commented = True
            elif match := re.match(r"\[(.+)\]", line):
                table, commented = match[1], False
            elif match := re.match(r"([\w-]+) *=", line):
                yield f"{table}.{match[1]}".lstrip("."), commented


def test_every_key_in_the_file_has_a_comment_above_it_or_above_its_group() -> None:  # R5.6
    found = dict(keys_with_comments(FILE.read_text()))
    assert set(found) == set(documented(Settings()))
    assert [key for key, commented in found.items() if not commented] == []
