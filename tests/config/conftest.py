"""A configuration file in a fresh folder, and an environment without settings of the person who runs the tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config.loading import load
from daemon.config.settings import Settings
from daemon.contract.faults.errors import UsageError

Write = Callable[[str], Path]


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("CKPTD_", "EXPORT_")) or name in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "XDG_STATE_HOME"):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes the text as the configuration file and gives its path."""

    def function(text: str) -> Path:
        file = tmp_path / "etc" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        return file

    return function


@pytest.fixture
def loaded(write: Write) -> Callable[..., Settings]:
    return lambda text, **options: load(write(text), **options)


@pytest.fixture
def refusal(write: Write) -> Callable[..., str]:
    """The sentence with which a configuration is refused."""

    def function(text: str, **options: bool) -> str:
        with pytest.raises(UsageError) as caught:
            load(write(text), **options)
        return str(caught.value)

    return function
