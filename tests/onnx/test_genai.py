"""Folders for onnxruntime-genai: they run there, say what torch says, and have an accuracy level that was measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import StageContext, Verdict
from handlers.folder import genai_config
from handlers.onnx.genai import int4, int4_levels, stage
from handlers.onnx.options import OnnxOptions
from handlers.onnx.quantize.accuracy_levels import LevelMeasurement
from handlers.report import usage
from handlers.validate.engines.graphs import genai as genai_engine
from handlers.validate.engines.graphs.genai import GenaiEngine
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.decoding import cache_errors, greedy, padding_error, teacher_forced
from tests import models
from tests.onnx.conftest import SMALL, Exported, make_context, make_model, silent, torch_logits
from tests.validate.bench import Bench, measured

STAGES = {"onnx-genai-fp32": stage.fp32, "onnx-genai-fp16": stage.fp16, "onnx-genai-int4": int4.run}
FILES = [
    "chat_template.jinja", "config.json", "genai_config.json", "generation_config.json", "model.onnx", "model.onnx.data", "tokenizer.json",
    "tokenizer_config.json",
]  # fmt: skip
Build = Callable[..., Exported]


def options(context: StageContext, **onnx_options: Any) -> StageContext:
    work = context.work.with_options(OnnxOptions(**onnx_options))
    return context.model_copy(update={"work": work})


@pytest.fixture(scope="session")
def build(pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Runs one of the stages on a model folder; the pico base's tokenizer serves as the checkpoint's."""

    def run(variant: str, source: Path, *, pin: Path = pico_base, opset: int = 18, **onnx_options: Any) -> Exported:
        context = options(make_context(tmp_path_factory.mktemp("genai"), variant, {"merge": source}, pin, opset=opset), **onnx_options)
        return Exported(source, Path(context.staging), STAGES[variant](context, silent()))

    return run


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("llama"), "Llama", **SMALL)


@pytest.fixture(scope="session")
def folders(build: Build, trained: Path) -> dict[str, Exported]:
    """The trained Qwen3 as each variant. Read only."""
    return {variant: build(variant, trained) for variant in STAGES}


@pytest.fixture(scope="session")
def bench(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return measured(trained, None, trained, tmp_path_factory.mktemp("bench") / "scratch")


def engine(folder: Path) -> GenaiEngine:
    return GenaiEngine(EngineSpec(engine="onnx-genai", folder=str(folder), threads=2))


def answers(folder: Path, ids: list[int], count: int) -> list[int]:
    """onnxruntime-genai's own greedy loop, with its own choice of tokens."""
    import onnxruntime_genai as genai

    model = genai.Model(str(folder))
    parameters = genai.GeneratorParams(model)
    parameters.set_search_options(max_length=len(ids) + count, do_sample=False)
    generator = genai.Generator(model, parameters)
    generator.append_tokens(np.array([ids], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return list(generator.get_sequence(0))[len(ids) :]


def expected(source: Path, ids: list[int], count: int) -> list[int]:
    """The same loop with torch."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    with torch.inference_mode():
        row = model.generate(torch.tensor([ids]), max_new_tokens=count, do_sample=False, pad_token_id=0, eos_token_id=1)[0]
    return [int(token) for token in row[len(ids) :]]


def edited(source: Path, folder: Path, **changes: Any) -> Path:
    shutil.copytree(source, folder)
    config = models.read_json(folder / "config.json") | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# R2.1
@pytest.mark.parametrize("variant", STAGES)
def test_the_folder_holds_what_onnxruntime_genai_reads_and_nothing_else(folders: dict[str, Exported], trained: Path, variant: str) -> None:
    made = folders[variant]
    assert sorted(path.name for path in made.folder.iterdir()) == FILES
    assert (made.folder / "generation_config.json").read_bytes() == (trained / "generation_config.json").read_bytes()
    written, source = (models.read_json(folder / "config.json") for folder in (made.folder, trained))
    assert written == {**source, "rope_theta": source["rope_parameters"]["rope_theta"], "torch_dtype": source["dtype"]}
    assert made.output.figures["op_types"]["GroupQueryAttention"] == 2


def test_the_tokenizer_is_the_checkpoints_byte_by_byte_but_for_its_class_and_inputs_said_for_transformers_4(
    folders: dict[str, Exported], pico_base: Path
) -> None:  # fmt: skip
    made = folders["onnx-genai-int4"].folder
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (made / name).read_bytes() == (pico_base / name).read_bytes()
    written, source = (models.read_json(folder / "tokenizer_config.json") for folder in (made, pico_base))
    assert source["tokenizer_class"] == "TokenizersBackend"
    assert written == {**source, "tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "attention_mask"]}


# R3.3
def test_the_readmes_question_is_answered_as_transformers_answers_it(folders: dict[str, Exported], trained: Path) -> None:
    import jinja2
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = folders["onnx-genai-fp32"]
    assert made.output.figures["chat_template"] is True
    environment = jinja2.Environment(trim_blocks=True)
    environment.filters.update(md=usage.escape, literal=usage.literal)
    words = environment.from_string((Path(stage.__file__).with_name("usage.md")).read_text())
    name = made.folder.name
    text = words.render(
        variant=name, folder=name, about="", prompt=usage.PROMPT, chat=True, question=usage.QUESTION, install=lambda *names: ""
    )
    code = text.split("```python\n")[2].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", code], cwd=made.folder.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    tokenizer, model = AutoTokenizer.from_pretrained(trained), AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    messages = [{"role": "user", "content": usage.QUESTION}]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**asked, max_new_tokens=64, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert done.stdout.rstrip("\n") == tokenizer.decode(answer, skip_special_tokens=True).rstrip("\n")


# R2.4, R7.1
@pytest.mark.parametrize("variant", STAGES)
def test_validation_passes_each_variant_of_a_trained_model(folders: dict[str, Exported], bench: Bench, variant: str) -> None:
    check = bench.check(variant, folders[variant].folder)
    assert (check.verdict, check.reasons) == (Verdict.PASSED, ())
    assert check.figures["padding_error_max_absolute"] is not None
    if variant == "onnx-genai-int4":
        assert 0.02 < check.figures["error_max"] < 1.5
        assert check.figures["kl"] < 0.02
    else:
        assert check.figures["greedy_identical"] == check.figures["greedy_prompts"]
        assert check.figures["merged_error_max_absolute"] < {"onnx-genai-fp32": 1e-4, "onnx-genai-fp16": 0.1}[variant]


# R2.1
@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_greedy_tokens_in_onnxruntime_genai_are_torchs(
    folders: dict[str, Exported], build: Build, trained: Path, llama: Path, kind: str
) -> None:
    source = trained if kind == "qwen3" else llama
    folder = folders["onnx-genai-fp32"].folder if kind == "qwen3" else build("onnx-genai-fp32", llama).folder
    for ids in ([70, 71, 72, 73, 74, 75, 76], [9], [40, 41, 8, 15, 200, 33]):
        assert answers(folder, ids, 20) == expected(source, ids, 20)


def test_each_variant_of_a_llama_agrees_with_torch_and_with_its_own_cache(build: Build, llama: Path) -> None:
    ids = [int(token) for token in np.random.default_rng(5).integers(3, 320, 30)]
    wanted = torch_logits(llama, np.array([ids]), np.ones((1, 30), np.int64))[0]
    for variant, limit in (("onnx-genai-fp32", 1e-4), ("onnx-genai-fp16", 0.1)):
        model = engine(build(variant, llama).folder)
        assert np.abs(teacher_forced(model, ids) - wanted).max() < limit
        assert max(cache_errors(model, ids, greedy(model, ids, 8), 8)) < limit


# R10
def test_a_tied_table_is_stored_once_and_int4_is_a_fifth(folders: dict[str, Exported]) -> None:
    for variant in STAGES:
        proto = onnx.load(folders[variant].folder / "model.onnx", load_external_data=False)
        tables = [tensor.name for tensor in proto.graph.initializer if 320 in tensor.dims and tensor.name.endswith(("weight", "_Q4"))]
        assert len(tables) == 1, variant
    sizes = {variant: folders[variant].output.figures["graph_bytes"] for variant in STAGES}
    assert sizes["onnx-genai-int4"] < 0.2 * sizes["onnx-genai-fp32"]
    assert sizes["onnx-genai-fp16"] < 0.52 * sizes["onnx-genai-fp32"]


def test_the_fp16_folder_names_no_provider_and_computes_in_fp16(folders: dict[str, Exported]) -> None:
    folder = folders["onnx-genai-fp16"].folder
    assert genai_config.read(folder)["model"]["decoder"]["session_options"]["provider_options"] == []
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    types = {value.name: value.type.tensor_type.elem_type for value in proto.graph.input}
    assert types["past_key_values.0.key"] == onnx.TensorProto.FLOAT16


def test_the_models_own_rules_of_generation_are_taken_over(build: Build, trained: Path, tmp_path: Path) -> None:
    source = edited(trained, tmp_path / "model")
    rules = {"eos_token_id": [1, 7], "repetition_penalty": 1.3, "do_sample": True, "temperature": 0.7, "top_k": 11, "num_beams": 2}
    (source / "generation_config.json").write_text(json.dumps(rules))
    made = build("onnx-genai-fp32", source)
    config = genai_config.read(made.folder)
    assert genai_config.end_tokens(config) == (1, 7)
    assert {name: config["search"][name] for name in rules if name != "eos_token_id"} == {
        name: value for name, value in rules.items() if name != "eos_token_id"
    }
    assert "bos_token_id" not in config["model"], "the model has no first token"
    assert made.output.figures["end_tokens"] == [1, 7]


def test_building_twice_gives_the_same_bytes(folders: dict[str, Exported], build: Build, trained: Path) -> None:
    again = build("onnx-genai-fp32", trained)
    for name in FILES:
        assert (again.folder / name).read_bytes() == (folders["onnx-genai-fp32"].folder / name).read_bytes(), name


def test_the_graph_says_what_it_is_and_nothing_of_the_box(folders: dict[str, Exported]) -> None:
    proto = onnx.load(folders["onnx-genai-int4"].folder / "model.onnx", load_external_data=False)
    facts = {one.key: one.value for one in proto.metadata_props}
    assert (facts["ckptd.dtype"], facts["ckptd.step"], facts["ckptd.base"]) == ("int4", "4", "org/pico")
    assert facts["ckptd.builder"].startswith("onnxruntime-genai 0.")
    assert proto.producer_name == "ckptd" and "+" not in proto.producer_version


def test_another_opset_than_was_asked_for_is_recorded(folders: dict[str, Exported], build: Build, trained: Path) -> None:
    assert [(one.wanted, one.taken) for one in folders["onnx-genai-fp32"].output.fallbacks] == [("opset 18", "opset 22")]
    assert build("onnx-genai-fp32", trained, opset=22).output.fallbacks == []


def test_a_sliding_window_of_all_layers_is_kept(build: Build, tmp_path: Path) -> None:
    source = make_model(tmp_path / "mistral", "Mistral", **SMALL, sliding_window=8)
    ids = [int(token) for token in np.random.default_rng(5).integers(3, 320, 30)]
    made = build("onnx-genai-fp32", source)
    wanted = torch_logits(source, np.array([ids]), np.ones((1, 30), np.int64))[0]
    assert np.abs(teacher_forced(engine(made.folder), ids) - wanted).max() < 1e-4
    assert "layer_types" not in models.read_json(made.folder / "config.json")


@pytest.mark.parametrize(("kind", "key"), [("Phi", "layer_norm_eps"), ("Nemotron", "norm_eps")])
@pytest.mark.parametrize("epsilon", [{}, 0.03], ids=["usual", "wide"])
def test_the_epsilon_of_the_norms_is_the_models_own(build: Build, tmp_path: Path, kind: str, key: str, epsilon: Any) -> None:
    sizes = {"hidden_size": 128, "num_key_value_heads": 4, **({key: epsilon} if epsilon else {})}
    source = make_model(tmp_path / kind, kind, **SMALL | sizes | {"initializer_range": 0.03})
    ids = [int(token) for token in np.random.default_rng(5).integers(3, 320, 30)]
    wanted = torch_logits(source, np.array([ids]), np.ones((1, 30), np.int64))[0]
    assert np.abs(teacher_forced(engine(build("onnx-genai-fp32", source).folder), ids) - wanted).max() < 2e-5 * wanted.std()


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("GPT2LMHead", {"vocab_size": 320, "n_embd": 64, "n_layer": 1, "n_head": 2}, "GPT2LMHeadModel is not an architecture"),
        ("Llama", SMALL | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}, "'linear' scaling"),
        ("Llama", SMALL | {"intermediate_size": 320}, "mlp.gate_proj.weight has as many outputs as the vocabulary"),
    ],
)
def test_what_the_builder_would_build_wrongly_is_refused(
    build: Build, tmp_path: Path, kind: str, settings: dict[str, Any], words: str
) -> None:
    source = make_model(tmp_path / "model", kind, **settings)
    with pytest.raises(Permanent) as caught:
        build("onnx-genai-fp32", source)
    assert caught.value.fault.code == "unsupported-architecture"
    assert words in caught.value.fault.cause
    assert caught.value.fault.remedy == "leave the onnx-genai variants out of export.variants"


def test_a_checkpoint_without_a_tokenizer_is_refused(build: Build, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"tokenizer\.json"):
        build("onnx-genai-fp32", trained, pin=tmp_path)


def test_a_failure_of_the_builder_is_one_sentence(build: Build, trained: Path, tmp_path: Path) -> None:
    source = edited(trained, tmp_path / "model")
    whole = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Permanent) as caught:
        build("onnx-genai-int4", source)
    assert "\n" not in caught.value.fault.cause


# R2.4
@pytest.mark.parametrize(
    ("settings", "block", "symmetric", "fallbacks"),
    [
        ({"block_size": 16, "symmetric": False}, 16, False, []),
        ({"block_size": 64, "symmetric": False}, 32, False, ["blocks of 64 weights"]),
        ({"block_size": 128}, 128, True, []),
        ({"algorithm": "k-quant"}, 32, False, []),
        ({"algorithm": "hqq"}, 32, False, ["the algorithm hqq"]),
    ],
)
def test_each_way_to_choose_the_values_gives_a_folder_that_validation_passes(
    build: Build, trained: Path, bench: Bench, settings: dict[str, Any], block: int, symmetric: bool, fallbacks: list[str]
) -> None:
    made = build("onnx-genai-int4", trained, opset=22, accuracy_level=1, **settings)
    figures = made.output.figures
    assert (figures["block_size"], figures["symmetric"], figures["accuracy_level"]) == (block, symmetric, 1)
    assert [one.wanted for one in made.output.fallbacks] == fallbacks
    products = [
        node for node in onnx.load(made.folder / "model.onnx", load_external_data=False).graph.node if node.op_type == "MatMulNBits"
    ]
    assert {len(node.input) > 3 and bool(node.input[3]) for node in products} == {not symmetric}
    assert {attribute.i for node in products for attribute in node.attribute if attribute.name == "block_size"} == {block}
    assert bench.check("onnx-genai-int4", made.folder).verdict == Verdict.PASSED


def levels(folder: Path) -> set[int]:
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    return {one.i for node in proto.graph.node for one in node.attribute if one.name == "accuracy_level"}


# R2.4
def test_both_accuracy_levels_are_measured_and_the_chosen_one_is_in_the_graph(folders: dict[str, Exported]) -> None:
    figures = folders["onnx-genai-int4"].output.figures
    trials = figures["accuracy_level_trials"]
    assert levels(folders["onnx-genai-int4"].folder) == {figures["accuracy_level"]}
    assert trials["1"]["error"] == 0 and 0.001 < trials["4"]["error"] < 0.02
    assert figures["accuracy_level_flips"] == 0


def with_outliers(source: Path, folder: Path) -> Path:
    """The same model with activations of which a few are 2,048 times as large, and the weights that take them as much smaller."""
    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(source, folder)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    large = torch.ones(model.config.hidden_size)
    large[::16] = 2048.0
    with torch.no_grad():
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            for norm, takers in (
                (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
                (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
            ):
                norm.weight.mul_(large)
                for taker in takers:
                    taker.weight.div_(large)
    model.save_pretrained(folder)
    return folder


# R2.4
def test_a_level_that_changes_the_answers_is_not_taken(build: Build, trained: Path, tmp_path: Path) -> None:
    source = with_outliers(trained, tmp_path / "outliers")
    made = build("onnx-genai-int4", source)
    assert made.output.figures["accuracy_level_trials"]["4"]["error"] > 0.2
    assert made.output.figures["accuracy_level"] == 1
    assert levels(made.folder) == {1}
    assert sorted(path.name for path in made.folder.iterdir()) == FILES
    assert levels(build("onnx-genai-int4", source, accuracy_level=4).folder) == {4}, "what is asked for is done"


def test_the_fast_level_is_taken_only_where_it_is_close_changes_no_clear_choice_and_is_not_slower() -> None:
    exact, fast = LevelMeasurement(0.0, 1.0, 10.0), LevelMeasurement(0.01, 0.99, 8.0)
    assert int4_levels.choose({1: exact, 4: fast}, 0, by_rows=0.01).level == 4
    assert int4_levels.choose({1: exact, 4: fast}, 1, by_rows=0.01).level == 1
    assert int4_levels.choose({1: exact, 4: replace(fast, error=0.06)}, 0, by_rows=0.01).level == 1
    assert int4_levels.choose({1: exact, 4: replace(fast, error=float("inf"))}, 0, by_rows=0.01).level == 1
    assert int4_levels.choose({1: exact, 4: replace(fast, milliseconds=13.0)}, 0, by_rows=0.01).level == 1


def test_a_changed_choice_counts_unless_it_was_a_near_tie() -> None:
    wanted = np.array([[[0.0, 9.0, 3.0, 0.0], [0.0, 9.0, 8.99, 0.0]]], np.float32)
    swapped = wanted[..., [0, 2, 1, 3]]

    class Session:
        def get_inputs(self) -> list[Any]:
            return []

        def get_outputs(self) -> list[Any]:
            return [type("Output", (), {"name": "logits"})]

        def run(self, names: None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            return [swapped]

    call = int4_levels.GraphRun("model", {}, {"logits": wanted})
    assert int4_levels.count_flips([call], Session()) == 1  # type: ignore[arg-type]


def test_prompts_that_cannot_be_read_leave_the_exact_level_and_say_so(build: Build, trained: Path, tmp_path: Path) -> None:
    context = make_context(tmp_path / "work", "onnx-genai-int4", {"merge": trained}, trained)
    validation = context.work.validation.model_copy(update={"prompts": str(tmp_path / "none.txt")})
    output = int4.run(context.model_copy(update={"work": context.work.model_copy(update={"validation": validation})}), silent())
    assert (output.figures["accuracy_level"], levels(Path(context.staging))) == (1, {1})
    assert any("measurement" in one.wanted for one in output.fallbacks)


ROWS = [[70, 71, 72, 73, 74], [9, 10], [40, 41, 8, 15, 200, 33, 90]]


@pytest.mark.parametrize("steps", [[[5, 6, 7], [8, 9, 10], [11, 12, 13]], [[5, 1, 7], [8, 9, 0], [1, 1, 13]]], ids=["plain", "end-tokens"])
def test_a_row_of_a_batch_is_what_it_is_alone(folders: dict[str, Exported], steps: list[list[int]]) -> None:
    model = engine(folders["onnx-genai-fp32"].folder)
    continuations = [[step[row] for step in steps] for row in range(3)]
    assert padding_error(model, ROWS, continuations) < 1e-4


def test_a_batch_whose_prompts_hold_the_padding_token_is_read_right(folders: dict[str, Exported]) -> None:
    model = engine(folders["onnx-genai-fp32"].folder)
    assert padding_error(model, [[70, 0, 72, 0], [9, 10]], [[5, 6], [7, 8]]) < 1e-4


def test_a_graph_that_ignores_the_mask_fails_the_padding_check(folders: dict[str, Exported], tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(folders["onnx-genai-fp32"].folder, folder)
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    (lengths,) = (node for node in proto.graph.node if node.op_type == "ReduceSum")
    ones = onnx.helper.make_node("Greater", [lengths.input[0], "minus_one"], ["all_tokens"])
    cast = onnx.helper.make_node("Cast", ["all_tokens"], ["full_mask"], to=onnx.TensorProto.INT64)
    proto.graph.initializer.append(onnx.helper.make_tensor("minus_one", onnx.TensorProto.INT64, [], [-1]))
    lengths.input[0] = "full_mask"
    for node in (cast, ones):
        proto.graph.node.insert(0, node)
    onnx.save_model(proto, folder / "model.onnx")
    assert padding_error(engine(folder), ROWS, [[5, 8], [6, 9], [7, 10]]) > 0.1


def test_a_text_that_outgrows_its_cache_goes_on(folders: dict[str, Exported], monkeypatch: pytest.MonkeyPatch) -> None:
    model = engine(folders["onnx-genai-fp32"].folder)
    wanted = greedy(model, ROWS[0], 24)
    monkeypatch.setattr(genai_engine, "ROOM", 2)
    found = greedy(model, ROWS[0], 24)
    assert found.tokens == wanted.tokens
    assert np.abs(found.logits - wanted.logits).max() < 1e-4
    assert padding_error(model, ROWS, [[5] * 6, [6] * 6, [7] * 6]) < 1e-4


def test_the_engine_reads_texts_with_the_folders_own_tokenizer(folders: dict[str, Exported], pico_base: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(pico_base), engine(folders["onnx-genai-fp32"].folder)
    for text in models.TEXTS:
        ids = tokenizer(text)["input_ids"]
        assert model.encode(text) == ids
        assert model.text([*ids, 1]) == text
    assert (model.vocabulary, model.context_length, model.end_tokens) == (320, 256, (1,))


def test_a_folder_of_another_kind_is_refused_by_the_engine(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"genai_config\.json"):
        engine(tmp_path)


# R7.1
@pytest.mark.slow
def test_a_build_leaves_nothing_behind_in_the_home_directory(trained: Path, tmp_path: Path) -> None:
    context = make_context(tmp_path / "work", "onnx-genai-fp32", {"merge": trained}, trained)
    job, home = tmp_path / "job.json", tmp_path / "home"
    home.mkdir()
    job.write_text(context.model_dump_json())
    environment = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "HF_HOME": str(home / "hf")}
    done = subprocess.run(
        [sys.executable, "-m", "handlers", str(job)], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    result = models.read_json(Path(context.result))
    assert (done.returncode, result["outcome"]) == (0, "succeeded"), done.stderr[-2000:]
    assert sorted(entry["path"] for entry in result["files"]) == FILES
    assert [str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()] == []
    assert all(line.startswith("{") for line in done.stdout.splitlines()), "only progress goes to standard output"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["generic", "generic, first token", "qwen2", "llama, first token", "llama, no ends", "gemma, first token"])
def test_a_text_is_read_with_the_first_token_where_transformers_puts_one(folders: dict[str, Exported], name: str, tmp_path: Path) -> None:
    import onnxruntime_genai as genai
    from transformers import AutoTokenizer

    from tests.older import tokenizers

    folder = shutil.copytree(folders["onnx-genai-fp32"].folder, tmp_path / "folder")
    tokenizers.save(name, tmp_path / "tokenizer")
    for path in (tmp_path / "tokenizer").iterdir():
        shutil.copy(path, folder)
    opened, theirs = engine(folder), AutoTokenizer.from_pretrained(folder)
    tokenizer, spaces = genai.Tokenizer(genai.Model(str(folder))), set()
    for text in ("How are you today?", "def add(a, b):\n    return a + b\n"):
        ids = theirs(text)["input_ids"]
        assert opened.encode(text) == ids
        mine, wanted = tokenizer.decode(np.array(ids, np.int32)), theirs.decode(ids, skip_special_tokens=True)
        assert mine.removeprefix(" ") == wanted
        spaces.add(mine != wanted)
    assert spaces == {bool(stage.spaces_before(tokenizer, folder))} == {name == "llama, no ends"}
    text = (Path(stage.__file__).with_name("usage.md")).read_text()
    assert 'update_options(add_special_tokens="true")' in text.split("```python")[1]
    assert "add_special_tokens" not in text.split("```python")[2], "a chat template writes the first token itself"
