"""The small program that continues a prompt with an ONNX folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from handlers.validate.generate import generate, penalized


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "handlers.validate.generate", *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_the_program_prints_prompt_and_continuation(folders: dict[str, Path]) -> None:
    done = _run(folders["onnx"], "--prompt", "def add(a", "--tokens", "12")
    text, _ = generate(folders["onnx"], "def add(a", 12)
    assert done.returncode == 0 and text
    assert done.stdout == "def add(a" + text + "\n"
    assert "tokens/s" in done.stderr


def test_it_continues_as_pytorch_does(folders: dict[str, Path]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folders["pytorch"])
    model = AutoModelForCausalLM.from_pretrained(folders["pytorch"], dtype="float32")
    inputs = tokenizer("import os", return_tensors="pt")
    for penalty in (1.0, 1.3):
        output = model.generate(**inputs, max_new_tokens=16, do_sample=False, repetition_penalty=penalty)
        expected = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert generate(folders["onnx"], "import os", 16, penalty=penalty)[0] == expected


def test_it_stays_within_the_positions_that_the_model_addresses(folders: dict[str, Path]) -> None:
    from handlers.validate.engines.graphs.onnx_causal import OnnxEngine
    from handlers.validate.engines.registry import EngineSpec

    engine = OnnxEngine(EngineSpec(engine="onnx", folder=str(folders["onnx"])))
    assert engine.context_length == 256
    text, _ = generate(folders["onnx"], "x" * 250, 4096)
    assert len(text) < 256


@pytest.mark.parametrize(
    ("damage", "said"),
    [("missing", "holds no model.onnx"), ("corrupt", "can't be loaded"), ("no-tokenizer", "no tokenizer.json")],
)
def test_a_folder_that_is_no_artifact_gives_one_sentence_and_exit_code_2(
    damage: str, said: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    if damage != "missing":
        (tmp_path / "model.onnx").write_bytes(b"no graph" if damage == "corrupt" else (folders["onnx"] / "model.onnx").read_bytes())
    done = _run(tmp_path, "--prompt", "a")
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and "Fix:" in done.stderr and "Traceback" not in done.stderr


def test_the_penalty_moves_the_choice_away_from_tokens_already_there() -> None:
    logits = np.array([2.0, 1.9, -1.0], dtype=np.float32)
    assert penalized(1.0)(logits, [0]) == 0
    assert penalized(1.2)(logits, [0]) == 1
    assert logits[0] == 2.0
