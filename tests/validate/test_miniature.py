"""How a model is read that is too large to be held, its miniature proves: stock PEFT, the layer-by-layer engine and the merge agree."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.options import MergeOptions
from handlers.layerwise import skeleton
from handlers.merge import merge_adapter
from handlers.validate.engines.pytorch import live
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.miniature import proof, small, stock
from tests.merge import helpers
from tests.validate import test_layerwise as layerwise
from tests.validate.bench import Direct
from tests.validate.conftest import LIMITS

bases = layerwise.bases


class Here(Direct):
    """A worker in this process, started as the proof starts one."""

    def __init__(self, name: str, spec: EngineSpec, *_: Any) -> None:
        super().__init__(name, spec)

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Both processes of the proof are this one: what each of them computes stays the same."""

    def asked(spec: EngineSpec, out: Path, scratch: Path) -> Any:
        file = scratch / "spec.json"
        file.write_text(spec.model_dump_json())
        capsys.readouterr()
        assert stock.main([str(file), str(out)]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    monkeypatch.setattr(proof, "_stock", asked)
    monkeypatch.setattr(proof, "EngineWorker", Here)


def spec_of(pin: Path, base: Path, **more: Any) -> EngineSpec:
    return EngineSpec(engine="live-layerwise", folder=str(pin), base=str(base), **more)


def prove(spec: EngineSpec, root: Path) -> list[str]:
    scratch = root / "scratch"
    scratch.mkdir(exist_ok=True)
    return proof.prove(spec, root / "cache", scratch, LIMITS)


KINDS = [
    ("llama, untied", {"r": 4, "alpha_pattern": {r"layers\.1\..*q_proj": 48}, "rank_pattern": {"v_proj": 2}}),
    ("qwen3, tied", layerwise.ADAPTERS["dora"]),
    ("gpt2", {}),
]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("name", "options"), KINDS, ids=str)
def test_a_miniature_has_the_structure_of_its_model_and_answers_the_same_in_both_ways(
    name: str, options: dict[str, Any], bases: Callable[[str], Path], tmp_path: Path
) -> None:
    base = bases(name)
    pin = layerwise.adapt(base, tmp_path / "pin", **options)
    assert prove(spec_of(pin, base), tmp_path) == []
    miniature = tmp_path / "scratch/miniature"
    assert (miniature / "adapter-0/adapter_config.json").read_bytes() == (pin / "adapter_config.json").read_bytes()
    mine, real = (set(helpers.stored(folder)) for folder in (miniature / "base", base))
    assert mine == real
    adapted, bare = np.load(miniature / stock.LIVE), np.load(miniature / stock.BARE)
    assert np.abs(adapted - bare).max() > adapted.std(), "the adapter acts"


def wrong_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = skeleton._candidates
    monkeypatch.setattr(skeleton, "_candidates", lambda name, prefix: plain(name.replace("layers.2.", "layers.1."), prefix))


def factor_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_mix", lambda model, spec: None)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("damage", [wrong_layer, factor_forgotten])
def test_a_layer_by_layer_engine_that_reads_wrongly_is_disproved(
    damage: Callable[[pytest.MonkeyPatch], None], bases: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = bases("llama, untied")
    pin = layerwise.adapt(base, tmp_path / "pin")
    damage(monkeypatch)
    with pytest.raises(Permanent, match="does not answer as PEFT does") as failed:
        prove(spec_of(pin, base, weight=0.7), tmp_path)
    assert failed.value.fault.code == "memory-never"
    assert not (tmp_path / "cache" / proof.FILE).exists(), "what was disproved is tried again"


@pytest.mark.usefixtures("here")
def test_a_second_checkpoint_of_the_same_structure_needs_no_proof_and_another_scale_does(
    bases: Callable[[str], Path], tmp_path: Path
) -> None:
    base = bases("llama, untied")
    first, second = (layerwise.adapt(base, tmp_path / name, lora_alpha=7) for name in ("first", "second"))
    known = tmp_path / "cache" / proof.FILE
    for pin, count in ((first, 1), (second, 1)):
        prove(spec_of(pin, base), tmp_path)
        assert len(json.loads(known.read_text())) == count
    helpers.edit_config(second, lora_alpha=9)
    shutil.rmtree(tmp_path / "scratch")
    prove(spec_of(second, base), tmp_path)
    assert len(json.loads(known.read_text())) == 2


@pytest.mark.usefixtures("here")
def test_several_adapters_with_their_factors_have_miniatures_too(bases: Callable[[str], Path], tmp_path: Path) -> None:
    base = bases("llama, untied")
    first, second = layerwise.adapt(base, tmp_path / "first"), layerwise.adapt(base, tmp_path / "second", r=2)
    assert prove(spec_of(first, base, weight=0.7, additions=((str(second), 0.4),)), tmp_path) == []


@pytest.mark.usefixtures("here")
def test_a_model_without_a_miniature_is_told_and_not_refused(bases: Callable[[str], Path], tmp_path: Path) -> None:
    base = bases("llama, untied")
    pin = layerwise.adapt(base, tmp_path / "pin")
    helpers.rewrite(pin / "adapter_model.safetensors", lambda tensors: tensors.update(other=torch.ones(3)))
    (told,) = prove(spec_of(pin, base), tmp_path)
    assert told == "How the model is read layer by layer was not proved by a miniature of it: PEFT knows no other."


LARGE: dict[str, dict[str, Any]] = {
    "Llama": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
              "num_key_value_heads": 8},
    "Qwen3": {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128},
    "Phi": {"hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 32, "partial_rotary_factor": 0.4},
    "Phi3": {"hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 32, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48,
        "original_max_position_embeddings": 4096}},
    "Gemma3Text": {"hidden_size": 5376, "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128},
    "GPT2": {"n_embd": 1600, "n_head": 25, "n_layer": 48},
    "GPTNeoX": {"hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64, "num_hidden_layers": 44},
}  # fmt: skip
"""Configuration → what large models of its kind say."""


@pytest.mark.parametrize("kind", LARGE)
def test_a_configuration_becomes_small_and_keeps_its_layers_and_ratios(kind: str) -> None:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**LARGE[kind])
    settings = small.shrunk(json.loads(config.to_json_string(use_diff=False)), 300)
    made = getattr(transformers, f"{kind}Config")(**settings)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(made)
    assert made.num_hidden_layers == config.num_hidden_layers and made.vocab_size == 300
    assert sum(value.numel() for value in model.parameters()) < 40e6
    if hasattr(config, "num_key_value_heads"):
        assert made.num_attention_heads / made.num_key_value_heads == config.num_attention_heads / config.num_key_value_heads
    made.num_hidden_layers = 2
    with torch.inference_mode():
        shallow = transformers.AutoModelForCausalLM.from_config(made)
        assert shallow(input_ids=torch.arange(12)[None]).logits.isfinite().all()


@pytest.mark.slow
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("name", layerwise.ADAPTERS)
def test_the_merge_of_a_miniature_is_what_stock_peft_answers(name: str, bases: Callable[[str], Path], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    base = bases("qwen3, tied")
    pin = layerwise.adapt(base, tmp_path / "pin", **layerwise.ADAPTERS[name])
    assert prove(spec_of(pin, base), tmp_path) == []
    miniature = tmp_path / "scratch/miniature"
    (tmp_path / "merged").mkdir()
    merge_adapter(miniature / "adapter-0", miniature / "base", tmp_path / "merged", MergeOptions(dtype="float32"))
    tokens = torch.tensor([small.ids_of(json.loads((miniature / "base/config.json").read_text())["vocab_size"])])
    with torch.inference_mode():
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)(input_ids=tokens).logits[0].numpy()
    wanted = np.load(miniature / stock.LIVE)
    assert np.abs(merged - wanted).max() < 1e-3 * wanted.std()


@pytest.mark.slow
def test_the_proof_runs_in_processes_of_its_own(bases: Callable[[str], Path], tmp_path: Path) -> None:
    base = bases("qwen3, tied")
    pin = layerwise.adapt(base, tmp_path / "pin")
    assert prove(spec_of(pin, base), tmp_path) == []
    assert list(json.loads((tmp_path / "cache" / proof.FILE).read_text()).values()) == [True]
