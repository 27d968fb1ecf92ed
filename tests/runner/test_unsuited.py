"""A variant that can't be made of a model is refused when the export begins, by config.json alone, in the words of whoever asked for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.config import sources
from daemon.config.sources import as_asked
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.plan import plan, spec_of, variant_names
from daemon.contract.values import Json
from daemon.journal.rows import StageRow
from daemon.running.rules.suitable import unsuited
from tests.cli.test_bad_input import ckptd
from tests.runner.desk import Desk

LISTS = {name: one.model_types for name, one in catalog().variants.items() if one.model_types}


def begun(desk: Desk, config: object, variants: tuple[str, ...]) -> dict[str, StageRow]:
    """The stages of a job after the round in which it began."""
    job = desk.add("run", 1, variants=variants)
    (desk.runner.paths.pins / job / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    desk.tick()
    return desk.journal.stages.of(job)


def test_it_fails_before_the_merge_and_takes_no_other_variant_with_it(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    stages = begun(desk, {"model_type": "bert"}, ("pytorch", "gguf-q8_0", "onnx-genai-int4"))
    for name in ("gguf-q8_0", "onnx-genai-int4"):
        fault = stages[name].fault
        assert stages[name].state == "failed" and stages[name].attempts == 0 and fault is not None
        assert fault.code == "form-not-possible" and "llama" in fault.cause and "of the type 'bert'" in fault.cause
        assert fault.remedy == f"leave {name} out of export.variants; of what was asked for, pytorch can be made"
    assert desk.started == ["run-1 merge"]
    assert stages["pytorch"].state == "waiting"


def test_what_is_made_of_what_can_not_be_made_is_refused_with_it_in_the_same_sentence(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    stages = begun(
        desk, {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}, ("pytorch", "onnx", "onnx-int4", "openvino-int8", "pt2")
    )
    refused = {name: row.fault for name, row in stages.items() if row.state == "failed" and row.fault}
    assert {"onnx", "onnx-int4", "openvino", "openvino-int8", "pt2"} == refused.keys()
    for name in ("onnx", "onnx-int4", "openvino", "openvino-int8"):
        assert refused[name] == refused["onnx"]
    said = refused["onnx"].sentence()
    assert said.startswith("Could not make the variants onnx, onnx-int4 and openvino-int8: it decodes with a cache of keys and values, but")
    assert "of the type 'mamba2', and its layers keep a running state" in said
    assert "or set onnx.cache = false" in said and said.endswith("; of what was asked for, pytorch can be made.")
    assert "onnx.cache" not in refused["pt2"].sentence()
    assert desk.started == ["run-1 merge"] and stages["pytorch"].state == "waiting"


def test_graphs_without_a_cache_can_be_made_of_a_model_that_keeps_states() -> None:
    work = Work.recovered('{"onnx": {"cache": false}}')
    config = {"model_type": "mamba2", "architectures": ["Mamba2ForCausalLM"]}
    assert unsuited([spec_of("onnx"), spec_of("onnx-int8")], config, work, ("onnx", "onnx-int8")) == {}
    assert unsuited([spec_of("onnx")], config, Work.recovered("{}"), ("onnx",)).keys() == {"onnx"}


@pytest.mark.parametrize(
    ("config", "noun"),
    [
        ({"model_type": "llava", "vision_config": {}, "text_config": {"model_type": "llama"}}, "pictures"),
        ({"model_type": "gemma3", "vision_config": {}, "text_config": {"model_type": "gemma3_text"}}, "pictures"),
        ({"model_type": "vit", "image_size": 224}, "pictures"),
        ({"model_type": "siglip", "vision_config": {}, "text_config": {}}, "pictures"),
        ({"model_type": "wav2vec2", "conv_stride": [5, 2]}, "sound"),
        ({"model_type": "whisper", "num_mel_bins": 80, "is_encoder_decoder": True}, "sound"),
    ],
)
def test_of_a_model_of_pictures_or_sound_only_transformers_folders_are_made_and_of_encoders_graphs(config: Json, noun: str) -> None:
    asked = variant_names()
    refused = unsuited(plan(asked), config, Work.recovered("{}"), asked)
    read = config["model_type"] in spec_of("gguf-f16").media_types
    files = {name for name in asked if name.startswith("gguf-") and name != "gguf-adapter"}
    graphs = {"onnx", "onnx-fp16", "onnx-int8"}
    made = graphs if config["model_type"] in ("vit", "wav2vec2") else files if read else set[str]()
    assert {*asked} - refused.keys() == {name for name in asked if name.startswith("pytorch")} | made
    causes = {refused[name].cause for name in asked if name in refused}
    assert causes == {f"it can't be made of models of the type '{config['model_type']}', which read {noun}"}


@pytest.mark.parametrize("kind", ["zamba2", "recurrent_gemma", "minimax", "rwkv"])
def test_what_transformers_itself_computes_otherwise_is_refused_unless_what_fails_is_published(kind: str) -> None:
    config, spec = {"model_type": kind}, spec_of("pytorch")
    fault = unsuited([spec], config, Work.recovered("{}"), ("pytorch",))["pytorch"]
    assert "so that its check would fail" in fault.cause and 'validate.on_failed_check = "publish"' in str(fault.remedy)
    assert unsuited([spec], config, Work.recovered('{"validation": {"on_failed_check": "publish"}}'), ("pytorch",)) == {}


@pytest.mark.parametrize(
    "sizes",
    [
        {"vocab_size": 128, "intermediate_size": 128}, {"vocab_size": 64, "hidden_size": 64},
        {"vocab_size": 96, "num_attention_heads": 4, "head_dim": 24}, {"vocab_size": 48, "num_key_value_heads": 2, "head_dim": 24},
        {"model_type": "phi3", "vocab_size": 200, "intermediate_size": 100},
    ],
)  # fmt: skip
def test_layers_as_wide_as_the_vocabulary_are_refused_where_they_would_be_taken_for_the_output_layer(sizes: Json) -> None:
    work, config = Work.recovered("{}"), {"model_type": "llama", **sizes}
    fault = unsuited([spec_of("onnx-genai-fp32")], config, work, ("onnx-genai-fp32",))["onnx-genai-fp32"]
    assert f"they have {sizes['vocab_size']} outputs, as many as vocab_size" in fault.cause
    for other in ({**config, "vocab_size": 1000}, {"model_type": "llama"}):
        assert unsuited([spec_of("onnx-genai-fp32")], other, work, ("onnx-genai-fp32",)) == {}


def test_a_scaling_of_rotary_angles_that_a_builder_gets_wrong_is_refused_too() -> None:
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "rope_parameters": {"rope_type": "yarn", "factor": 2.0}}
    work, asked = Work.recovered("{}"), ("pytorch", "onnx-genai-int4")
    fault = unsuited([spec_of(name) for name in asked], config, work, asked)["onnx-genai-int4"]
    assert "whose rotary angles have the scaling default or linear, not 'yarn'" in fault.cause
    assert fault.remedy == "leave onnx-genai-int4 out of export.variants; of what was asked for, pytorch can be made"
    for other in ({**config, "rope_parameters": {"rope_type": "linear"}}, {**config, "rope_parameters": None}):
        assert unsuited([spec_of(name) for name in asked], other, work, asked) == {}


def test_where_nothing_can_be_made_nothing_is_merged_and_the_report_says_why(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk()
    stages = begun(desk, {"model_type": "bert"}, ("gguf-q4_k_m", "gguf-q8_0"))
    assert desk.started == ["run-1 report"]
    assert {row.state for name, row in stages.items() if not name.startswith("gguf-") and name != "report"} == {"skipped"}


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama"},
        {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
        {},
        {"model_type": ["bert"]},
        "[",
        "[]",
    ],
)  # fmt: skip
def test_what_can_be_made_or_does_not_say_is_not_refused(make_desk: Callable[..., Desk], config: object) -> None:
    stages = begun(make_desk(), config, ("gguf-q8_0",))
    assert stages["gguf-q8_0"].state == "waiting"


def test_the_sentence_names_the_option_that_was_used(tmp_path: Path, pico_base: Path) -> None:
    checkpoint = shutil.copytree(pico_base, tmp_path / "run" / "checkpoint-4")
    config = json.loads((checkpoint / "config.json").read_bytes())
    (checkpoint / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    command = ("export", checkpoint, "--output", tmp_path / "out")
    typed = ckptd(tmp_path, *command, "--to", "gguf-q8_0")
    assert typed.returncode == 1 and "leave gguf-q8_0 out of --to." in " ".join(typed.stderr.split()), typed.stderr
    assert "export.variants" not in typed.stdout + typed.stderr and "merge: running" not in typed.stderr
    configured = ckptd(tmp_path, *command, "--force", CKPTD_EXPORT__VARIANTS="gguf-q8_0")
    assert "leave gguf-q8_0 out of export.variants." in " ".join(configured.stderr.split()), configured.stderr


def test_what_a_stage_says_to_do_names_the_option_too(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "leave web out of export.variants"
    assert as_asked(told) == told
    monkeypatch.setitem(sources.named_by, "export.variants", "--to")
    assert as_asked(told) == "leave web out of --to"
    assert as_asked("use gguf-q8_0 instead of gguf-f16 in export.variants") == "use gguf-q8_0 instead of gguf-f16 in --to"
    monkeypatch.setitem(sources.named_by, "export.variants", "--deploy")
    assert as_asked(told) == "leave web out: name the variants that you want by --to instead of --deploy"


def test_the_types_are_those_of_the_architectures_that_the_stages_take() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    from handlers.onnx.genai.source import SUPPORTED
    from handlers.tensorrt.llm.mapping import ARCHITECTURES
    from handlers.web.known import table

    def types(architectures: object) -> set[str]:
        return {kind for kind, name in CLASSES.items() if name in architectures}  # type: ignore[operator]

    assert LISTS["onnx-genai-fp32"] == LISTS["onnx-genai-fp16"] == LISTS["onnx-genai-int4"] == types(SUPPORTED)
    assert LISTS["tensorrt-llm"] == types(ARCHITECTURES)
    assert {"bert", "qwen3", "t5"} <= LISTS["web"] == {
        name for rows in table().values() if isinstance(rows, list) for row in rows for name in row["types"]
    }  # fmt: skip
