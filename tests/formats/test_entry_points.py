"""The entry points that are read by ourselves are those that `importlib.metadata` finds."""

from __future__ import annotations

import importlib.metadata
import sys
import zipfile
from pathlib import Path

import pytest

from daemon.contract.formats.catalog import GROUP
from daemon.contract.formats.entry_points import values_of

TEXT = """[console_scripts]
x = y:z

[ckptd.formats]
# a comment
{name} = {name}.format:FORMAT
  more= {name}.more:FORMAT [extra]
[other]
a=b:c
"""


def described(folder: Path, name: str, text: str = TEXT) -> None:
    """A project's description in a folder of the module search path."""
    (folder / name).mkdir(parents=True)
    (folder / name / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.partition('-')[0]}\nVersion: 1\n")
    written = text.replace("{name}", name.partition("-")[0])
    (folder / name / "entry_points.txt").write_text(written)


def found() -> set[str]:
    """What `importlib.metadata` says."""
    importlib.invalidate_caches()
    return {entry.value for entry in importlib.metadata.entry_points(group=GROUP)}


def test_ours_are_found() -> None:
    assert values_of(GROUP) == found() and "handlers.onnx.format:FORMAT" in values_of(GROUP)


def test_those_of_other_projects_are_found_where_their_descriptions_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    described(first, "flat-1.dist-info")
    described(first, "Twice.Named-1.dist-info", "")
    described(second, "twice_named-2.dist-info")
    described(second, "older-1.egg-info")
    described(second, "empty-1.dist-info", "")
    described(second, "no_group-1.dist-info", "[ckptd.format]\na = no:no\n")
    (second / "a_file-1.dist-info").write_text("no folder")
    for folder in (second, first, tmp_path / "gone"):
        monkeypatch.syspath_prepend(str(folder))
    assert values_of(GROUP) == found() >= {"flat.format:FORMAT", "flat.more:FORMAT [extra]", "older.format:FORMAT"}
    assert not any(value.startswith(("twice", "no:")) for value in values_of(GROUP))


def test_what_lies_in_an_archive_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described(tmp_path, "packed-1.dist-info")
    with zipfile.ZipFile(archive := tmp_path / "packed.zip", "w") as packed:
        for file in (tmp_path / "packed-1.dist-info").iterdir():
            packed.write(file, f"packed-1.dist-info/{file.name}")
    monkeypatch.setattr(sys, "path", [*sys.path, str(archive)])
    assert values_of(GROUP) == found() and "packed.format:FORMAT" in values_of(GROUP)
