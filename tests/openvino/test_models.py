"""OpenVINO's models of every kind say what the ONNX graphs say that they were made of; what can't be made is one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from handlers.graphs import graphset
from tests.exports.graphs import outputs
from tests.onnx import qwen
from tests.openvino import forms
from tests.stages import refused
from tests.torch_programs.forms import MODELS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("libraries")]
BOUNDS = {"openvino": 1e-4, "openvino-int8": 0.4, "openvino-int4": 2.5}
"""Variant → largest difference, in standard deviations of the outputs; the models are untrained."""


@pytest.mark.parametrize("name", list(MODELS))
def test_every_form_says_what_its_graphs_say(name: str, tmp_path: Path) -> None:  # R2.4
    model = MODELS[name](tmp_path / "model")
    graphs = forms.onnx(model, tmp_path / "onnx")
    wanted = outputs("onnx", graphs, "decoder_with_past")
    plain = None
    for variant, bound in BOUNDS.items():
        folder, output = forms.make(variant, plain or graphs, tmp_path / variant)
        plain = plain or folder
        found = outputs("openvino", folder, "decoder_with_past")
        for ours, theirs in zip(found, wanted, strict=True):
            assert ours.shape == theirs.shape
            assert np.abs(ours - theirs).max() <= bound * theirs.std(), variant
        assert output.figures["weights"]
        experts = name == "Qwen3Moe" and variant != "openvino"
        assert any("are left as they are" in one for one in output.warnings) == experts
        if variant != "openvino":
            assert (output.figures["small_share"] > 0.8) != experts
    made = graphset.read(tmp_path / "openvino-int4" / "staging")
    later = [port.name for graph in made.graphs if graph.role == "decoder_with_past" for port in graph.outputs]
    assert not [port for port in later if ".encoder." in port], "optimum-intel takes these for more layers"
    assert made.dtype == "int4" and all(one.file.startswith("openvino_") for one in made.graphs)
    sizes = [sum(path.stat().st_size for path in (tmp_path / one / "staging").glob("openvino_*model.bin")) for one in BOUNDS]
    assert sizes[0] > sizes[1] > sizes[2]


def test_a_graph_without_a_cache_is_refused_in_one_sentence(tmp_path: Path) -> None:
    model = qwen.make(tmp_path / "model")
    graphs = forms.onnx(model, tmp_path / "onnx")
    known = graphset.read(graphs)
    bare = known.graphs[0].model_copy(update={"inputs": tuple(one for one in known.graphs[0].inputs if "past" not in one.name)})
    known.model_copy(update={"graphs": (bare,)}).write(graphs)
    refused("has no cache", forms.make, "openvino", graphs, tmp_path / "work")


def test_an_operator_that_openvino_does_not_know_is_named(tmp_path: Path) -> None:
    import onnx

    model = qwen.make(tmp_path / "model")
    graphs = forms.onnx(model, tmp_path / "onnx")
    graph = onnx.load(graphs / "model.onnx")
    node = next(node for node in graph.graph.node if node.op_type == "MatMul")
    node.domain, node.op_type = "somebody", "Unheard"
    graph.opset_import.append(onnx.helper.make_opsetid("somebody", 1))
    onnx.save(graph, graphs / "model.onnx")
    refused("Unheard", forms.make, "openvino", graphs, tmp_path / "work")
    assert not list((tmp_path / "work" / "staging").glob("*.xml"))


def test_nothing_is_reported_to_anybody() -> None:
    from handlers.openvino import library

    library.nncf()
    library.tokenizers()
    assert sys.modules["openvino_telemetry"] is None
