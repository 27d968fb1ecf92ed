"""A real export of the pico checkpoint, made once, moved away from all that it was made of; and `ckptd verify` with a state of its own."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sharing import shared
from tests.validate.conftest import folders
from tests.verbs import run_verb

__all__ = ["folders"]

VARIANTS = "pytorch,onnx,onnx-int8"
Verify = Callable[..., tuple[int, Any, str]]


def environment(state: Path, **more: str) -> dict[str, str]:
    """Variables of a command with that state and no configuration."""
    names = {key: value for key, value in os.environ.items() if not key.startswith("EXPORT_")}
    return {**names, "XDG_STATE_HOME": str(state), "CKPTD_LIMITS__DISK_RESERVE": "0", "CKPTD_LIMITS__THREADS": "1", **more}


def published(checkpoint: Path, home: Path, variants: str, **more: str) -> Path:
    """`ckptd export`; gives the export's folder."""
    names = environment(
        home / "state", CKPTD_EXPORT__VARIANTS=variants, CKPTD_VALIDATE__SPEED_TOKENS="0", CKPTD_VALIDATE__NEW_TOKENS="8", **more
    )
    done = run_verb(["export", str(checkpoint), "--output", str(home / "out"), "--force"], home, names, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    (manifest,) = (path for path in (home / "out").glob("*/*/MANIFEST.json") if not path.parent.is_symlink())
    return manifest.parent


@pytest.fixture(scope="session")
def kept_export(pico_base: Path, pico_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of `checkpoint-4`. The base and the run that it was made of were copies and are gone, and so is its state. Read only."""

    def make(root: Path) -> Path:
        base, run = root / "base", root / "runs" / "pico-run"
        shutil.copytree(pico_base, base)
        shutil.copytree(pico_run, run)
        adapter = run / "checkpoint-4" / "adapter_config.json"
        adapter.write_text(json.dumps({**json.loads(adapter.read_text()), "base_model_name_or_path": str(base)}))
        export = published(run / "checkpoint-4", root, VARIANTS).rename(root / "elsewhere")
        for folder in (base, root / "runs", root / "state", root / "out"):
            shutil.rmtree(folder)
        return export

    return shared(tmp_path_factory, "kept-export", make)


@pytest.fixture
def verify(tmp_path: Path) -> Verify:
    """Run `ckptd verify`; gives its exit code, its JSON answer, and what it said on stderr."""

    def run(*words: str | Path, **more: str) -> tuple[int, Any, str]:
        done = run_verb(["verify", *map(str, words), "--json"], tmp_path, environment(tmp_path / "xdg", **more), timeout=400)
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr

    return run


@pytest.fixture
def copied(kept_export: Path, tmp_path: Path) -> Path:
    """A copy of that export, for a test that damages it."""
    target = tmp_path / "export"
    shutil.copytree(kept_export, target)
    return target
