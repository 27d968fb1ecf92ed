"""What the reference does with models and prompts that are out of the ordinary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.figures import Likeness, ReferenceFigures, figures_of
from daemon.contract.jobs.messages import Outcome, Verdict
from daemon.contract.jobs.options import ValidateOptions
from handlers.report.content.not_verified import blindness
from handlers.validate.checks.live.reference import LiveModel, measure
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import EngineWorker
from tests.validate import artifacts
from tests.validate.conftest import LIMITS, StartStage, Validate, Validated


def effect(done: Validated) -> Likeness | None:
    """The adapter's effect, as the report reads it."""
    figures = figures_of(done.results["reference"].figures, ReferenceFigures)
    return figures.reference.adapter if figures and figures.reference else None


@pytest.mark.slow
def test_a_small_context_cuts_prompts_and_continuations_and_says_so(folders: dict[str, Path], tmp_path: Path) -> None:
    model = artifacts.copy(folders["pytorch"], tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 24}))
    options = ValidateOptions(new_tokens=20, speed_tokens=64)
    with EngineWorker("live", EngineSpec(engine="torch", folder=str(model)), tmp_path, LIMITS) as live:
        reference = measure(LiveModel(live), ["def add(a, b):\n    return a + b\n" * 3], options, tmp_path, lambda fraction, message: None)
    sample = reference.samples[0]
    assert len(sample.encoded) > len(sample.ids) == 12 and len(sample.tokens) <= 12
    assert len(reference.speed_prompt) + reference.speed_tokens <= 24
    assert len(reference.warnings) == 1 and "24 positions" in reference.warnings[0]


@pytest.mark.slow
def test_without_any_tokenizer_token_ids_are_made_up_and_the_fallback_is_recorded(
    validate: Validate, folders: dict[str, Path], tmp_path: Path
) -> None:
    bare = artifacts.copy(folders["pytorch"], tmp_path / "bare")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (bare / name).unlink()
    done = validate(bare, None, {"merge": bare, "onnx": folders["onnx"]}, samples=2, new_tokens=8, speed_tokens=0)
    assert [fallback.taken for fallback in done.results["reference"].fallbacks] == ["pseudo-random token ids"]
    (check,) = done.checks.values()
    assert check.verdict is Verdict.PASSED and check.figures["agreement"] == 1.0
    assert check.figures["sample"] is None and "tokens_per_second" not in check.figures


@pytest.mark.slow
def test_an_adapter_without_effect_passes_and_the_reference_says_how_little_it_does(
    validate: Validate, pico_base: Path, pico_checkpoint: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    pin = artifacts.copy(pico_checkpoint, tmp_path / "pin")
    weights = load_file(pin / "adapter_model.safetensors")
    save_file({name: tensor * 0 if "lora_B" in name else tensor for name, tensor in weights.items()}, pin / "adapter_model.safetensors")
    inputs = {"merge": pico_base, "pytorch": pico_base}
    done = validate(pin, pico_base, inputs, samples=2, new_tokens=8, speed_tokens=0)
    assert done.checks["pytorch"].verdict is Verdict.PASSED
    told = blindness(effect(done), ["pytorch"], catalog().thresholds)
    assert told is not None and "the base without the adapter would meet the thresholds of pytorch too" in told


@pytest.mark.slow
def test_a_base_that_was_not_merged_fails(validate: Validate, pico_base: Path, pico_checkpoint: Path) -> None:  # R1.3
    inputs = {"merge": pico_base, "pytorch": pico_base}
    done = validate(pico_checkpoint, pico_base, inputs, samples=2, new_tokens=8, speed_tokens=0)
    assert done.checks["pytorch"].verdict is Verdict.FAILED
    assert any("agreement" in reason for reason in done.checks["pytorch"].reasons)
    assert blindness(effect(done), ["pytorch"], catalog().thresholds) is None


@pytest.mark.slow
def test_a_live_model_that_does_not_load_fails_the_stage_with_one_sentence(
    start_stage: StartStage, pico_base: Path, pico_checkpoint: Path, folders: dict[str, Path], tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(pico_base, base)
    weights = (base / "model.safetensors").read_bytes()
    (base / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    result = start_stage("reference", pico_checkpoint, base, {"merge": folders["pytorch"]}).result()
    assert result.outcome is Outcome.PERMANENT and result.checks == ()
    assert result.fault is not None
    assert result.fault.sentence().startswith("Could not run the live model as the reference (")
    assert "SafetensorError" in result.fault.cause and result.fault.details


def test_a_tokenizer_with_tokens_that_the_model_has_no_embedding_for_is_named(pico_base: Path, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from handlers.validate.engines.pytorch.torch_causal import TorchEngine

    folder = Path(shutil.copytree(pico_base, tmp_path / "base"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    sound = tokenizer("return")["input_ids"]
    tokenizer.add_tokens(["<|tool|>"])
    tokenizer.save_pretrained(folder)
    engine = TorchEngine(EngineSpec(engine="torch", folder=str(folder)))
    assert engine.encode("return") == sound
    for refused in (lambda: engine.encode("<|tool|> f"), lambda: engine.encode_pair("return", "<|tool|> f")):
        with pytest.raises(Permanent) as raised:
            refused()
        assert raised.value.fault.code == FaultCode.TOKENIZER_MISMATCH
        assert f"the tokenizer gives it token {len(tokenizer) - 1}, but the model has embeddings for" in raised.value.fault.cause
        assert "resize_token_embeddings" in raised.value.fault.remedy
