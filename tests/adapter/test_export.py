"""The variant on the whole way: made, checked, timed, published and described by the program itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import models

ROOT = Path(__file__).parents[2]
Export = Callable[..., tuple[int, str, Path]]


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Runs `ckptd export` on a checkpoint: exit code, what it said, and the export's folder."""

    def run(checkpoint: Path, *variants: str, speed: int = 0) -> tuple[int, str, Path]:
        folder = tmp_path_factory.mktemp("box")
        config = folder / "config.toml"
        config.write_text(
            f'[output]\ndirectory = "{folder}/exports"\n[state]\ndirectory = "{folder}/state"\n[export]\n'
            f"variants = {json.dumps(variants)}\n[validate]\nsamples = 2\nmost_samples = 2\nnew_tokens = 6\nspeed_tokens = {speed}\n"
        )
        command = [sys.executable, "-m", "daemon", "export", str(checkpoint), "--config", str(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=280)
        (report,) = folder.glob("exports/**/report.json")
        return done.returncode, done.stdout + done.stderr, report.parent

    return run


def read(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return value


@pytest.mark.slow
def test_it_is_made_checked_and_its_example_runs(export: Export, pico_checkpoint: Path) -> None:
    code, said, folder = export(pico_checkpoint, "pytorch-adapter")
    assert code == 0, said
    report = read(folder)
    (artifact,) = report["artifacts"]
    assert artifact["verdict"] == "passed" and artifact["published"]
    assert artifact["figures"]["error_max"] == 0.0
    told = json.loads((folder / "pytorch-adapter" / "adapter_base.json").read_text())
    assert told["digest"] == report["base"]["digest"]
    readme = (folder / "README.md").read_text()
    assert "vllm serve BASE --enable-lora" in readme and told["digest"] in readme
    (code_block,) = re.findall(r"## pytorch-adapter/\n.*?```python\n(.*?)```", readme, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code_block],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.slow
def test_it_is_timed_and_what_servers_can_not_do_is_in_the_readme(export: Export, pico_base: Path, tmp_path: Path) -> None:
    from tests.merge import helpers

    adapter = helpers.make_adapter(pico_base, tmp_path / "checkpoint-1", use_dora=True, target_modules=["q_proj"])
    code, said, folder = export(adapter, "pytorch-adapter", speed=8)
    assert code == 0, said
    assert read(folder)["artifacts"][0]["figures"]["speed_over_pytorch"] > 0
    readme = (folder / "README.md").read_text()
    assert "vLLM can't use this adapter (newer releases may): it refuses DoRA." in readme and "vllm serve" not in readme
    assert any("vLLM can't use this adapter" in one["text"] for one in read(folder)["warnings"])


@pytest.mark.slow
def test_a_full_fine_tune_is_exported_without_it_and_says_why(export: Export, tmp_path: Path) -> None:
    full = models.make_base(tmp_path / "checkpoint-3", seed=5)
    code, said, folder = export(full, "pytorch", "pytorch-adapter")
    assert code == 3, said
    report = read(folder)
    assert report["status"] == "partial"
    verdicts = {one["variant"]: (one["verdict"], one["published"]) for one in report["artifacts"]}
    assert verdicts == {"pytorch": ("passed", True), "pytorch-adapter": ("failed", False)}
    failure, *followers = report["failures"]
    assert failure["code"] == "no-adapter" and "the checkpoint is a full fine-tune, which has no adapter" in failure["sentence"]
    assert {one["code"] for one in followers} <= {"skipped"}
    assert "Traceback" not in said
