"""A yard in a fresh folder, a real far end, and one whose process does what a script says."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deliver.queue.yard import ROOT, SCRIPTED, Aim, Yard
from tests.deliver.sites.reference import SITE
from tests.runner.conftest import add, make_toy

__all__ = ["add", "make_toy"]


@pytest.fixture(autouse=True)
def path_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with Yard(tmp_path) as made:
        yield made


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SITE]:
    folder = tmp_path / "far"
    folder.mkdir()
    with SITE(folder) as far:
        yield far


Script = Callable[..., Aim]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """Makes a target that does this at each attempt, the last for all further ones."""
    folder = tmp_path / "scripted"
    folder.mkdir()

    def make(*steps: dict[str, Any], **more: Any) -> Aim:
        (folder / "script.json").write_text(json.dumps(steps))
        return Aim(entry=SCRIPTED, kind="scripted", options={"folder": str(folder), **more.pop("options", {})}, **more)

    return make


@pytest.fixture
def delivered(tmp_path: Path) -> Callable[[], list[str]]:
    """What arrived at the scripted far end."""
    file = tmp_path / "scripted" / "delivered"
    return lambda: file.read_text().splitlines() if file.exists() else []
