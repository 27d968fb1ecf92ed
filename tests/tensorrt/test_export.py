"""Checkpoints of real trainings of every kind, exported by the command line; what was not verified is said."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tensorrt import forms
from tests.toolchains import real
from tests.torch_programs.test_published import checkpoint_of

pytestmark = pytest.mark.slow
BUNDLES = ("tensorrt-bundle", "tensorrt-bundle-fp16")
RTX = ("tensorrt-rtx", "tensorrt-rtx-fp16")


@pytest.fixture(scope="module")
def exported(run: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    return real.export(run / "checkpoint-4", state, folder, (*BUNDLES, *RTX, "tensorrt-llm"), 3, RTX[:1])


def test_what_could_be_run_passes_and_engines_are_unverified(exported: Path) -> None:  # R2.4 R4.1
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    made = {one["variant"]: one for one in report["artifacts"]}
    passed = dict.fromkeys((*BUNDLES, "tensorrt-llm"), "passed")
    assert {name: one["verdict"] for name, one in made.items()} == {**passed, **dict.fromkeys(RTX, "unverified")}
    assert [name for name in RTX if made[name]["published"]] == ["tensorrt-rtx"], "by validate.publish_unverified alone"
    assert "no NVIDIA driver" in made["tensorrt-rtx"]["reasons"][0]
    figures = {stage["name"]: stage["figures"] for stage in report["stages"]}
    assert figures["tensorrt-bundle"]["verify_error"] < 1e-4 and figures["tensorrt-bundle"]["examples"] == 4
    assert figures["tensorrt-bundle"]["profiles"] == {"model": ["prefill", "decode"]}
    assert (exported / "tensorrt-rtx" / "engines" / "model.engine").is_file()


def test_the_readmes_commands_run_as_far_as_a_stand_in_goes(exported: Path, driver: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(exported, tmp_path / "moved")
    readme = (moved / "README.md").read_text()
    (commands, *_) = real.blocks(moved, "tensorrt-bundle", "shell")
    assert commands.splitlines() == ["bash tensorrt-bundle/build.sh", "python tensorrt-bundle/verify.py"]
    trtexec, calls = str(forms.STAND_IN / "trtexec"), str(tmp_path / "calls")
    environment = {**os.environ, "TRTEXEC": trtexec, "STAND_IN_CALLS": calls}
    done = subprocess.run(["bash", "-c", commands.splitlines()[0]], cwd=moved, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and (moved / "tensorrt-bundle" / "engines" / "model.engine").is_file(), done.stderr
    shutil.rmtree(moved / "tensorrt-bundle" / "engines")
    done = forms.on_gpu(moved / "tensorrt-bundle", driver, "verify.py")
    assert done.returncode == 0 and json.loads(done.stdout)["verdict"] == "passed", done.stderr
    (command,) = real.blocks(moved, "tensorrt-bundle", "sh")
    wanted = next(one for one in json.loads((moved / "report.json").read_bytes())["artifacts"] if one["variant"] == "tensorrt-bundle")
    done = subprocess.run(
        ["bash", "-c", command.replace("python ", f"{sys.executable} -I ", 1)], cwd=exported, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert wanted["figures"]["sample"]["text"]
    assert "`trtllm-serve pytorch`" in readme and "trtllm-build --checkpoint_dir tensorrt-llm" in readme


@pytest.mark.parametrize("kind", ["seq2seq", "encoder"])
def test_encoders_and_encoder_decoders_are_exported_too(kind: str, state: Path, tmp_path: Path) -> None:  # R2.4
    checkpoint = checkpoint_of(kind, tmp_path)
    folder = real.export(checkpoint, state, tmp_path / "out", (*BUNDLES, "tensorrt-rtx"), 3)
    made = {one["variant"]: one for one in json.loads((folder / "report.json").read_bytes())["artifacts"]}
    assert {name: one["verdict"] for name, one in made.items()} == {**dict.fromkeys(BUNDLES, "passed"), "tensorrt-rtx": "unverified"}
    bundle = folder / "tensorrt-bundle"
    roles = {one["role"] for one in json.loads((bundle / "graphs.json").read_bytes())["graphs"]}
    assert roles == ({"encoder", "decoder", "decoder_with_past"} if kind == "seq2seq" else {"model"})
    code, verdict = forms.verified(bundle)
    assert code == 0 and verdict["verdict"] == "passed"
