"""pytorch-bnb-int8 and pytorch-bnb-nf4: bit by bit what transformers and bitsandbytes themselves save, and loaded by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Verdict
from tests import models
from tests.merge import helpers
from tests.onnx import qwen
from tests.pytorch.forms import gpt2, loaded, make
from tests.sampling import some
from tests.validate import zoo
from tests.validate.bench import Bench

SOURCES: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "tied decoder": ("AutoModelForCausalLM", lambda folder: models.make_base(folder)),
    "untied decoder in fp16": ("AutoModelForCausalLM", lambda folder: models.make_base(folder, dtype="float16", tie_word_embeddings=False)),
    "decoder with biases in fp32": ("AutoModelForCausalLM", lambda folder: qwen.make(folder, "Qwen2")),
    "experts": ("AutoModelForCausalLM", lambda folder: qwen.make(folder, "Qwen3Moe")),
    "transposed layers": ("AutoModelForCausalLM", gpt2),
    "encoder-decoder": ("AutoModelForSeq2SeqLM", lambda folder: zoo.make_seq2seq_base(folder, "t5")),
    "encoder": ("AutoModel", lambda folder: zoo.make_encoder_base(folder, "AutoModel")),
    "classifier": (
        "AutoModelForSequenceClassification", lambda folder: zoo.make_encoder_base(folder, "AutoModelForSequenceClassification"),
    ),
}  # fmt: skip

CASES = [(name, variant) for name in SOURCES for variant in ("pytorch-bnb-int8", "pytorch-bnb-nf4")]


def save_with_transformers(source: Path, folder: Path, auto: str, variant: str) -> dict[str, Any]:
    """What transformers writes of a model that it quantized itself, before any forward pass; its quantization_config."""
    import torch
    import transformers
    from transformers import BitsAndBytesConfig

    stored = {str(one.dtype).removeprefix("torch.") for one in helpers.stored(source).values()}
    dtype = torch.float16 if stored == {"float16"} else torch.bfloat16
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    chosen = four if variant == "pytorch-bnb-nf4" else BitsAndBytesConfig(load_in_8bit=True)
    getattr(transformers, auto).from_pretrained(source, quantization_config=chosen, dtype=dtype).save_pretrained(folder)
    said: dict[str, Any] = json.loads((folder / "config.json").read_text())["quantization_config"]
    return said


@pytest.mark.parametrize(("name", "variant"), some(CASES, 5))
def test_the_files_hold_bit_by_bit_what_transformers_saves(name: str, variant: str, tmp_path: Path) -> None:
    import torch

    auto, source = SOURCES[name]
    model = source(tmp_path / "model")
    folder, output = make(variant, model, tmp_path / "work")
    said = save_with_transformers(model, tmp_path / "theirs", auto, variant)
    ours, theirs = helpers.stored(folder), helpers.stored(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    for key, values in theirs.items():
        assert ours[key].dtype == values.dtype and torch.equal(ours[key], values), key
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert config == {key: value for key, value in said.items() if not key.startswith("_")}
    assert output.figures["quantized_layers"] > 0
    assert (name == "experts") == any("stays in 16 bits" in text for text in output.warnings)


def test_int8_is_loaded_run_and_compared(live: Bench, tmp_path: Path) -> None:
    folder, _ = make("pytorch-bnb-int8", live.merged, tmp_path)
    check = live.check("pytorch-bnb-int8", folder)
    assert check.verdict is Verdict.PASSED, check.reasons
    assert check.figures["error_max"] > 0 and check.figures["greedy_prompts"] == 4


def test_nf4_is_loaded_in_four_bits_with_the_values_that_were_packed(live: Bench, tmp_path: Path) -> None:
    import torch
    from bitsandbytes import functional

    folder, _ = make("pytorch-bnb-nf4", live.merged, tmp_path)
    layer = loaded(folder).model.layers[1].mlp.down_proj
    assert type(layer).__name__ == "Linear4bit" and layer.compute_dtype in (None, torch.bfloat16)
    exact = helpers.stored(live.merged)["model.layers.1.mlp.down_proj.weight"].to(torch.bfloat16)
    assert torch.equal(functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state), functional.dequantize_4bit(
        *functional.quantize_4bit(exact, blocksize=64, quant_type="nf4")
    ))  # fmt: skip


def test_the_check_runs_the_same_kernels_on_every_processor_and_odd_layers_are_told(tmp_path: Path) -> None:
    """The kernel of AVX512-BF16 would repack the weights, and refuse 48 outputs."""
    from handlers.validate.engines.registry import EngineSpec, load

    source = zoo.make_encoder_base(tmp_path / "model", "AutoModelForMaskedLM")
    folder, output = make("pytorch-bnb-nf4", source, tmp_path / "work")
    assert any("AVX512-BF16, bitsandbytes can't run 11 layers whose outputs 32 does not divide" in text for text in output.warnings)
    engine = load(EngineSpec(engine="torch-stored", folder=str(folder), task="fill-mask"))
    layer = engine._model.bert.encoder.layer[0].attention.self.query
    assert layer.support_avx512bf16_for_cpu is False
    before = layer.weight.data.clone()
    ids = np.arange(6, 38)[None]
    (first,) = engine.run(ids, np.ones_like(ids), np.zeros_like(ids))
    assert np.isfinite(first).all() and layer.weight.data.equal(before)


def test_what_bitsandbytes_would_round_to_infinity_is_refused_by_its_name(tmp_path: Path) -> None:
    source = models.make_base(tmp_path / "model", dtype="float32")
    name = "model.layers.0.mlp.up_proj.weight"
    helpers.rewrite(source / "model.safetensors", lambda table: table[name].view(-1)[5].fill_(7e4))
    with pytest.raises(Permanent, match="largest float16 value is 65504") as raised:
        make("pytorch-bnb-int8", source, tmp_path / "int8")
    assert raised.value.fault.code == FaultCode.DTYPE_OVERFLOW and name in raised.value.fault.sentence()
    make("pytorch-bnb-nf4", source, tmp_path / "nf4")


def test_a_model_whose_layers_lie_under_other_names_is_refused_with_what_to_use(tmp_path: Path) -> None:
    source = models.make_base(tmp_path / "model")
    helpers.rewrite(
        source / "model.safetensors",
        lambda table: table.update({"model.layers.0.mlp.other.weight": table.pop("model.layers.0.mlp.up_proj.weight")}),
    )
    with pytest.raises(Permanent) as raised:
        make("pytorch-bnb-nf4", source, tmp_path / "nf4")
    assert raised.value.fault.code == FaultCode.FORM_NOT_POSSIBLE
    assert "use pytorch-bf16 and leave pytorch-bnb-nf4 out" in raised.value.fault.sentence()
