"""The attention of a decoder as the standard's operator of opset 23: equal to what was traced, and other forms can be made of it."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from handlers.graphs.attention import fusing, standard
from handlers.graphs.attention.finding import OPERATOR, find_all, is_united
from handlers.graphs.attention.reading import OtherFormError
from handlers.graphs.graphset import read
from handlers.graphs.sessions import check_form, open_session
from handlers.onnx.optimize.judging.equivalence import difference
from handlers.onnx.optimize.judging.random_inputs import Maker
from handlers.onnx.optimize.steps import STANDARD_ATTENTION
from handlers.web import layout
from tests.onnx.conftest import Exported, make_context, silent
from tests.onnx.layers.deep_models import MODELS, canonical, job, make, run
from tests.onnx.optimize import optimizing
from tests.onnx.optimize.optimizing import copied, of

DECODERS = [name for name, (_, kind, _) in MODELS.items() if kind.endswith(("ForCausalLM", "LMHeadModel")) and name != "GPT-OSS"]
QUICK = ("Llama",)


pytestmark = pytest.mark.usefixtures("equally_fast")


@pytest.fixture
def newest(two_layers: Callable[..., Exported]) -> Exported:
    """A Llama of two layers in opset 23, as it was traced. Read only."""
    return two_layers("Llama", 23)


def operators(path: Path) -> list[str]:
    """Of all nodes of a graph."""
    return [node.op_type for node in ir.load(path).graph.all_nodes()]


def saved(model: ir.Model, path: Path) -> Path:
    """A graph on disk, checked for its form."""
    ir.save(model, path)
    check_form(path)
    return path


def assert_equal(folder: Path, path: Path) -> None:
    """A graph gives what the folder's gives, for all shapes."""
    graph = read(folder).graphs[0]
    before, after = open_session(folder / graph.file, 1), open_session(path, 1)
    for case in Maker(graph, json.loads((folder / "config.json").read_text())).cases():
        difference(graph.outputs, before.run(None, case.feeds), after.run(None, case.feeds), case)


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in DECODERS])
def test_it_is_the_attention_that_was_traced_in_each_of_its_forms(
    name: str, two_layers: Callable[..., Exported], tmp_path: Path
) -> None:  # fmt: skip
    folder = copied(two_layers(name, 23), tmp_path)
    united = saved(standard.unite(ir.load(folder / "model.onnx")), folder / "united.onnx")
    assert operators(united).count(OPERATOR) == 2
    assert all(map(is_united, find_all(ir.load(united).graph)))
    assert_equal(folder, united)
    spelt = saved(standard.spell_out(ir.load(united)), folder / "spelt.onnx")
    assert OPERATOR not in operators(spelt)
    assert_equal(folder, spelt)
    fused = saved(fusing.fuse(ir.load(united)), folder / "fused.onnx")
    assert OPERATOR not in operators(fused) and operators(fused).count(fusing.OPERATOR) == 2
    assert fusing.shares_buffers(ir.load(fused))
    assert_equal(folder, fused)


def test_older_operator_sets_do_not_have_it(qwen3: Exported) -> None:
    model = ir.load(qwen3.folder / "model.onnx")
    with pytest.raises(OtherFormError, match="opset 18 has no operator for attention"):
        standard.unite(model)
    assert standard.spell_out(model) is model


@pytest.mark.slow
def test_a_template_has_it_and_quantized_graphs_have_the_one_that_copies_no_cache(tmp_path: Path) -> None:
    source = make(tmp_path / "model", "Llama")
    exported = run(job(tmp_path / "job", source, optimize="auto", opset=23, attention="operator"))
    path, depth = exported.folder / "model.onnx", 6
    assert operators(path).count(OPERATOR) == depth and "Softmax" not in operators(path)
    assert read(exported.folder).extra == {"cached_attention": ["model"]}
    again = run(job(tmp_path / "again", source, tmp_path / "job" / "cache", optimize="auto", opset=23, attention="operator"))
    told: Any = again.output.figures["template"]
    assert told["used"] == "kept" and canonical(again.folder / "model.onnx") == canonical(path)
    for stage, wanted in (("onnx-int8", fusing.OPERATOR), ("onnx-int4", fusing.OPERATOR), ("onnx-fp16", OPERATOR)):
        context = make_context(tmp_path / stage, stage, {"onnx": exported.folder}, source, opset=23, optimize="auto")
        pkgutil.resolve_name(context.entry)(context, silent())
        found = operators(Path(context.staging) / "model.onnx")
        assert {name: found.count(name) for name in (OPERATOR, fusing.OPERATOR)} == {OPERATOR: 0, fusing.OPERATOR: 0, wanted: depth}


def test_a_page_gets_products(newest: Exported, tmp_path: Path) -> None:
    folder, page = copied(newest, tmp_path), tmp_path / "page"
    ir.save(standard.unite(ir.load(newest.folder / "model.onnx")), folder / "model.onnx")
    page.mkdir()
    written = layout.write(folder, read(folder).graphs[0], page, "").graph.file
    assert OPERATOR in operators(folder / "model.onnx") and OPERATOR not in operators(page / written)


@pytest.mark.parametrize("change", ["causal", "no scale", "another mask", "other cache"])
def test_an_operator_that_is_used_in_another_way_is_not_taken_for_ours(change: str, newest: Exported) -> None:
    model = standard.unite(ir.load(newest.folder / "model.onnx"))
    node = next(node for node in model.graph if node.op_type == OPERATOR)
    for name in ("is_causal", "qk_matmul_output_mode"):  # as onnxruntime writes it down
        node.attributes[name] = ir.AttrInt64(name, 0)
    find_all(model.graph)
    if change == "causal":
        node.attributes["is_causal"] = ir.AttrInt64("is_causal", 1)
    elif change == "no scale":
        del node.attributes["scale"]
    elif change == "another mask":
        node.replace_input_with(3, None)
    else:
        node.replace_input_with(4, node.inputs[5])
    with pytest.raises(OtherFormError, match="layer 0"):
        find_all(model.graph)
    assert standard.has_operator(standard.spell_out(model).graph), "it is left as it is"


def test_what_differs_is_undone(newest: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unite = standard.unite

    def wrong(model: ir.Model) -> ir.Model:
        for node in unite(model).graph:
            if node.op_type == OPERATOR:
                node.attributes["scale"] = ir.AttrFloat32("scale", np.float32(node.attributes["scale"].as_float() * 1.01))
        return model

    monkeypatch.setattr("handlers.onnx.optimize.steps.unite", wrong)
    report = of(optimizing.run(copied(newest, tmp_path), "basic", steps=(STANDARD_ATTENTION,)), STANDARD_ATTENTION.name)
    assert not report.kept and "differs by" in report.reason


@pytest.mark.slow
def test_where_it_can_not_be_had_the_stage_says_why(tmp_path: Path) -> None:
    source = make(tmp_path / "model", "Llama", num_hidden_layers=1)
    exported = run(job(tmp_path / "job", source, optimize="basic", attention="operator"))
    (said,) = [one for one in exported.output.warnings if "onnx.attention" in one]
    assert said == 'onnx.attention = "operator" changed nothing (model: not for this model: opset 18 has no operator for attention)'
    exported = run(job(tmp_path / "none", source, attention="operator", opset=23))
    assert any("onnx.optimize leaves graphs as they are" in one for one in exported.output.warnings)
    exported = run(job(tmp_path / "plain", source, optimize="basic", opset=23))
    assert OPERATOR not in operators(exported.folder / "model.onnx") and not [one for one in exported.output.warnings if "attention" in one]
