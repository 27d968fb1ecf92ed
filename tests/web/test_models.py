"""Models of every kind say in a page what their ONNX graphs say; what a page could not decode with is refused before it is measured."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from daemon.contract.faults.errors import Permanent
from handlers.models.tasks import BY_NAME
from handlers.onnx.quantize.rewriters.weight_only_rewriter import set_level
from handlers.web import known
from handlers.web.browser.chromium import BrowserError
from handlers.web.browser.page import Page
from tests import models
from tests.exports.graphs import load, outputs
from tests.torch_programs.forms import MODELS
from tests.web import forms
from tests.web.test_browser import doubling

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("packages")]
KINDS = [name for name in MODELS if name != "Marian"]
"""A Marian of random weights has no tokenizer; `test_export` has one."""
BOUND = 1e-4
"""Largest difference in standard deviations of the outputs; the models are untrained."""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.make_base(tmp_path_factory.mktemp("tokens") / "base", dtype="float32")


def exact(folder: Path, work: Path) -> Path:
    """A copy whose products of blocks are computed in fp32: onnxruntime-web knows no other way."""
    import onnx_ir as ir

    shutil.copytree(folder, work)
    for path in work.glob("*.onnx"):
        model = ir.load(path)
        set_level(model, 1)
        ir.save(model, path)
    return work


@pytest.mark.parametrize("name", KINDS)
def test_every_form_says_in_a_page_what_its_graphs_say(name: str, tokens: Path, tmp_path: Path) -> None:  # R10
    graphs = forms.onnx(MODELS[name](tmp_path / "model"), tmp_path, tokens)
    for variant, source in forms.VARIANTS.items():
        folder, _ = forms.make(variant, graphs, tmp_path / variant)
        wanted = graphs[source] if variant != "web-int4" else exact(graphs[source], tmp_path / "exact")
        for ours, theirs in zip(outputs("web", folder, "decoder_merged"), outputs("onnx", wanted, "decoder_merged"), strict=True):
            assert ours.shape == theirs.shape
            assert np.abs(ours - theirs).max() <= BOUND * theirs.std(), variant


def test_a_batch_is_decoded_by_the_library_itself_from_an_empty_cache(tokens: Path, tmp_path: Path) -> None:
    """The name of the first axis: without it transformers.js takes a batch for empty."""
    graphs = forms.onnx(MODELS["Qwen3"](tmp_path / "model"), tmp_path, tokens)
    folder, _ = forms.make("web", graphs, tmp_path / "web")
    engine = load("web", folder)
    assert engine.page.ask("generate", ids=[7, 11, 5], tokens=3, settings={"eos_token_id": None})[:3] == [7, 11, 5]
    engine.page.close()
    renamed = onnx.load(folder / "onnx" / "model.onnx")
    for value in renamed.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save(renamed, folder / "onnx" / "model.onnx")
    with pytest.raises(Permanent, match="can't decode with it"):
        load("web", folder)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("Qwen3", {"num_hidden_layers": 1}, "can't decode with it: .*past_key_values.1"),
        ("Qwen3", {"transformers.js_config": {"dtype": "q8"}}, "model_quantized.onnx"),
        ("Qwen3", {"model_type": "unheard"}, "Unsupported model type: unheard"),
        ("T5", {"transformers.js_config": {"dtype": "fp32"}}, "onnx_data|external"),
    ],
)
def test_a_config_that_leads_a_page_astray_is_found(name: str, change: dict[str, Any], words: str, tokens: Path, tmp_path: Path) -> None:
    graphs = forms.onnx(MODELS[name](tmp_path / "model"), tmp_path, tokens)
    folder, _ = forms.make("web", graphs, tmp_path / "web")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises((Permanent, BrowserError), match=words):
        load("web", folder)


def test_the_table_says_what_the_library_knows(packages: Path, tmp_path: Path) -> None:
    source = (packages / "@huggingface" / "transformers" / "src" / "configs.js").read_text()
    switch = source.split("function getNormalizedConfig")[1].split("\n}\n")[0]
    groups = re.findall(r"((?:\s+case '[\w-]+':)+)\n((?:\s+mapping\[.*;\n)+)", switch)
    settings = {kind: re.findall(r"\['(\w+)'\] = '(\w+)'", lines) for cases, lines in groups for kind in re.findall(r"'([\w-]+)'", cases)}
    page = Page(doubling(tmp_path / "model"), packages)
    try:
        for task, rows in known.table().items():
            for row in rows if isinstance(rows, list) else []:
                for kind in row["types"]:
                    supports = (
                        f"import('/packages/@huggingface/transformers/dist/transformers.min.js').then((one) => one.{BY_NAME[task].auto}"
                    )
                    assert page._evaluate(f"{supports}.supports({kind!r}))"), (task, kind)
                    told = dict(settings.get(kind, ()))
                    names = {"num_layers": "layers", "num_heads": "heads", "dim_kv": "size", "hidden_size": "hidden"}
                    if task == "text2text-generation":
                        names = {"num_decoder_layers": "layers", "num_decoder_heads": "heads", "decoder_dim_kv": "size",
                                 "decoder_hidden_size": "hidden"}  # fmt: skip
                    if task.endswith("generation"):
                        assert {ours: row.get(ours) for ours in names.values()} == {names[key]: told.get(key) for key in names}, kind
    finally:
        page.close()
