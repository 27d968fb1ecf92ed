"""Sharded checkpoints saved by two real ranks, made once for the tests in here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.merge import helpers
from tests.sharing import shared

ROOT = Path(__file__).parents[2]
RANKS = 2


@pytest.fixture(scope="session")
def adapter(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter as PEFT saves it. Read only."""
    return shared(tmp_path_factory, "adapter", lambda folder: helpers.make_adapter(pico_base, folder / "adapter"))


@pytest.fixture(scope="session")
def saved(pico_base: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks of a training left (`rank`), with what Trainer writes last. Read only."""
    return shared(tmp_path_factory, "sharded", lambda folder: save(pico_base, adapter, folder))


def save(base: Path, adapter: Path, out: Path) -> Path:
    """Have both ranks save into a folder."""
    commands = [[sys.executable, "-m", "tests.consolidate.rank", base, adapter, out, str(rank), str(RANKS)] for rank in range(RANKS)]
    running = [subprocess.Popen(one, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for one in commands]
    said = [one.communicate(timeout=240)[0] for one in running]
    assert [one.returncode for one in running] == [0] * RANKS, "\n".join(said)[-6000:]
    for run in ("trainer", "peft"):
        (out / run / "checkpoint-4" / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    shutil.copy(adapter / "adapter_config.json", out / "peft")
    return out
