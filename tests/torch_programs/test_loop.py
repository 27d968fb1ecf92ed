"""The scripted loop inside a TorchScript program of a language model: each of its branches, what it must not write, and its limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from handlers.torch_programs import loop
from handlers.torch_programs.program import Program
from tests.onnx import qwen
from tests.onnx.test_encoders import make as make_encoder
from tests.pytorch.forms import gpt2, make
from tests.sampling import some
from tests.stages import refused
from tests.torch_programs.forms import ALONE, logits_of


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen.make(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def folder(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    staged, output = make("torchscript", tiny, tmp_path_factory.mktemp("work"))
    assert output.figures["scripted"] == {"method": "generate", "cases": 8}
    assert 0 <= output.figures["optimized_relative_error"] < 1e-4
    return staged


def of_transformers(model: Path, ids: np.ndarray, mask: np.ndarray, most: int, end: int | None) -> np.ndarray:
    """What transformers' own greedy decoding writes behind the ids."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    live = AutoModelForCausalLM.from_pretrained(model)
    live.generation_config = GenerationConfig(max_new_tokens=most, do_sample=False, eos_token_id=end, pad_token_id=end if end else 0)
    found = live.generate(torch.from_numpy(ids), attention_mask=torch.from_numpy(mask))
    return np.asarray(found[:, ids.shape[1] :].numpy())


def test_it_writes_what_transformers_writes_whatever_branch_it_takes(tiny: Path, folder: Path) -> None:  # R10
    program = Program(folder / "model.pt")
    ids, mask = np.array([[5, 6, 7, 8], [0, 0, 9, 10]]), np.array([[1, 1, 1, 1], [0, 0, 1, 1]])
    whole = program.generate(ids, mask, 12, [])
    assert whole.shape == (2, 12) and np.array_equal(whole, of_transformers(tiny, ids, mask, 12, None))
    end = int(whole[0, 4])
    stopped = program.generate(ids[:1], mask[:1], 12, [end])
    assert stopped.shape[1] == whole[0].tolist().index(end) + 1, "it ends with the first end token"
    assert np.array_equal(program.generate(ids, mask, 12, [end]), of_transformers(tiny, ids, mask, 12, end))
    assert program.generate(ids, mask, 0, [end]).shape == (2, 0) and program.generate(ids[:1, :1], mask[:1, :1], 1, []).shape == (1, 1)


def test_a_model_that_counts_positions_itself_has_the_loop_too(tmp_path: Path) -> None:
    staged, output = make("torchscript", gpt2(tmp_path / "model"), tmp_path / "work")
    assert output.figures["scripted"]["cases"] >= 7
    assert Program(staged / "model.pt").generate(np.array([[5, 6]]), np.array([[1, 1]]), 3, []).shape == (1, 3)


def test_an_encoder_has_none(tmp_path: Path) -> None:
    _, output = make("torchscript", make_encoder(tmp_path / "model", "Bert", "text-classification"), tmp_path / "work")
    assert "scripted" not in output.figures and output.figures["optimized_relative_error"] < 1e-4


MISTAKES = {
    "positions": ("(mask.cumsum(1) - 1)", "(mask.cumsum(1) * 0)"),
    "the end": ("ended = ended | (token == end)", "ended = ended"),
    "what fills up": ("torch.where(ended, torch.full_like(token, ends[0]), token)", "token"),
    "the mask": ("torch.ones([rows, 1], dtype=torch.long)], 1)", "torch.zeros([rows, 1], dtype=torch.long)], 1)"),
    "the choice": (".argmax(-1)", ".argmin(-1)"),
    "the most": ("written.size(1) < most", "written.size(1) <= most"),
}


@pytest.mark.parametrize("mistake", some(tuple(MISTAKES), of=3))
def test_a_loop_with_a_mistake_in_it_is_refused(mistake: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # R4.4
    plain, (right, wrong) = loop._text, MISTAKES[mistake]
    assert right in plain(signature := reference_signature(tiny)), signature
    monkeypatch.setattr(loop, "_text", lambda given: plain(given).replace(right, wrong))
    refused("the scripted loop writes", make, "torchscript", tiny, tmp_path / "work")


def reference_signature(model: Path) -> loop.CausalSignature:
    from handlers.families.base import Tracing
    from handlers.families.choice import choose

    family = choose(model)
    signature = family.refer(family.load(model, Tracing("sdpa")), model).signature
    assert isinstance(signature, loop.CausalSignature)
    return signature


def test_transformers_models_are_not_scripted_as_a_whole(tiny: Path) -> None:
    """Why programs are traced. If this fails, scripting has become possible, and the stage should try it first."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny)
    with pytest.raises(Exception, match=r"Failed to get source|variable number of arguments"):
        torch.jit.script(model)
    with pytest.raises(Exception, match="variable number of arguments"):
        torch.jit.script(model.model.layers[0])
    torch.jit.script(model.model.layers[0].mlp)
    torch.jit.script(model.model.norm)


def test_what_is_optimized_on_loading_says_the_same(tiny: Path, folder: Path) -> None:
    command = [sys.executable, "-I", "-W", "ignore", "-c", ALONE, str(folder), "1"]
    plain, optimized = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert np.allclose(plain, logits_of(tiny), atol=1e-4) and np.allclose(plain, optimized, atol=1e-4)
