"""A checkpoint of a real training, exported to GGUF by the command line; the README's commands run it, and damage is caught."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import models
from tests.gguf import forms
from tests.toolchains import real
from tests.validate import sabotage

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.exported(tmp_path_factory, "gguf")


def test_the_smallest_form_was_made_with_texts_no_form_has_a_note_and_fewer_bits_take_less(exported: Path) -> None:
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    assert not any(artifact["figures"].get("notes") for artifact in report["artifacts"])
    sizes = {artifact["variant"].removeprefix("gguf-"): artifact["size_bytes"] for artifact in report["artifacts"]}
    assert sizes["q4_k_m"] <= sizes["q5_k_m"] <= sizes["q6_k"] <= sizes["q8_0"] < min(sizes["f16"], sizes["bf16"])
    assert abs(sizes["f16"] - sizes["bf16"]) < 100
    figures = {stage["name"]: stage["figures"] for stage in report["stages"]}
    assert figures["gguf-q4_k_m"]["calibration_texts"] > 0 and figures["gguf-q4_k_m"]["weights"]["Q4_K"] > 0


def test_a_file_has_the_models_chat_template_name_and_end(exported: Path, libraries: None) -> None:
    (path,) = (exported / "gguf-q4_k_m").glob("*.gguf")
    keys = forms.keys(path)
    assert keys["tokenizer.chat_template"] == models.CHAT_TEMPLATE
    assert keys["general.name"] == "run step 4" and keys["tokenizer.ggml.eos_token_id"] == 1
    assert {entry.name for entry in path.parent.iterdir()} == {"model-Q4_K_M.gguf", "Modelfile", "README.md"}
    assert (path.parent / "Modelfile").read_text().startswith("FROM ./model-Q4_K_M.gguf\n")


@pytest.mark.parametrize("variant", ["gguf-q4_k_m", "gguf-bf16"])
def test_the_readmes_code_runs_from_the_folder_alone_and_writes_what_the_model_writes(
    variant: str, run: Path, exported: Path, toolchain: Path, tmp_path: Path
) -> None:
    moved, code = shutil.copytree(exported, tmp_path / "moved"), real.blocks(exported, variant, "python")
    assert len(code) == 2, code
    written, _ = (real.output_of(toolchain, moved, "-c", block) for block in code)
    if variant == "gguf-bf16":
        (prompt,) = re.findall(r"print\(model\((.*?), max_tokens", code[0])
        assert written.rstrip("\n") == real.live_text(run / "checkpoint-4", eval(prompt), 32).rstrip("\n")


@pytest.mark.usefixtures("libraries")
@pytest.mark.parametrize("damage", ["a block of weights", "a norm", "the rotary base", "the file's end"])
def test_a_file_that_was_damaged_is_caught(damage: str, lab: sabotage.Lab, tmp_path: Path) -> None:  # R4.5
    import gguf

    bench, folder = lab.bench(tmp_path / "scratch"), forms.make("gguf-q8_0", lab.made("sound", "pytorch"), tmp_path / "work")[0]
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
    assert bench.checked("gguf-q8_0", folder).verdict == "failed"
