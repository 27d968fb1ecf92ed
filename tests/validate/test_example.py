"""The example in a folder of graphs continues a text as PyTorch does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from handlers.folder import examples
from tests.validate import artifacts


def test_it_continues_as_pytorch_does_with_and_without_a_penalty_on_what_is_there(folders: dict[str, Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = artifacts.copy(folders["onnx"], tmp_path / "onnx")
    examples.place("text-generation", folder)
    tokenizer = AutoTokenizer.from_pretrained(folders["pytorch"])
    model = AutoModelForCausalLM.from_pretrained(folders["pytorch"], dtype="float32")
    inputs, expected = tokenizer("import os", return_tensors="pt"), []
    for penalty in (1.0, 1.3):
        output = model.generate(**inputs, max_new_tokens=16, do_sample=False, repetition_penalty=penalty)
        expected.append(tokenizer.decode(output[0], skip_special_tokens=True) + "\n")
        words = ["import os", "--tokens", "16", "--repetition-penalty", str(penalty)]
        done = subprocess.run([sys.executable, str(folder / examples.NAME), *words], capture_output=True, text=True, check=True)
        assert done.stdout == expected[-1]
    assert expected[0] != expected[1]
