"""When nothing worked a person gets what was tried, what it means, what to do, and a small script that fails in the same way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from daemon.contract.faults.errors import Permanent
from handlers.families.tiny_config import shrunk
from handlers.onnx.export import stage
from handlers.onnx.export.failures import reproduction
from handlers.onnx.tracing.exporters import Request
from handlers.onnx.tracing.strategies import STRATEGIES, Strategy, named
from tests.onnx.conftest import SMALL, make_context, make_model, silent

MIXTURE = {**SMALL, "num_hidden_layers": 3, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def run_script(script: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(stage.__file__).parents[3])}
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, cwd=script.parent, env=environment)


def give_up(source: Path, pin: Path, folder: Path) -> Permanent:
    with pytest.raises(Permanent) as caught:
        stage.run(make_context(folder, "onnx", {"merge": source}, pin), silent())
    return caught.value


# R7.5
@pytest.mark.slow
def test_the_reproduction_of_a_failure_fails_in_the_same_way(pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_model(tmp_path / "moe", "Qwen3Moe", **MIXTURE)
    monkeypatch.setattr(stage, "STRATEGIES", (named(STRATEGIES, "legacy-eager"), named(STRATEGIES, "optimum")))
    error = give_up(source, pico_base, tmp_path / "job")
    details = str(error.fault.details)
    assert error.fault.code == "export-failed"
    assert "- legacy-eager (" in details and "unsupported-operator: the exporter has no translation" in details
    assert "optimum is not installed" in details and "By hand:\n1. write the operator with simpler ones" in details
    script = tmp_path / "job" / "reproduction" / "reproduce.py"
    assert f"The smallest reproduction: python {script}" in details
    config = json.loads((script.parent / "config.json").read_text())
    assert (config["num_hidden_layers"], config["num_local_experts"], config["architectures"]) == (2, 4, ["Qwen3MoeForCausalLM"])
    done = run_script(script)
    assert done.returncode != 0 and "Exporting the operator 'aten::histc' to ONNX opset version 18 is not supported" in done.stderr
    assert list((tmp_path / "job" / "staging").iterdir()) == []


# R7.5
@pytest.mark.slow
def test_the_script_of_other_ways_goes_through_this_package(pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(request: Request) -> ir.Model:
        raise RuntimeError('unordered_map::at """')

    rows = (Strategy("legacy-rewritten", refuses, rewrite="masks-and-rotary"),)
    monkeypatch.setattr(stage, "STRATEGIES", rows)
    give_up(pico_base, pico_base, tmp_path)
    script = tmp_path / "reproduction" / "reproduce.py"
    text = script.read_text()
    compile(text, str(script), "exec")
    assert "replay(Path(__file__).resolve().parent, 'legacy-rewritten', 18)" in text
    done = run_script(script)  # the real exporter has no such fault
    assert done.returncode == 0 and "works with random weights" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["dynamo-eager", "legacy-sdpa"])
def test_the_script_that_stands_alone_says_when_nothing_is_wrong(
    pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    def refuses(request: Request) -> ir.Model:
        raise RuntimeError("broken")

    attention = strategy.split("-")[1]
    monkeypatch.setattr(stage, "STRATEGIES", (Strategy(strategy, refuses, attention),))
    give_up(pico_base, pico_base, tmp_path)
    script = tmp_path / "reproduction" / "reproduce.py"
    assert "handlers" not in script.read_text()
    done = run_script(script)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "the export works with random weights and these sizes"), done.stderr


def test_a_reproduction_that_can_t_be_written_hides_nothing(pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(request: Request) -> ir.Model:
        raise RuntimeError("broken")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stage, "STRATEGIES", (Strategy("dynamo-eager", refuses),))
    monkeypatch.setattr(reproduction, "write", full)
    error = give_up(pico_base, pico_base, tmp_path)
    assert error.fault.code == "export-failed" and "smallest reproduction" not in str(error.fault.details)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Qwen3", {"num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8}),
        ("Llama", {"num_attention_heads": 32, "num_key_value_heads": 8}),
        ("GPT2", {"n_layer": 12, "n_head": 12, "n_embd": 768}),
        ("Gemma2", {}),
        ("Qwen3Moe", {}),
        ("Bert", {}),
        ("GPTNeoX", {}),
        ("T5", {}),
        ("Marian", {}),
    ],
)
def test_a_configuration_in_small_is_of_the_same_architecture(kind: str, options: dict[str, Any]) -> None:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**options).to_dict()
    small = shrunk(config)
    assert shrunk(small) == small and small["model_type"] == config["model_type"]
    made = transformers.AutoModel.from_config(getattr(transformers, f"{kind}Config").from_dict(small))
    assert sum(parameter.numel() for parameter in made.parameters()) < 500_000


def test_every_kind_of_layer_is_kept_and_long_tables_are_cut() -> None:
    config = {
        "num_hidden_layers": 30, "layer_types": ["sliding_attention"] * 5 + ["full_attention"] + ["sliding_attention"] * 24,
        "hidden_size": 3072, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32064, "eos_token_id": [32000, 32007],
        "bos_token_id": 1, "rope_parameters": {"rope_type": "longrope", "long_factor": [1.0] * 48, "short_factor": [1.0] * 48},
    }  # fmt: skip
    small = shrunk(config)
    assert small["layer_types"] == ["sliding_attention", "full_attention"] and small["num_hidden_layers"] == 2
    assert len(small["rope_parameters"]["long_factor"]) == 8 and small["num_key_value_heads"] == 1
    assert (small["eos_token_id"], small["bos_token_id"], small["vocab_size"]) == ([319], 1, 320)
