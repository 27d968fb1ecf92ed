"""A decoder as a chain of graphs says what torch says, one part after the other, and each part is on disk before the next is made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import StageOutput
from handlers.families.base import Form, NotApplicableError
from handlers.families.chain.check import largest_error
from handlers.families.chain.family import Layered, chained, divided
from handlers.families.chain.modules import obstacle
from handlers.families.trace_cases import make_cases
from handlers.folder.chain_signature import links
from handlers.graphs import graphset
from handlers.graphs.comparison import GraphMismatchError
from handlers.graphs.signature import CacheLayer
from handlers.models.tasks import BY_NAME, task_of
from handlers.onnx.export import stage
from handlers.onnx.options import OnnxOptions
from handlers.onnx.tracing.exporters import Request, legacy
from handlers.onnx.tracing.strategies import STRATEGIES, Strategy, named
from tests.onnx import qwen
from tests.onnx.conftest import SMALL, make_context, make_model, quantize, silent
from tests.onnx.small import greedy_tokens
from tests.sampling import some

pytestmark = pytest.mark.slow

CAUSAL = BY_NAME["text-generation"]
LEGACY = named(STRATEGIES, "legacy-eager")
SLIDING = {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}


def wish(context: StageContext, per_graph: int, **options: Any) -> StageContext:
    """The same with `onnx.layers_per_graph`."""
    onnx_options = OnnxOptions(layers_per_graph=per_graph, **options)
    return context.model_copy(update={"work": context.work.with_options(onnx_options)})


def export(source: Path, folder: Path, pin: Path, per_graph: int, *strategies: Strategy, **options: Any) -> tuple[Path, StageOutput]:
    """Run the export by the strategies, by default the quickest."""
    context = wish(make_context(folder, "onnx", {"merge": source}, pin), per_graph, **options)
    return Path(context.staging), stage.export(context, silent(), strategies or (LEGACY,))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers, of which the last two see a window of six tokens; head and embedding are one."""
    return qwen.make(tmp_path_factory.mktemp("sliding") / "model", tie_word_embeddings=True, **SLIDING)


@pytest.fixture(scope="module")
def chain(source: Path, pico_base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StageOutput]:
    """The model in graphs of two layers. Read only."""
    folder, output = export(source, tmp_path_factory.mktemp("chain"), pico_base, 2)
    assert output.fallbacks == [] and len(graphset.read(folder).graphs) == 4
    return folder, output


# R3.1, R3.2
@pytest.mark.parametrize("batch", some(qwen.BATCHES, of=3), ids=str)
def test_a_chain_says_what_torch_says_at_any_batch_and_length(chain: tuple[Path, StageOutput], source: Path, batch: qwen.Batch) -> None:
    qwen.assert_equal_to_torch(source, chain[0], [batch])


def test_graphs_json_names_the_graphs_in_the_order_in_which_they_run(chain: tuple[Path, StageOutput]) -> None:
    graphs = graphset.read(chain[0])
    assert [(one.role, one.file) for one in graphs.graphs] == [
        ("embedding", "embedding.onnx"), ("layers.0", "layers_00.onnx"), ("layers.1", "layers_01.onnx"), ("head", "head.onnx"),
    ]  # fmt: skip
    assert graphs.extra == {"layers_per_graph": 2, "tied_head": True}
    first, *blocks, last = graphs.graphs
    assert [{port.name: port.shape for port in ports} for ports in (first.inputs, first.outputs)] == [
        {"input_ids": ("batch", "sequence")}, {"next_hidden_states": ("batch", "sequence", 64)},
    ]  # fmt: skip
    assert [[port.name for port in ports] for ports in (last.inputs, last.outputs)] == [["hidden_states"], ["logits"]]
    named_inputs = ["hidden_states", "attention_mask", "position_ids"]
    for block, layers in zip(blocks, ([0, 1], [2]), strict=True):
        pasts = [f"past_key_values.{layer}.{kind}" for layer in layers for kind in ("key", "value")]
        assert [port.name for port in block.inputs] == [*named_inputs, *pasts]
        assert [port.name for port in block.outputs] == [
            "next_hidden_states",
            *(name.replace("past_key_values", "present") for name in pasts),
        ]
        shapes = {port.name: port.shape for port in (*block.inputs, *block.outputs)}
        assert shapes[pasts[0]] == ("batch", 2, "past", 16) and shapes[f"present.{layers[0]}.key"] == ("batch", 2, "total", 16)
        assert shapes["attention_mask"] == ("batch", "total")


def test_each_graph_has_a_file_of_weights_and_a_tied_head_has_none(chain: tuple[Path, StageOutput], source: Path) -> None:
    folder, output = chain
    data = {one.role: one.data for one in graphset.read(folder).graphs}
    assert data == {
        "embedding": ("embedding.onnx.data",), "layers.0": ("layers_00.onnx.data",), "layers.1": ("layers_01.onnx.data",),
        "head": ("embedding.onnx.data",),
    }  # fmt: skip
    assert (folder / "embedding.onnx.data").stat().st_size == 320 * 64 * 4
    weights = sum(path.stat().st_size for path in source.glob("*.safetensors"))
    assert sum(path.stat().st_size for path in folder.glob("*.data")) < weights + 10_000
    assert output.figures["external_data"] is True and output.fallbacks == []


def test_every_graph_says_where_it_comes_from(chain: tuple[Path, StageOutput]) -> None:
    for one in graphset.read(chain[0]).graphs:
        model = onnx.load(chain[0] / one.file, load_external_data=False)
        facts = {entry.key: entry.value for entry in model.metadata_props}
        assert (facts["ckptd.run"], facts["ckptd.step"], facts["ckptd.model_type"]) == ("demo", "4", "qwen3")
        assert [entry.version for entry in model.opset_import] == [18]


def _run(folder: Path, *arguments: str) -> str:
    """The folder's example, in a process that has none of our modules."""
    command = [sys.executable, "-I", str(folder / "example.py"), "def add(", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout


@pytest.mark.parametrize("how", [(), ("--one-at-a-time",)], ids=["all at once", "one at a time"])
def test_the_example_makes_the_tokens_that_torch_makes(chain: tuple[Path, StageOutput], source: Path, how: tuple[str, ...]) -> None:
    import torch
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM, AutoTokenizer

    ids = Tokenizer.from_file(str(chain[0] / "tokenizer.json")).encode("def add(").ids
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    made = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :].tolist()
    assert json.loads(_run(chain[0], "--tokens", "12", "--ids", *how)) == made
    assert greedy_tokens(chain[0], "def add(")[: len(made)] == made
    asked = AutoTokenizer.from_pretrained(chain[0]).apply_chat_template([{"role": "user", "content": "def add("}], return_dict=False)
    made = model.generate(torch.tensor([asked]), max_new_tokens=12, do_sample=False)[0, len(asked) :].tolist()
    assert json.loads(_run(chain[0], "--chat", "--tokens", "12", "--ids", *how)) == made


def test_a_chain_whose_weights_are_wrong_is_found_out(chain: tuple[Path, StageOutput], source: Path, tmp_path: Path) -> None:
    import shutil

    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source).eval()
    cases, _ = make_cases(model, 320, positions=True)
    parts = links([CacheLayer(2, 16, 16)] * 3, 2)
    assert largest_error(chain[0], parts, cases, 1) < 1e-5
    damaged = tmp_path / "damaged"
    shutil.copytree(chain[0], damaged)
    weights = np.fromfile(damaged / "layers_01.onnx.data", np.float32)
    (weights * np.float32(1.02)).tofile(damaged / "layers_01.onnx.data")
    with pytest.raises(GraphMismatchError, match="differ from torch's"):
        largest_error(damaged, parts, cases, 1)


def test_a_chain_with_a_broken_link_is_refused_by_validation(chain: tuple[Path, StageOutput], tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "broken"
    shutil.copytree(chain[0], folder)
    model = onnx.load(folder / "layers_01.onnx", load_external_data=False)
    for node in model.graph.node:
        node.input[:] = ["states" if name == "hidden_states" else name for name in node.input]
    model.graph.input[0].name = "states"
    onnx.save(model, folder / "layers_01.onnx")
    with pytest.raises(Permanent, match="takes no hidden_states"):
        qwen.onnx_engine(folder)


@pytest.mark.slow
def test_each_graph_is_on_disk_and_its_weights_are_gone_before_the_next_is_made(source: Path, pico_base: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, list[str], int]] = []
    kept: list[Any] = []

    def watched(request: Request) -> ir.Model:
        alive = sum(parameter.numel() for layer in kept for parameter in layer.parameters())
        seen.append((request.part.role, sorted(path.name for path in (tmp_path / "staging").glob("*.onnx")), alive))
        if request.part.role.startswith("layers."):
            kept.append(request.part.module.stack.layers)
        return legacy(request)

    export(source, tmp_path, pico_base, 1, Strategy("watched", watched, newest_opset=20), templates=False)
    ends = ["embedding.onnx", "head.onnx"]
    assert seen == [
        ("embedding", [], 0), ("head", [], 0), ("layers.0", ends, 0), ("layers.1", [*ends, "layers_00.onnx"], 0),
        ("layers.2", [*ends, "layers_00.onnx", "layers_01.onnx"], 0),
    ]  # fmt: skip


@pytest.mark.slow
def test_an_untied_head_has_weights_of_its_own(pico_base: Path, tmp_path: Path) -> None:
    source = make_model(tmp_path / "model", "Llama", **SMALL, tie_word_embeddings=False)
    folder, _ = export(source, tmp_path / "out", pico_base, 4)
    graphs = graphset.read(folder)
    assert [one.role for one in graphs.graphs] == ["embedding", "layers.0", "head"] and graphs.extra["tied_head"] is False
    assert (folder / "head.onnx.data").stat().st_size == 320 * 64 * 4
    assert "Transpose" not in {node.op_type for node in onnx.load(folder / "head.onnx", load_external_data=False).graph.node}
    qwen.assert_equal_to_torch(source, folder)


# R7.1
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        pytest.param(
            "GPT2LMHead",
            {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4},
            "not embedding, layers, norm and head in sequence",
            marks=pytest.mark.slow,
        ),
        ("Granite", {**SMALL, "embedding_multiplier": 6.0, "logits_scaling": 2.0}, "has other computations besides"),
    ],
)
def test_a_model_that_is_more_than_its_layers_stays_one_graph_and_says_why(
    kind: str, options: dict[str, Any], words: str, pico_base: Path, tmp_path: Path
) -> None:
    source = make_model(tmp_path / "model", kind, **options)
    assert words in obstacle(source, CAUSAL)
    with pytest.raises(NotApplicableError, match=words):
        chained(CAUSAL, source, Form(), 2)
    folder, output = export(source, tmp_path / "out", pico_base, 2)
    assert [one.role for one in graphset.read(folder).graphs] == ["model"]
    assert [(one.wanted, one.taken) for one in output.fallbacks] == [("a chain of graphs", "one graph")]
    assert words in output.fallbacks[0].reason


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Qwen3Moe", "Mistral", "Phi3"])
def test_decoders_of_the_usual_make_can_be_divided(kind: str, tmp_path: Path) -> None:
    import transformers

    config = getattr(transformers, f"{kind}Config")(**SMALL)
    config.architectures = [f"{kind}ForCausalLM"]
    config.save_pretrained(tmp_path)
    assert obstacle(tmp_path, CAUSAL) == ""
    family, reason = divided(stage.choose(tmp_path), tmp_path, Form(), 2, must=False)
    assert isinstance(family, Layered) and family.task == task_of(tmp_path) and reason == ""


@pytest.mark.parametrize(("form", "words"), [(Form(cache=False), "has a cache"), (Form(axes="lengths"), "all its axes dynamic")])
def test_a_chain_has_no_other_form(source: Path, form: Form, words: str) -> None:
    with pytest.raises(NotApplicableError, match=words):
        chained(CAUSAL, source, form, 2)
    assert words in divided(stage.choose(source), source, form, 2, must=False)[1]


# R7.3
@pytest.mark.slow
def test_the_strategies_end_in_a_chain_which_is_a_recorded_fallback(source: Path, pico_base: Path, tmp_path: Path) -> None:
    def too_large(request: Request) -> ir.Model:
        if request.part.role == "model":
            raise ValueError("The proto size is larger than 2 GiB")
        return legacy(request)

    rows = (
        Strategy("dynamo-eager", too_large),
        Strategy("dynamo-external", too_large, external=True),
        Strategy("layers", legacy, chain=True),
    )
    folder, output = export(source, tmp_path, pico_base, 0, *rows)
    assert output.strategy == "layers" and len(graphset.read(folder).graphs) == 3
    assert [row["code"] for row in output.figures["attempts"][:-1]] == ["protobuf-limit", "protobuf-limit"]
    assert [(one.wanted, one.taken) for one in output.fallbacks] == [
        ("dynamo-eager", "layers"), ("one graph", "a chain of graphs, a few layers each"),
    ]  # fmt: skip
    assert named(STRATEGIES, "layers").chain and STRATEGIES[-1].name == "layers"


def test_a_chain_becomes_int8_like_any_other_folder(chain: tuple[Path, StageOutput], source: Path, tmp_path: Path) -> None:
    smaller = quantize(chain[0], tmp_path / "int8").folder
    assert [one.role for one in graphset.read(smaller).graphs] == [one.role for one in graphset.read(chain[0]).graphs]
    assert graphset.read(smaller).size(smaller) < 0.6 * graphset.read(chain[0]).size(chain[0])
    assert 0 < qwen.difference(qwen.torch_model(source), qwen.onnx_engine(smaller), qwen.Batch(1, (7, 1))) < 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Qwen3Moe", "Mistral"])
def test_families_in_a_chain_by_the_way_that_is_tried_first(kind: str, pico_base: Path, tmp_path: Path) -> None:
    options = {"sliding_window": 6} if kind == "Mistral" else {}
    source = qwen.make(tmp_path / "model", kind, **options)
    context = wish(make_context(tmp_path / "out", "onnx", {"merge": source}, pico_base), 1)
    output = stage.run(context, silent())
    folder = Path(context.staging)
    assert output.fallbacks == [] and len(graphset.read(folder).graphs) == 4
    assert output.strategy == ("dynamo-experts" if kind == "Qwen3Moe" else "dynamo-eager")
    qwen.assert_equal_to_torch(source, folder)
    assert _run(folder, "--tokens", "3")
