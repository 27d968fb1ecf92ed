"""`ckptd export` of checkpoints in pieces: the same merged weights as of the same checkpoint by save_pretrained; killed, it goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.merge import helpers
from tests.models import read_json

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]


def export(checkpoint: Path, home: Path, *options: str, fault: str = "") -> subprocess.CompletedProcess[str]:
    """`ckptd export`, with an output and a state below `home`."""
    variants = "pytorch" if options else "pytorch,pytorch-adapter"
    environment: dict[str, Any] = {
        **os.environ, "XDG_STATE_HOME": str(home / "state"), "CKPTD_EXPORT__VARIANTS": variants,
        "CKPTD_VALIDATE__SAMPLES": "2", "CKPTD_VALIDATE__NEW_TOKENS": "4", "CKPTD_VALIDATE__SPEED_TOKENS": "0",
        "CKPTD_LIMITS__DISK_RESERVE": "0", "CKPTD_FAULT_ONCE": str(home / "once"), "CKPTD_FAULT": fault,
    }  # fmt: skip
    if fault:
        (home / "once").touch()
    command = [sys.executable, "-m", "daemon", "export", str(checkpoint), "--output", str(home / "out"), "--json", *options]
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=400, check=False)


def published(home: Path) -> Path:
    (found,) = (path.parent for path in (home / "out").glob("*/*/MANIFEST.json") if not path.parent.is_symlink())
    return found


def test_an_adapter_in_pieces_gives_the_weights_that_the_same_adapter_gives(saved: Path, adapter: Path, tmp_path: Path) -> None:
    run = tmp_path / "plain" / "run"
    shutil.copytree(adapter, run / "checkpoint-4")
    (run / "checkpoint-4" / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    done = export(run / "checkpoint-4", tmp_path / "plain")
    assert done.returncode == 0, done.stdout + done.stderr
    done = export(saved / "peft" / "checkpoint-4", tmp_path / "pieces")
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("pytorch/model.safetensors", "pytorch-adapter/adapter_model.safetensors", "pytorch/config.json"):
        assert (published(tmp_path / "pieces") / name).read_bytes() == (published(tmp_path / "plain") / name).read_bytes()
    assert read_json(published(tmp_path / "pieces") / "report.json")["status"] == "succeeded"


def test_an_adapter_in_pieces_is_merged_with_another_as_the_same_adapter_is(
    saved: Path, adapter: Path, pico_base: Path, tmp_path: Path
) -> None:
    style = helpers.make_adapter(pico_base, tmp_path / "style", seed=4, r=2, target_modules=["q_proj", "down_proj"])
    shutil.copytree(adapter, tmp_path / "plain" / "run" / "checkpoint-4")
    merged = []
    for checkpoint, home in ((tmp_path / "plain" / "run" / "checkpoint-4", "a"), (saved / "peft" / "checkpoint-4", "b")):
        done = export(checkpoint, tmp_path / home, "--add", f"{style}=0.5")
        assert done.returncode == 0, done.stdout + done.stderr
        merged.append((published(tmp_path / home) / "pytorch" / "model.safetensors").read_bytes())
    assert merged[0] == merged[1]


def test_a_model_in_pieces_gives_the_file_of_save_pretrained_although_its_stage_was_killed(
    saved: Path, pico_base: Path, tmp_path: Path
) -> None:  # fmt: skip
    checkpoint = saved / "trainer" / "checkpoint-4"
    done = export(checkpoint, tmp_path, "--base", str(pico_base), fault="consolidate.file.written")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (published(tmp_path) / "pytorch" / "model.safetensors").read_bytes() == (saved / "full" / "model.safetensors").read_bytes()
    assert (published(tmp_path) / "pytorch" / "tokenizer.json").is_file()
    assert sorted(path.name for path in checkpoint.iterdir()) == ["pytorch_model_fsdp_0", "trainer_state.json"], "nothing is written there"
    stages = {one["name"]: one for one in read_json(published(tmp_path) / "report.json")["stages"]}
    assert len(stages["consolidate"]["attempts"]) == 2, "the first was killed"


def test_a_model_of_which_nothing_is_known_fails_at_its_first_stage(saved: Path, tmp_path: Path) -> None:
    done = export(saved / "titan" / "step-4", tmp_path, "--force")
    assert done.returncode == 1
    assert "--base" in done.stdout
