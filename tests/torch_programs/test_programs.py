"""PyTorch's programs of models of every kind say what the models say, at sizes that they were not traced with; wrong ones are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.graphs import graphset
from handlers.graphs.signature import CausalSignature
from tests.onnx import qwen
from tests.pytorch.forms import make
from tests.sampling import some
from tests.stages import refused
from tests.torch_programs.forms import ALONE, MODELS, logits_of

VARIANTS = ("torchscript", "pt2")
CASES = [(name, variant) for variant in VARIANTS for name in MODELS]


@pytest.mark.parametrize(("name", "variant"), some(CASES, of=7))
def test_a_program_says_what_the_model_says_at_any_size(name: str, variant: str, tmp_path: Path) -> None:  # R2.4
    source = MODELS[name](tmp_path / "model")
    folder, output = make(variant, source, tmp_path / "work")
    assert 0 <= output.figures["relative_error"] < 1e-4 and not output.fallbacks
    made = graphset.read(folder)
    roles = ["encoder", "decoder", "decoder_with_past"] if name in ("Marian", "T5") else ["model"]
    assert [one.role for one in made.graphs] == roles
    weights = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    assert sum((folder / one.file).stat().st_size for one in made.graphs) < 3 * weights + 3_000_000


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return qwen.make(tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize("variant", some(VARIANTS, of=2))
def test_a_program_that_forgets_its_cache_is_refused(
    variant: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R4.4
    from handlers.families import causal

    plain = causal.FlatCacheModel.forward

    def forgets(self: causal.FlatCacheModel, *tensors: object) -> object:
        return plain(self, *(one if place < 3 else one * 0 for place, one in enumerate(tensors)))  # type: ignore[arg-type,operator]

    monkeypatch.setattr(causal.FlatCacheModel, "forward", forgets)
    with pytest.raises(Permanent) as refused:
        make(variant, tiny, tmp_path / "work")
    assert refused.value.fault.code == FaultCode.FORM_NOT_POSSIBLE
    assert "with sdpa attention" in refused.value.fault.cause and "with eager attention" in refused.value.fault.cause
    assert not list((tmp_path / "work" / "staging").glob("*.pt*")), "no program is left behind"


@pytest.mark.slow
def test_a_trace_of_one_token_without_a_past_is_found_to_be_wrong(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # the trap of tracing: sizes become constants, silently
    import torch

    from handlers.families import causal

    plain = causal.example_inputs

    def short(model: object, signature: CausalSignature, batch: int = 2) -> tuple[torch.Tensor, ...]:
        ids, mask, positions, *cache = plain(model, signature, batch)
        return (ids[:1, :1], mask[:1, -1:], positions[:1, :1] * 0, *(one[:1, :, :0] for one in cache))

    monkeypatch.setattr(causal, "example_inputs", short)
    refused("makes no program", make, "torchscript", tiny, tmp_path / "work")


@pytest.mark.slow
def test_the_folder_alone_runs_without_transformers(tiny: Path, tmp_path: Path) -> None:  # TorchScript: test_loop.py
    folder, _ = make("pt2", tiny, tmp_path / "work")
    done = subprocess.run([sys.executable, "-I", "-c", ALONE, folder, "1"], capture_output=True, text=True, check=True)
    assert np.allclose(json.loads(done.stdout), logits_of(tiny), atol=1e-4)


def test_a_model_that_computes_otherwise_beyond_what_could_be_compared_is_refused_in_one_sentence(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 1024}
    source = qwen.make(tmp_path / "model", "Llama", rope_parameters=rope, max_position_embeddings=1024)
    refused("It may change beyond 1024 tokens", make, "torchscript", source, tmp_path / "work")
    assert not list((tmp_path / "work" / "staging").glob("*.pt*")), "no program is left behind"
