"""A checkpoint of a real training, exported to GGUF by the command line; the README's commands run it, and damage is caught."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.gguf.twin import STRUCTURE
from handlers.validate.workers.client import WorkerFailed
from tests import models
from tests.gguf import forms
from tests.toolchains import real
from tests.validate import sabotage
from tests.validate.bench import Bench

pytestmark = pytest.mark.slow
VARIANTS = ("gguf-q4_k_m", "gguf-q5_k_m", "gguf-q6_k", "gguf-q8_0", "gguf-f16", "gguf-bf16", "gguf-adapter")


@pytest.fixture(scope="module")
def exported(run: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.export(run / "checkpoint-4", state, tmp_path_factory.mktemp("out"), VARIANTS)


def test_all_forms_pass_and_say_with_what_they_were_made(exported: Path) -> None:  # R2.4 R4.1
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    made = {one["variant"]: one for one in report["artifacts"]}
    assert {name: one["verdict"] for name, one in made.items()} == dict.fromkeys(VARIANTS, "passed")
    assert {"gguf", "llama_cpp_python"} <= set(report["versions"])
    assert all(one["figures"]["speed_over_pytorch"] > 0 for one in made.values())
    assert all(made[name]["figures"]["twin_error"] < STRUCTURE / 5 for name in VARIANTS if name != "gguf-adapter"), "each has its twin"
    assert not any(one["figures"].get("notes") for one in made.values())
    sizes = [made[name]["size_bytes"] for name in VARIANTS]
    assert sizes[:4] == sorted(sizes[:4]) and sizes[3] < min(sizes[4:6]) and abs(sizes[4] - sizes[5]) < 100
    figures = {stage["name"]: stage["figures"] for stage in report["stages"]}
    assert figures["gguf-q4_k_m"]["calibration_texts"] > 0 and figures["gguf-q4_k_m"]["weights"]["Q4_K"] > 0


def test_a_file_has_the_models_chat_template_name_and_end(exported: Path, libraries: None) -> None:
    (path,) = (exported / "gguf-q4_k_m").glob("*.gguf")
    said = forms.keys(path)
    assert said["tokenizer.chat_template"] == models.CHAT_TEMPLATE
    assert said["general.name"] == "run step 4" and said["tokenizer.ggml.eos_token_id"] == 1
    assert {one.name for one in path.parent.iterdir()} == {"model-Q4_K_M.gguf", "Modelfile", "README.md"}
    assert (path.parent / "Modelfile").read_text().startswith("FROM ./model-Q4_K_M.gguf\n")


@pytest.mark.parametrize("variant", ["gguf-q4_k_m", "gguf-bf16"])
def test_the_readmes_code_runs_from_the_folder_alone_and_writes_what_the_model_writes(
    variant: str, run: Path, exported: Path, toolchain: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(exported, tmp_path / "moved")
    section = (moved / "README.md").read_text().split(f"\n## {variant}/\n")[1].split("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(blocks) == 2 and re.search(r"pip install llama-cpp-python==\d", section), section
    written, _ = (in_toolchain(toolchain, moved, block) for block in blocks)
    if variant == "gguf-bf16":
        (prompt,) = re.findall(r"print\(model\((.*?), max_tokens", blocks[0])
        assert written.rstrip("\n") == real.live_text(run / "checkpoint-4", eval(prompt), 32).rstrip("\n")


def in_toolchain(toolchain: Path, folder: Path, script: str) -> str:
    """What a program says that runs in the toolchain's Python, without anything of ours."""
    done = subprocess.run(
        [str(toolchain / "bin" / "python"), "-I", "-c", script], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("source", sabotage.SOURCES)
def test_what_was_made_of_a_wrong_model_is_caught_and_what_is_sound_passes(source: str, lab: sabotage.Lab, tmp_path: Path) -> None:  # R4.5
    model, bench = lab.made(source, "pytorch"), lab.bench(tmp_path / "scratch")
    chosen = ("gguf-f16", "gguf-q8_0", "gguf-q4_k_m")
    checks = [bench.check(variant, forms.make(variant, model, tmp_path / variant)[0]) for variant in chosen]
    verdicts = [str(one.verdict) for one in checks]
    assert verdicts == ["passed"] * 3 if source == "sound" else verdicts[:2] == ["failed"] * 2, [one.reasons for one in checks]


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("damage", ["a block of weights", "a norm", "the rotary base", "the file's end"])
def test_a_file_that_was_damaged_is_caught(damage: str, lab: sabotage.Lab, tmp_path: Path) -> None:  # R4.5
    import gguf

    model, bench = lab.made("sound", "pytorch"), lab.bench(tmp_path / "scratch")
    folder = forms.make("gguf-q8_0", model, tmp_path / "work")[0]
    assert not caught(bench, folder)
    (path,) = folder.glob("*.gguf")
    reader = gguf.GGUFReader(path, "r+")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if damage == "a block of weights":
        tensors["blk.1.ffn_down.weight"].data[:8, 2:34] = np.random.default_rng(0).integers(0, 255, (8, 32), np.uint8)
    elif damage == "a norm":
        tensors["blk.0.attn_norm.weight"].data[:] = 0
    elif damage == "the rotary base":
        field = reader.fields["qwen3.rope.freq_base"]
        field.parts[field.data[0]][:] = 10.0
    reader.data.flush()
    del reader, tensors
    if damage == "the file's end":
        os.truncate(path, path.stat().st_size // 2)
    assert caught(bench, folder)


def caught(bench: Bench, folder: Path) -> bool:
    """Whether the check fails, or refuses to compare what the model says."""
    try:
        return bench.check("gguf-q8_0", folder).verdict == "failed"
    except WorkerFailed:
        return True
