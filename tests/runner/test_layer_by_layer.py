"""A model that can't be held whole is run layer by layer where that fits, and refused with all figures where it does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.checkpoints.models.layer_sizes import LayerSizes, layers_of
from daemon.contract.formats.stages import LAYER_BY_LAYER, MIB, WITHOUT_TWIN, ModelSize
from daemon.contract.jobs.plan import all_specs, spec_of
from daemon.journal.attempts import Measured
from daemon.running.rules.estimates import Estimate, by_layers, estimate, without_twin
from tests.runner.desk import Desk, done

GIB = 1 << 30
LAYERS, LAYER, EMBEDDING = 24, 190_000_000, 620_000_000
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "num_hidden_layers": LAYERS, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
}  # fmt: skip
SIZE = LAYERS * LAYER + 2 * EMBEDDING + 4096
"""Parameters of the large model."""
Desks = Callable[..., Desk]


def write_sparse(path: Path, tensors: dict[str, list[int]]) -> None:
    """A safetensors file of bf16 that takes no room on the disk."""
    header, place = dict[str, Any](), 0
    for name, shape in tensors.items():
        count = 1
        for size in shape:
            count *= size
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place := place + 2 * count]}
    text = json.dumps(header).encode()
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + place)


def large_model(folder: Path, **settings: Any) -> Path:
    """A language model of 11.6 GB in bf16, all of it holes."""
    folder.mkdir(parents=True, exist_ok=True)
    layers = {f"model.layers.{number}.mlp.weight": [LAYER // 1000, 1000] for number in range(LAYERS)}
    ends = {"model.embed_tokens.weight": [EMBEDDING // 4000, 4000], "lm_head.weight": [EMBEDDING // 4000, 4000]}
    write_sparse(folder / "model.safetensors", {**layers, **ends, "model.norm.weight": [4096]})
    (folder / "config.json").write_text(json.dumps({**CONFIG, **settings}))
    return folder


def test_stages_that_could_not_hold_the_model_run_it_layer_by_layer(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.system.box.memory", lambda: (4 * GIB, 4 * GIB))
    desk = make_desk()
    strategies: dict[str, str] = {}

    def run(context: Any) -> Any:
        strategies[context.stage] = context.strategy
        return done(context).model_copy(update={"peak_rss": 2 * GIB})

    desk.script = run
    desk.add("run", 1)
    large_model(desk.runner.paths.pins / "run-1")
    desk.tick(20)
    assert desk.state("run-1") == "succeeded"
    assert {name: strategies[name] for name in ("merge", "reference", "merged")} == {
        "merge": "default", "reference": LAYER_BY_LAYER, "merged": LAYER_BY_LAYER,
    }  # fmt: skip
    attempts = {row.stage: row for row in desk.journal.attempts.of("run-1")}
    assert attempts["reference"].strategy == LAYER_BY_LAYER, "the journal says which way was taken"
    assert 2 * GIB < (attempts["reference"].estimate or 0) < 3 * GIB
    assert not desk.journal.attempts.measurements("reference"), "what one layer took would let the whole model start the next time"
    assert desk.journal.attempts.measurements("merge")


@pytest.mark.parametrize(
    ("memory", "settings", "why"),
    [
        (4, {"num_experts": 8}, "it can't be run layer by layer, because it is a mixture of experts"),
        (4, {"architectures": ["T5ForConditionalGeneration"]}, "only language models can be, and it is T5ForConditionalGeneration"),
        (4, {"auto_map": {"AutoModel": "own.Model"}}, "it brings code of its own"),
        (4, {"quantization_config": {"bits": 4}}, "its weights are stored quantized"),
        (2, {}, "layer by layer it would need about 2."),
    ],
)
def test_what_fits_in_no_way_is_refused_with_the_figures_of_both(
    memory: int, settings: dict[str, Any], why: str, make_desk: Desks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.system.box.memory", lambda: (memory * GIB, memory * GIB))
    desk = make_desk()
    desk.add("run", 1)
    large_model(desk.runner.paths.pins / "run-1", **settings)
    desk.tick(20)
    fault = desk.journal.stages.of("run-1")["reference"].fault
    assert fault is not None and fault.code == "memory-never"
    assert "it needs about 29" in fault.cause and why in fault.cause


def test_what_has_enough_memory_but_not_now_waits_and_does_not_change_its_way(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.system.box.memory", lambda: (64 * GIB, 4 * GIB))
    desk = make_desk()
    desk.add("run", 1)
    large_model(desk.runner.paths.pins / "run-1")
    desk.tick(20)
    assert not desk.order("reference") and desk.runner.waits.of["run-1"].fault.code == "memory-now"


def test_an_adapter_counts_and_one_that_acts_on_the_embedding_counts_all_of_that(tmp_path: Path) -> None:
    sizes = layers_of(large_model(tmp_path / "base"), "LORA")
    assert isinstance(sizes, LayerSizes) and sizes == LayerSizes(
        LAYER, EMBEDDING, 2 * LAYERS * 8 * 128, LAYERS * LAYER + 2 * EMBEDDING + 4096
    )  # fmt: skip
    plain, heavy = tmp_path / "plain", tmp_path / "heavy"
    for folder, name in (
        (plain, "base_model.model.model.layers.0.q_proj.lora_A.weight"),
        (heavy, "base_model.model.lm_head.lora_A.weight"),
    ):
        folder.mkdir()
        write_sparse(folder / "adapter_model.safetensors", {name: [1000, 1000]})
    alone = sizes.memory(None, 8)
    assert sizes.memory(plain, 8) == alone + 6 * 1_000_000
    assert sizes.memory(heavy, 8) == alone + 6 * 1_000_000 + 8 * EMBEDDING
    assert sizes.memory(None, 8, long=True) == alone + 4 * 512 * sizes.cache, "the caches of a text as long as a large model reads"


@given(st.integers(1, 40 * GIB), st.integers(1, 40 * GIB), st.integers(0, 40 * GIB))
def test_a_stage_never_starts_with_more_than_it_may_have_nor_without_a_reason(parameters: int, allowed: int, layers: int) -> None:
    spec = spec_of("reference")
    whole = estimate(spec, ModelSize(2 * parameters, parameters), [Measured(ModelSize(1, 1), 1, 1, 1.0)])
    found = by_layers(spec, whole, allowed, layers)
    if found.strategy == LAYER_BY_LAYER:
        assert found.memory == spec.memory_fixed + layers <= allowed and found.disk == whole.disk and not found.remark
    else:
        assert found == Estimate(whole.memory, whole.disk, whole.source, "default", found.remark) and found.remark


def test_only_stages_that_run_torch_on_the_whole_model_have_this_way() -> None:
    assert {spec.name for spec in all_specs() if spec.layerwise} == {"reference", "merged", "check-pytorch-adapter", "onnx"}
    assert all(spec.memory_fixed >= 900 * MIB for spec in all_specs() if spec.layerwise)


def test_a_stage_that_holds_several_layers_counts_them_and_no_adapter(
    make_desk: Desks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.system.box.memory", lambda: (16 * GIB, 16 * GIB))
    monkeypatch.setattr("daemon.system.box.free_disk", lambda folder: 1 << 50)
    desk = make_desk()
    desk.script = done
    desk.add("run", 1, variants=("onnx",))
    large_model(desk.runner.paths.pins / "run-1")
    desk.tick(20)
    spec, sizes = spec_of("onnx"), layers_of(large_model(tmp_path / "model"), "full")
    assert isinstance(sizes, LayerSizes) and spec.layerwise > 1
    attempt = next(row for row in desk.journal.attempts.of("run-1") if row.stage == "onnx")
    assert attempt.strategy == LAYER_BY_LAYER
    assert (attempt.estimate or 0) - spec.memory_fixed - 4 * spec.layerwise * LAYER < 2 * GIB
    assert sizes.memory(None, 8, 3) == sizes.memory(None, 8) + 2 * 4 * LAYER


@pytest.mark.parametrize("content", ["[]", "{", '{"architectures": "x"}', '{"architectures": [7]}', "{}"])
def test_a_configuration_of_any_form_gives_a_reason_and_no_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    assert isinstance(layers_of(tmp_path, "LORA"), str)
    assert isinstance(layers_of(tmp_path / "nowhere", "LORA"), str)


def test_a_check_without_memory_for_its_twin_leaves_that_out(make_desk: Desks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("daemon.system.box.memory", lambda: (32 * GIB, 32 * GIB))
    monkeypatch.setattr("daemon.system.box.free_disk", lambda folder: 1 << 50)
    desk = make_desk()
    desk.script = lambda context: done(context).model_copy(update={"peak_rss": 2 * GIB})
    desk.add("run", 1, variants=("onnx-int8",))
    large_model(desk.runner.paths.pins / "run-1")
    desk.tick(20)
    attempt = next(row for row in desk.journal.attempts.of("run-1") if row.stage == "check-onnx-int8")
    spec, size = spec_of("check-onnx-int8"), ModelSize(2 * SIZE, SIZE)
    whole = estimate(spec, size, ())
    assert attempt.strategy == WITHOUT_TWIN and (attempt.estimate or 0) < whole.memory / 2
    assert without_twin(spec, whole, size).memory == attempt.estimate
    assert not desk.journal.attempts.measurements("check-onnx-int8"), "what it took would let the twin start the next time"
    assert without_twin(spec_of("check-pytorch-bf16"), whole, size) == whole, "nothing can be left out"
