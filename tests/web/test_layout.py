"""The layout of a published folder: names, axes, files of weights, configuration, tokenizer. Without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from handlers.graphs import graphset
from handlers.graphs.graphset import Graph, GraphSet, Port
from handlers.texts.built_in import BUILT_IN, FURTHER
from handlers.web import known, layout, marian_tokenizer, operators, stage, tokenizer
from tests import marian, models
from tests.older import tokenizers
from tests.onnx.conftest import make_context, silent
from tests.stages import refused

QWEN = {
    "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "hidden_size": 64,
}  # fmt: skip


def past(heads: int = 2, size: int = 8, layers: int = 2) -> Graph:
    shape = ("batch", heads, "past", size)
    names = [f"past_key_values.{layer}.{kind}" for layer in range(layers) for kind in ("key", "value")]
    return Graph(role="model", file="model.onnx", inputs=tuple(Port(name=name, dtype="float32", shape=shape) for name in names))


def small(folder: Path, *, external: bool = False, config: dict[str, Any] | None = None) -> Path:
    """An ONNX folder whose graph multiplies a "cache" by stored weights."""
    random = np.random.default_rng(0)
    weights = {name: random.normal(size=(8, 8)).astype(np.float32) for name in ("first", "second")}
    shape = ["batch", 2, "past", 8]
    cache = [f"past_key_values.{layer}.{kind}" for layer in range(2) for kind in ("key", "value")]
    nodes = [helper.make_node("MatMul", [cache[0], "first"], ["between"]), helper.make_node("MatMul", ["between", "second"], ["logits"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in cache]
    graph = helper.make_graph(
        nodes, "g", inputs, [helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
        value_info=[helper.make_tensor_value_info("between", TensorProto.FLOAT, shape)],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx", save_as_external_data=external, location="model.onnx.data", size_threshold=0)
    data = ("model.onnx.data",) if external else ()
    told = past().model_copy(update={"data": data, "outputs": (Port(name="logits", dtype="float32", shape=tuple(shape)),)})
    GraphSet(task="text-generation", family="causal", dtype="float32", opset=18, graphs=(told,)).write(folder)
    (folder / "config.json").write_text(json.dumps(QWEN if config is None else config))
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    (folder / "example.py").write_text("print()")
    tokens = models.make_base(folder.with_name(f"{folder.name}-tokens"), dtype="float32")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_bytes((tokens / name).read_bytes())
    return folder


def made(source: Path, work: Path, variant: str = "web") -> tuple[Path, dict[str, Any]]:
    of = {"web": "onnx", "web-int8": "onnx-int8", "web-int4": "onnx-int4"}[variant]
    context = make_context(work, variant, {of: source}, source)
    run = {"web": stage.plain, "web-int8": stage.int8, "web-int4": stage.int4}[variant]
    output = run(context, silent())
    return Path(context.staging), dict(output.figures)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small(tmp_path_factory.mktemp("small") / "onnx")


def test_a_folder_holds_what_transformers_js_asks_for_and_nothing_of_python(plain: Path, tmp_path: Path) -> None:  # R10
    folder, figures = made(plain, tmp_path / "work", "web-int8")
    assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()) == [
        "app.js", "chat_template.jinja", "config.json", "generation_config.json", "graphs.json", "hosting.js", "index.html",
        "onnx/model_quantized.onnx", "tokenizer.json", "tokenizer_config.json",
    ]  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    assert config == {**QWEN, "transformers.js_config": {"dtype": "q8", "use_external_data_format": False}}
    assert figures["dtype"] == "q8" and figures["data_files"] == 0
    assert json.loads((folder / "tokenizer_config.json").read_text())["chat_template"] == (folder / "chat_template.jinja").read_text()
    assert json.loads((folder / "tokenizer_config.json").read_text())["clean_up_tokenization_spaces"] is False
    assert graphset.read(folder).graphs[0].file == "onnx/model_quantized.onnx"


@pytest.mark.parametrize(("variant", "name"), [("web", "model.onnx"), ("web-int8", "model_quantized.onnx"), ("web-int4", "model_q4.onnx")])
def test_weights_of_their_own_lie_in_one_file_of_the_name_that_a_page_asks_for(variant: str, name: str, tmp_path: Path) -> None:
    source = small(tmp_path / "onnx", external=True)
    folder, figures = made(source, tmp_path / "work", variant)
    assert sorted(path.name for path in (folder / "onnx").iterdir()) == [name, f"{name}_data"]
    asked = json.loads((folder / "config.json").read_text())["transformers.js_config"]
    assert asked["use_external_data_format"] == {name: 1} and figures["data_files"] == 1
    assert same(source / "model.onnx", folder / "onnx" / name)


def test_a_file_that_would_be_too_large_for_a_page_becomes_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = small(tmp_path / "onnx", external=True)
    monkeypatch.setattr(layout, "MOST_OF_A_FILE", 300)
    folder, _ = made(source, tmp_path / "work")
    assert sorted(path.name for path in (folder / "onnx").iterdir()) == ["model.onnx", "model.onnx_data", "model.onnx_data_1"]
    assert json.loads((folder / "config.json").read_text())["transformers.js_config"]["use_external_data_format"] == {"model.onnx": 2}
    assert same(source / "model.onnx", folder / "onnx" / "model.onnx")


@pytest.mark.parametrize(("limit", "words"), [("MOST_OF_A_FILE", "its weight first has 256 bytes"), ("MOST_IN_ALL", "a page can open 100")])
def test_what_no_page_can_open_is_refused_in_one_sentence(
    limit: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # R3.5
    monkeypatch.setattr(layout, limit, 100)
    fault = refused(words, made, small(tmp_path / "onnx", external=True), tmp_path / "work")
    assert "leave web out" in fault.remedy


def test_the_first_axis_has_the_name_by_which_a_batch_gets_an_empty_cache(plain: Path, tmp_path: Path) -> None:
    folder, _ = made(plain, tmp_path / "work")
    graph = onnx.load(folder / "onnx" / "model.onnx").graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        assert [one.dim_param or one.dim_value for one in value.type.tensor_type.shape.dim] == ["batch_size", 2, "past", 8]
    assert graphset.read(folder).graphs[0].inputs[0].shape == ("batch_size", 2, "past", 8)


def same(one: Path, other: Path) -> bool:
    feeds = {name.name: np.ones((1, 2, 3, 8), np.float32) for name in onnxruntime.InferenceSession(one).get_inputs()}
    first, second = (onnxruntime.InferenceSession(path).run(None, feeds)[0] for path in (one, other))
    return bool((first == second).all())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**QWEN, "model_type": "mixtral"}, "loads no model of the type mixtral for text-generation"),
        ({**QWEN, "head_dim": 16}, "head_dim is 16 instead of 8"),
        ({**QWEN, "num_key_value_heads": 4}, "num_key_value_heads is 4 instead of 2"),
        ({"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 64}, "its heads are 8 wide"),
    ],
)
def test_a_model_that_a_page_would_not_load_or_feed_wrongly_is_refused(config: dict[str, Any], words: str, tmp_path: Path) -> None:
    refused(words, made, small(tmp_path / "onnx", config=config), tmp_path / "work")


def test_sizes_of_the_cache_that_a_config_leaves_out_are_written_into_it() -> None:
    bare = {key: value for key, value in QWEN.items() if key not in ("head_dim", "num_key_value_heads")}
    assert known.completed(bare, known.find(QWEN, "text-generation"), past()) == QWEN
    llama = {**bare, "model_type": "llama", "hidden_size": 32}
    assert "head_dim" not in known.completed(llama, known.find(llama, "text-generation"), past())  # 32 / 4 heads
    assert known.completed({**llama, "hidden_size": 64}, known.find(llama, "text-generation"), past())["head_dim"] == 8


def test_layers_whose_caches_differ_are_refused() -> None:
    graph = past()
    odd = graph.inputs[2].model_copy(update={"shape": ("batch", 1, "past", 8)})
    with pytest.raises(known.UnknownError, match="differ in their sizes"):
        known.completed(QWEN, known.find(QWEN, "text-generation"), graph.model_copy(update={"inputs": (*graph.inputs[:2], odd)}))


@pytest.mark.parametrize(("bits", "zeros"), [(4, False), (4, True), (8, False), (8, True)])
def test_rows_of_a_quantized_table_are_the_same_by_the_standards_operators(bits: int, zeros: bool) -> None:
    random = np.random.default_rng(bits)
    rows, blocks, block = 6, 3, 16
    table = random.integers(0, 256, (rows, blocks * block * bits // 8)).astype(np.uint8)
    arrays = {"table": table, "scales": random.normal(size=(rows, blocks)).astype(np.float32)}
    if zeros:
        arrays["zeros"] = random.integers(0, 256, (rows, -(-blocks * bits // 8))).astype(np.uint8)
    lookup = helper.make_node(
        "GatherBlockQuantized", ["table", "ids", "scales", *(["zeros"] if zeros else [])], ["out"], name="rows", domain="com.microsoft",
        bits=bits, block_size=block, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    graph = helper.make_graph(
        [lookup], "g", [helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["b", "s", blocks * block])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    ids = np.array([[0, 5, 2], [3, 3, 1]])
    before = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"ids": ids})[0]
    assert operators.replace_lookups(model) == 1
    assert {node.op_type for node in model.graph.node} & {"GatherBlockQuantized"} == set()
    onnx.checker.check_model(model)
    after = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"ids": ids})[0]
    assert np.array_equal(before, after)


def test_a_marians_tokenizer_is_written_and_reads_and_writes_what_its_own_does(tmp_path: Path) -> None:  # R11
    from handlers.folder import tokenizers

    folder = marian.write_tokenizer(tmp_path / "marian")
    own = tokenizers.load(folder)
    assert tokenizer.place(folder) == "written"
    written = tokenizers.load(folder)
    for source, target in marian.sentences(20):
        for text in (source, f">>deu<< {source}"):
            assert written.encode(text) == own.encode(text)
        assert written.decode(own.encode(target)) == own.decode(own.encode(target))
    for text in (*BUILT_IN, *FURTHER, "a W b", "WW", "the WüW boat", "Wa"):  # W and ü are the target's alone
        assert written.encode(text) == own.encode(text)
    assert own.encode("a W b") != own.encode("a X b")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "PreTrainedTokenizerFast" and config["source_lang"] == "eng"
    only = [token for token, _ in json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"] if token.startswith("\ue000")]
    assert only, "the target's own pieces are marked"


@pytest.mark.parametrize(("kind", "words"), [({"apart": True}, "vocabularies of their own"), ({"spaces": True}, "reads the text")])
def test_a_marians_tokenizer_that_would_be_read_otherwise_is_refused(kind: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = marian.write_tokenizer(tmp_path / "marian", **kind)
    with pytest.raises(tokenizer.UnlikeError, match=words):
        tokenizer.place(folder)
    assert not (folder / "tokenizer.json").exists()


def test_the_mark_of_the_targets_pieces_does_not_come_through_in_a_source_text(tmp_path: Path) -> None:
    folder = marian.write_tokenizer(tmp_path / "marian")
    tokenizer.place(folder)
    from handlers.folder import tokenizers

    read = tokenizers.load(folder)
    assert read.encode(f"the {marian_tokenizer.MARK}boat") == read.encode("the boat")


@pytest.mark.parametrize(
    ("name", "puts"), [("generic", None), ("generic, first token", True), ("llama, first token", True), ("llama, no ends", False)]
)
def test_a_first_token_that_tokenizer_json_puts_is_said_for_the_pipeline(name: str, puts: bool | None, tmp_path: Path) -> None:
    tokenizers.save(name, tmp_path)
    said = models.read_json(tmp_path / "tokenizer_config.json").get("add_bos_token")
    assert said is (puts if name.startswith("llama") else None)
    tokenizer.place(tmp_path)
    assert models.read_json(tmp_path / "tokenizer_config.json").get("add_bos_token") is puts


def test_the_page_says_its_task_and_loads_nothing_from_another_server(plain: Path, tmp_path: Path) -> None:
    folder, _ = made(plain, tmp_path / "work", "web-int4")
    text = (folder / "index.html").read_text()
    facts = text.split('id="facts">')[1].split("</script>")[0]
    assert json.loads(facts) == {"variant": "web-int4", "task": "text-generation", "dtype": "q4", "release": known.release()}
    for name in ("index.html", "app.js"):
        assert "http://" not in (folder / name).read_text() and "https://" not in (folder / name).read_text()


def test_the_table_of_models_is_of_the_release_that_the_toolchain_holds() -> None:
    from daemon.toolchains.registry import DEFINITIONS

    lock = json.loads((DEFINITIONS / "web" / "web.package-lock.json").read_text())
    assert lock["packages"]["node_modules/@huggingface/transformers"]["version"] == known.release()
    assert all(one.get("integrity") for name, one in lock["packages"].items() if name), "every package has its digest"
