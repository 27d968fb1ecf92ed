"""Commands that run stages by themselves begin at the same time, each with a folder of its own."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path

import pytest

from daemon.operating.measuring import stages


def test_a_command_that_begins_does_not_sweep_away_the_folder_of_another_that_just_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second begins between the making of the first's folder and its lock."""
    make, seconds, began = tempfile.mkdtemp, list[threading.Thread](), threading.Event()

    def second() -> None:
        began.set()
        with stages.scratch(tmp_path / "state"):
            pass

    def made(*, prefix: str, dir: Path) -> str:
        folder = make(prefix=prefix, dir=dir)
        if not seconds:
            seconds.append(threading.Thread(target=second))
            seconds[0].start()
            began.wait()
            seconds[0].join(0.5)  # it waits for its turn, or has swept
        return folder

    monkeypatch.setattr(stages.tempfile, "mkdtemp", made)
    with stages.scratch(tmp_path / "state") as folder:
        assert folder.is_dir()
        seconds[0].join()
        assert folder.is_dir(), "the second took it for one that was left"
    assert not folder.exists()
