"""`make test-changed` runs what an edit can touch, the nearest first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.changed import ALWAYS, ROOMS, ROOT, chosen


def test_rooms_and_folders_of_the_table_exist() -> None:
    folders = {folder for folders in ROOMS.values() for folder in folders}
    assert all((ROOT / room).is_dir() for room in ROOMS) and all((ROOT / "tests" / folder).is_dir() for folder in folders)
    assert all((ROOT / name).is_file() for name in ALWAYS)
    rooms = {
        f"daemon/{path.name}"
        for path in (ROOT / "daemon").iterdir()
        if path.is_dir() and path.name not in ("__pycache__", "contract", "system")
    }
    assert rooms <= ROOMS.keys(), "of contract and system the importers count"


@pytest.mark.parametrize(
    ("changed", "first", "other"),
    [
        ("daemon/watching/undecided.py", "tests/detection/test_settle.py", "tests/gguf/test_export.py"),
        ("handlers/gguf/stage.py", "tests/gguf/test_export.py", "tests/merge/bases/test_dequantize.py"),
        ("tests/merge/bases/test_dequantize.py", "tests/merge/bases/test_dequantize.py", "tests/gguf/test_export.py"),
    ],
)
def test_an_edit_brings_the_tests_of_its_room_and_no_others(changed: str, first: str, other: str) -> None:
    names = chosen({changed})
    assert first in names and other not in names and {*ALWAYS} <= {*names}
    if changed == first:
        assert names[0] == first


def test_a_module_that_a_helper_of_tests_imports_brings_the_tests_that_use_the_helper() -> None:
    assert "tests/publish/test_owners.py" in chosen({"daemon/publishing/exchange/owners.py"})
    assert Path(ROOT, "tests/simulation/owners.py").is_file() and "tests/simulation/test_owners.py" in chosen(
        {"daemon/publishing/retention.py"}
    )
