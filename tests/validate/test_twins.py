"""Graphs beside the model that their own stored weights give: sound ones equal it, damaged ones don't, and the reasons say why."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from filelock import FileLock
from onnx import TensorProto, helper, numpy_helper

from daemon.contract.jobs.figures import CheckFigures
from handlers.onnx.export import stage
from handlers.onnx.format import TWIN
from handlers.validate.engines.registry import EngineSpec, load
from handlers.validate.twins import judging, matching, rounding
from handlers.validate.twins.messages import Answer, Rounding, Text
from handlers.validate.twins.onnx import stored
from handlers.validate.twins.onnx.float_form import float_form
from handlers.validate.twins.onnx.form import IN_HALVES, STRUCTURE
from handlers.validate.twins.weights import Scaled, UnreadableError
from handlers.validate.workers import drivers
from handlers.validate.workers.protocol import PaddedBatch
from tests.onnx.conftest import SMALL, make_context, make_model, silent
from tests.onnx.small import derived
from tests.sampling import some
from tests.sharing import shared
from tests.validate import damage_quantized, sabotage, zoo
from tests.validate.damage_quantized import CASES, FORMS, Damage, answered, artifact, reasons, said
from tests.validate.sabotage import Lab

MICROSOFT = "com.microsoft"


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return shared(tmp_path_factory, "sabotage", sabotage.make)


def _made(lab: Lab, form: str) -> Path:
    with FileLock(lab.folder / "lock"):
        return artifact(lab, form)


@pytest.mark.parametrize("form", some(FORMS, of=4))
def test_a_sound_form_is_the_model_that_its_own_weights_give(form: str, lab: Lab) -> None:
    answer = answered(lab, form, _made(lab, form))
    assert reasons(answer) == ""
    assert answer.error is not None and answer.error < (IN_HALVES if form.endswith("fp16") else STRUCTURE) / 5
    assert answer.rounding is not None and abs(answer.rounding.slope - 1) < judging.SYSTEMATIC / 2
    assert (answer.padding_side != "") == (form.removeprefix("web-").removeprefix("activations-") == "int8"), "of scales that rows share"
    assert answer.padding is None or answer.padding < STRUCTURE / 5


@pytest.mark.parametrize(("damage", "form"), some(CASES, of=150), ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_damage_is_caught_with_its_reason_or_is_harmless(damage: Damage, form: str, lab: Lab, tmp_path: Path) -> None:
    answer = answered(lab, form, damage.apply(_made(lab, form), tmp_path / "damaged"))
    told = reasons(answer)
    if damage.words:
        assert re.search(damage.words, told), (told, answer)
    else:
        limit = IN_HALVES if form == "fp16" else STRUCTURE
        assert not told and answer.error is not None and answer.error <= limit, "what passes moves no output by more than the limit"


@pytest.mark.parametrize("outlier", some([4.0, 1.0], of=2))
def test_padding_that_makes_the_rounding_of_a_batch_coarser_is_no_ignored_mask(outlier: float, pico_base: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    merged = make_model(tmp_path / "merged", "Llama", **SMALL)
    tensors = load_file(merged / "model.safetensors")
    tensors["model.embed_tokens.weight"][0] = 0
    tensors["model.embed_tokens.weight"][0, 3] = 20  # the token that pads, alone in a channel of its own
    for name in (f"model.layers.{layer}.mlp.{part}_proj.weight" for layer in (0, 1) for part in ("gate", "up")):
        tensors[name][0, 3] = outlier
    save_file(tensors, merged / "model.safetensors", {"format": "pt"})
    folder = derived("int8", _exported(merged, tmp_path / "onnx", pico_base), tmp_path / "int8").folder
    spec, batch = EngineSpec(engine="onnx", folder=str(folder), threads=1, task="text-generation"), damage_quantized.padded()
    driver = drivers.drive(spec, load(spec))
    unit = float(driver.rows(batch.prompts[0], [], None).std())
    rounded = driver.padding(batch.prompts, batch.continuations, None, "left") / unit
    assert rounded > (1.0 if outlier > 1 else 0.25), "one scale for all rows: those of padding make it coarser"
    found = _compared(folder, merged, [Text(ids=batch.prompts[0])], padded=batch)
    assert found.findings == [] and found.figures.twin_padding_error < STRUCTURE / 5


@pytest.mark.slow
@pytest.mark.parametrize("form", ["int8", "int4", "genai-int4"])
def test_another_checkpoint_is_not_what_rounding_gives(form: str, lab: Lab) -> None:
    with FileLock(lab.folder / "lock"):
        folder = artifact(lab, form, "stale")
    assert re.search(damage_quantized.STORED, reasons(answered(lab, form, folder)))


def _exported(merged: Path, folder: Path, pin: Path) -> Path:
    """What the stage `onnx` makes of a model; `pin` has a tokenizer."""
    context = make_context(folder, "onnx", {"merge": merged}, pin)
    stage.run(context, silent())
    return Path(context.staging)


DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", SMALL),
    "one layer": ("Llama", SMALL | {"num_hidden_layers": 1, "initializer_range": 0.02}),
    "tied, large vocabulary": ("Llama", SMALL | {"vocab_size": 5003, "tie_word_embeddings": True}),
    "odd sizes": ("Llama", SMALL | {"hidden_size": 72, "num_attention_heads": 6, "num_key_value_heads": 3}),
    "gpt2": ("GPT2LMHead", {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256}),
    "phi3": ("Phi3", SMALL),
    "experts": ("Qwen3Moe", SMALL | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "head_dim": 16}),
}


def _compared(
    folder: Path, merged: Path, texts: list[Text], task: str = "text-generation", *, half: bool = False, padded: PaddedBatch | None = None
) -> Any:
    from handlers.validate.twins.compare import compare
    from handlers.validate.twins.messages import Order

    order = Order(
        form=TWIN, engine="onnx", folder=str(folder), merged=str(merged), task=task, sentence=False, threads=1, texts=texts,
        arithmetic="half" if half else "float", padded=padded, sides=("left",),
    )  # fmt: skip
    return judging.judged(compare(order), "onnx-int8")


@pytest.mark.parametrize("form", some(["int4", "int8", "int8_static", "int8_weight", "fp16"], of=5))
@pytest.mark.parametrize("kind", some(DECODERS, of=7))
def test_sound_forms_of_untrained_decoders_raise_no_alarm(
    kind: str, form: str, pico_base: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def make(folder: Path) -> tuple[Path, Path]:
        name, settings = DECODERS[kind]
        merged = make_model(folder / "merged", name, **settings)
        return merged, _exported(merged, folder / "onnx", pico_base)

    merged, plain = shared(tmp_path_factory, f"twin-{kind.replace(' ', '-')}", make)
    drawn = np.random.default_rng(2)
    texts = [Text(ids=[int(token) for token in drawn.integers(3, 320, count)]) for count in (9, 100)]
    found = _compared(derived(form, plain, tmp_path / form).folder, merged, texts, half=form == "fp16")
    assert (found.findings, found.notes) == ([], []), found


@pytest.mark.slow
@pytest.mark.parametrize("form", ["int4", "int8", "int8_static", "int8_weight", "fp16"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "marian", "t5", "bart"])
def test_sound_forms_of_other_families_raise_no_alarm(
    kind: str, form: str, pico_base: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pair = kind in ("marian", "t5", "bart")

    def make(folder: Path) -> tuple[Path, Path]:
        auto = "AutoModelForSequenceClassification"
        merged = (
            zoo.make_seq2seq_base(folder / "merged", kind) if pair else zoo.make_encoder_base(folder / "merged", auto, kind, num_labels=3)
        )
        return merged, _exported(merged, folder / "onnx", merged if pair else pico_base)

    merged, plain = shared(tmp_path_factory, f"twin-{kind}", make)
    drawn = np.random.default_rng(2)
    texts = [
        Text(ids=[*map(int, drawn.integers(5, 300, count)), 1], targets=tuple(map(int, drawn.integers(5, 300, 6))) if pair else ())
        for count in (9, 60)
    ]
    task = "text2text-generation" if pair else "text-classification"
    found = _compared(derived(form, plain, tmp_path / form).folder, merged, texts, task, half=form == "fp16")
    assert (found.findings, found.notes) == ([], []), found


def test_a_rounded_cache_is_told_and_not_compared(tmp_path: Path) -> None:
    node = helper.make_node("GroupQueryAttention", ["a", "b", "c"], ["d"], domain=MICROSOFT, kv_cache_bit_width=8)
    graph = helper.make_graph([node], "g", [], [])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    with pytest.raises(UnreadableError, match="its KV cache is rounded"):
        float_form(tmp_path / "model.onnx")
    found = judging.judged(Answer(left_out="its KV cache is rounded to int8"), "onnx-int8")
    assert found.findings == [] and found.notes == [
        "its graph was not compared with the model that its own weights give: its KV cache is rounded to int8"
    ]


def test_integers_that_an_unknown_operator_reads_are_told(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Mystery", ["w"], ["y"])], "g", [], [], [numpy_helper.from_array(np.ones((32, 32), np.int8), "w")]
    )
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    with pytest.raises(UnreadableError, match="numbers of w are read by operators that are not known here"):
        stored.read(tmp_path / "model.onnx")
    for name in ("QLinearMatMul", "DynamicQuantizeMatMul", "MatMulBnb4"):
        onnx.save(helper.make_model(helper.make_graph([helper.make_node(name, ["w"], ["y"])], "g", [], [])), tmp_path / "model.onnx")
        with pytest.raises(UnreadableError, match=f"its operator {name} is not known here"):
            stored.read(tmp_path / "model.onnx")


def _run(nodes: list[onnx.NodeProto], tensors: dict[str, np.ndarray], feeds: dict[str, np.ndarray], path: Path) -> np.ndarray:
    """What onnxruntime computes; the graph stays in `path`."""
    import onnxruntime

    inputs = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), one.shape) for name, one in feeds.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in tensors.items()])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    found: np.ndarray = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["y"], feeds)[0]
    return found


@pytest.mark.parametrize(("bits", "points"), [(4, None), (4, "packed"), (4, "floats"), (8, None), (8, "packed")])
def test_blocks_mean_what_onnxruntime_multiplies(bits: int, points: str | None, tmp_path: Path) -> None:
    drawn, rows, columns, block = np.random.default_rng(3), 24, 80, 32
    count = -(-columns // block)
    tensors = {
        "w": drawn.integers(0, 256, (rows, count, block * bits // 8)).astype(np.uint8),
        "s": drawn.normal(0, 1, (rows, count)).astype(np.float32),
    }
    if points == "packed":
        tensors["z"] = drawn.integers(0, 256, (rows, -(-count * bits // 8))).astype(np.uint8)
    elif points == "floats":
        tensors["z"] = drawn.uniform(3, 9, (rows, count)).astype(np.float32)
    node = helper.make_node("MatMulNBits", ["x", *tensors], ["y"], domain=MICROSOFT, K=columns, N=rows, bits=bits, block_size=block)
    wanted = _run([node], tensors, {"x": np.eye(columns, dtype=np.float32)}, tmp_path / "model.onnx").T
    (weight,) = stored.read(tmp_path / "model.onnx")
    assert (weight.use, weight.shape) == ("product", (rows, columns))
    np.testing.assert_allclose(weight.part(slice(0, rows)).values, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("points", [False, True])
def test_a_table_in_blocks_means_what_onnxruntime_gathers(points: bool, tmp_path: Path) -> None:
    drawn, rows, columns, block = np.random.default_rng(4), 40, 64, 16
    tensors = {
        "w": drawn.integers(0, 256, (rows, columns // 2)).astype(np.uint8),
        "s": drawn.normal(0, 1, (rows, columns // block)).astype(np.float32),
    }
    if points:
        tensors["z"] = drawn.integers(0, 256, (rows, columns // block // 2)).astype(np.uint8)
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "x", "s", *(["z"] if points else [])], ["y"], domain=MICROSOFT, bits=4, block_size=block,
        gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    wanted = _run([node], tensors, {"x": np.arange(rows)}, tmp_path / "model.onnx")
    (weight,) = stored.read(tmp_path / "model.onnx")
    assert (weight.use, weight.shape) == ("table", (rows, columns))
    np.testing.assert_allclose(weight.part(slice(0, rows)).values, wanted, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_dequantized_matrices_mean_what_onnxruntime_multiplies(axis: int, tmp_path: Path) -> None:
    drawn = np.random.default_rng(5)
    tensors = {
        "w": drawn.integers(-128, 128, (48, 24)).astype(np.int8), "s": drawn.normal(0, 1, (48, 24)[axis]).astype(np.float32),
        "z": drawn.integers(-9, 9, (48, 24)[axis]).astype(np.int8),
    }  # fmt: skip
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wide"], axis=axis), helper.make_node("MatMul", ["x", "wide"], ["y"])]
    wanted = _run(nodes, tensors, {"x": np.eye(48, dtype=np.float32)}, tmp_path / "model.onnx").T
    (weight,) = stored.read(tmp_path / "model.onnx")
    np.testing.assert_allclose(weight.part(slice(0, 24)).values, wanted, rtol=1e-5, atol=1e-4)


def _stored(values: np.ndarray, levels: int = 127) -> Scaled:
    scales = (np.abs(values).max(axis=1, keepdims=True) / levels).astype(np.float32)
    return Scaled("w", "product", np.rint(values / scales).astype(np.int8), values.shape[1], scales, range=(-128, 127))


def test_a_weight_is_known_by_its_numbers_turned_joined_or_taken_apart() -> None:
    drawn = np.random.default_rng(6)
    query, key, gate = (drawn.normal(0, 1, shape).astype(np.float32) for shape in ((32, 48), (16, 48), (48, 32)))
    parameters = {"k": key, "q": query, "g": gate, "bias": np.ones(48, np.float32)}
    assert matching.match(_stored(query), parameters) == [matching.Segment("q", False, 0, 0, 32)]
    assert matching.match(_stored(np.ascontiguousarray(gate.T)), parameters) == [matching.Segment("g", True, 0, 0, 32)]
    joined = matching.match(_stored(np.concatenate([query, key])), parameters)
    assert joined == [matching.Segment("q", False, 0, 0, 32), matching.Segment("k", False, 32, 0, 16)]
    assert matching.match(_stored(query[8:24]), parameters) == [matching.Segment("q", False, 0, 8, 16)]
    assert matching.match(_stored(drawn.normal(0, 1, (32, 48)).astype(np.float32)), parameters) is None
    twice = {"first": query, "second": query.copy()}
    assert {matching.match(_stored(query), twice, skipped)[0].parameter for skipped in ((), ("second",), ("first",))} == {"first", "second"}  # type: ignore[index]


def test_parts_of_experts_are_known_one_by_one() -> None:
    drawn = np.random.default_rng(8)
    both = drawn.normal(0, 1, (3, 24, 48)).astype(np.float32)  # gate and up of three experts
    gates = np.ascontiguousarray(both[:, :12].reshape(-1, 48))
    found = matching.match(_stored(gates), {"experts": both, "other": drawn.normal(0, 1, (36, 48)).astype(np.float32)})
    assert found == [matching.Segment("experts", False, 12 * number, 24 * number, 12) for number in range(3)]


def test_one_bad_row_is_told_and_none_of_a_matrix_with_outliers() -> None:
    drawn = np.random.default_rng(7)
    values = drawn.standard_t(2, (64, 256)).astype(np.float32)
    weight = _stored(values)
    assert rounding.misrounded(weight, values) is None
    weight.codes[9] += 1
    found = rounding.misrounded(weight, values)
    assert found is not None and (found.row, found.rows) == (9, 1) and found.share > 0.9
    coarse = _stored(values)
    coarse.scales[3] *= 4  # type: ignore[index]
    coarse.codes[3] = np.rint(values[3] / coarse.scales[3]).astype(np.int8)  # type: ignore[index]
    found = rounding.misrounded(coarse, values)
    assert found is not None and (found.row, found.share) == (3, 0.0) and found.steps == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize(
    "values",
    [np.full((4, 64), 0.25), np.zeros((4, 64)), np.r_[np.full((2, 64), 1.0), np.full((2, 64), 1e-5)]],
    ids=["equal numbers", "zeros", "rows that are almost nothing"],
)
def test_coarse_steps_that_cost_nothing_are_no_alarm(values: np.ndarray) -> None:
    points = np.where(np.abs(values) > 1e-3, -values, 0).astype(np.float32)[:, :1]
    weight = Scaled("w", "product", np.zeros(values.shape, np.int8), 64, np.ones((4, 1), np.float32), points, range=(-8, 7))
    assert rounding.misrounded(weight, values.astype(np.float32)) is None


def test_only_what_rounding_cannot_make_is_a_systematic_error() -> None:
    def told(**changes: float) -> str:
        found = Rounding(**{"share": 0.03, "slope": 1.0, "shift": 0.0, "rows": 100, "outputs": 16, **changes})  # type: ignore[arg-type]
        return said(judging.judged(Answer(error=1e-6, limit=1e-3, tokens=9, rounding=found), "onnx-int8"))

    assert told() == told(slope=1.04) == told(shift=0.05) == ""
    assert "its outputs are 0.92 times those" in told(slope=0.92)
    assert "moves a part of its outputs by 0.2 standard deviations" in told(shift=0.2)
    assert told(slope=0.88, rows=2, outputs=1) == "", "three rows of noise have a slope too"


def test_an_error_that_is_no_number_is_above_every_limit() -> None:
    found = judging.judged(Answer(error=None, limit=1, tokens=9), "onnx-int8")
    assert "differ without limit" in said(found)
    assert found.figures == CheckFigures(twin_error=None)
