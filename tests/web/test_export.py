"""A checkpoint of a real training, exported for web pages by the command line; a page on a web server shows it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from handlers.web import known
from tests import marian
from tests.onnx.test_encoders import make as make_encoder
from tests.stages import made_in
from tests.toolchains import real
from tests.validate import sabotage
from tests.web import forms
from tests.web.site import visited

pytestmark = pytest.mark.slow
VARIANTS = tuple(forms.VARIANTS)
PROMPT = "The lighthouse"
TOKENS = 16


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.exported(tmp_path_factory, "web")


def test_the_readme_says_how_a_page_takes_the_folders(exported: Path) -> None:  # R10
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    memory = [artifact["figures"]["peak_rss_bytes"] for artifact in report["artifacts"] if artifact["variant"] in VARIANTS]
    assert min(memory) > 100 << 20, "the page's memory, not that of the process that asks it"
    for name in VARIANTS:
        section, (code,) = real.section(exported, name), real.blocks(exported, name, "javascript")
        assert f"@huggingface/transformers@{known.release()}" in section and f'"{name}"' in section
        assert "wasmPaths" in code and "http" not in code


@pytest.fixture(scope="module")
def site(exported: Path, toolchain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The published folders, copied to a path of their own on a web server."""
    folder = tmp_path_factory.mktemp("site")
    home = folder / "some where" / "deep"
    home.mkdir(parents=True)
    for name in VARIANTS:
        shutil.copytree(exported / name, home / name)
    (home / "node_modules").symlink_to(toolchain / "node_modules")
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_page_of_a_published_folder_writes_what_the_live_model_writes(variant: str, run: Path, site: Path) -> None:  # R10
    with visited(site) as visit:
        assert visit.open(f"some%20where/deep/{variant}/") == "Ready."
        said = visit.answer(text=PROMPT, tokens=TOKENS, chat=False)
        assert said.startswith(PROMPT) and len(said) > len(PROMPT) + 4
        if variant != "web-int4":  # four bits may choose another token
            assert said == PROMPT + real.live_text(run / "checkpoint-4", PROMPT, TOKENS)
        assert visit.answer(text="How are you?", tokens=4, chat=True), "by the chat template"
        loaded = {path.split("?")[0] for path in visit.asked}
        assert {one.rsplit("/", 1)[1] for one in loaded if "/onnx/" in one} == {f"{'model' + SUFFIX[variant]}.onnx"}
        assert not visit.errors


SUFFIX = {"web": "", "web-int8": "_quantized", "web-int4": "_q4"}


def test_a_page_without_the_packages_says_what_to_install(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported / "web-int8", tmp_path / "m")
    with visited(tmp_path) as visit:
        said = visit.open("m/")
    assert (
        "transformers.js is not at /node_modules" in said
        and f"npm install --ignore-scripts @huggingface/transformers@{known.release()}" in said
    )


@pytest.mark.parametrize(
    ("task", "words"), [("text-classification", "LABEL_0"), ("token-classification", "LABEL_"), ("fill-mask", "Paris")]
)
def test_pages_of_other_tasks_show_their_answers(task: str, words: str, toolchain: Path, tmp_path: Path) -> None:
    from tests import models

    tokens = models.make_base(tmp_path / "tokens", dtype="float32")
    if task == "fill-mask":
        for name in ("tokenizer.json", "tokenizer_config.json"):
            text = (tokens / name).read_text()
            (tokens / name).write_text(json.dumps({**json.loads(text), "mask_token": "<|end|>"}) if "config" in name else text)
    graphs = forms.onnx(make_encoder(tmp_path / "model", "Bert", task), tmp_path, tokens)
    folder, _ = forms.make("web-int8", graphs, tmp_path / "work")
    (folder.parent / "node_modules").symlink_to(toolchain / "node_modules")
    with visited(folder.parent) as visit:
        assert visit.open("staging/") == "Ready."
        said = visit.answer() if task == "fill-mask" else visit.answer(text="a b c")
    assert words in said and re.search(r"0\.\d{4}", said)


def test_a_translator_is_exported_with_a_tokenizer_that_the_page_reads(
    state: Path, toolchain: Path, marian_model: marian.Marian, tmp_path: Path
) -> None:  # R11
    folder = real.export(marian_model.adapter, state, tmp_path, ("web", "web-int8"))
    shutil.copytree(folder / "web", tmp_path / "site" / "web")
    (tmp_path / "site" / "node_modules").symlink_to(toolchain / "node_modules")
    source, target = marian.sentences(24)[0]
    with visited(tmp_path / "site") as visit:
        assert visit.open("web/") == "Ready."
        assert visit.answer(text=source, tokens=40) == " ".join(target.split()[1:]), "the adapter was taught to leave out the first word"


@pytest.mark.usefixtures("packages")
def test_damaged_weights_another_tokenizer_and_a_lost_cache_are_caught(lab: sabotage.Lab, tmp_path: Path) -> None:
    bench, folder = lab.bench(tmp_path / "scratch"), made_in(lab, "sound", ["web"], tmp_path)["web"]
    for name, damage in (("weights", weights), ("tokens", tokens), ("cache", cache), ("positions", positions)):
        copy = tmp_path / name
        shutil.copytree(folder, copy)
        damage(copy)
        assert bench.checked("web", copy).verdict == "failed", name


def weights(folder: Path) -> None:
    def change(graph: onnx.GraphProto) -> None:
        multiplied = [node.input[1] for node in graph.node if node.op_type in ("MatMul", "Gemm")][:-1]  # the last one is the head
        weight = max((weight for weight in graph.initializer if weight.name in multiplied), key=lambda weight: len(weight.raw_data))
        array = numpy_helper.to_array(weight).copy()
        array.reshape(-1)[:4096] = np.random.default_rng(0).normal(size=4096)
        weight.CopyFrom(numpy_helper.from_array(array, weight.name))

    edited(folder, change)


def tokens(folder: Path) -> None:
    text = json.loads((folder / "tokenizer.json").read_text())
    first, second, *rest = text["model"]["merges"]
    text["model"]["merges"] = [*rest, second, first][: len(rest) // 2]
    (folder / "tokenizer.json").write_text(json.dumps(text))


def cache(folder: Path) -> None:
    """The cached keys of the first layer are all the same."""
    multiplied(folder, "past_key_values.0.key", np.zeros((), np.float32))


def positions(folder: Path) -> None:
    """Positions are twice as far apart."""
    multiplied(folder, "position_ids", np.array(2))


def multiplied(folder: Path, name: str, factor: np.ndarray) -> None:
    """Let all that reads an input read its product with a number."""

    def change(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.input[:] = ["product" if read == name else read for read in node.input]
        graph.node.insert(0, onnx.helper.make_node("Mul", [name, "factor"], ["product"], name="product"))
        graph.initializer.append(numpy_helper.from_array(factor, "factor"))

    edited(folder, change)


def edited(folder: Path, change: Any) -> None:
    model = onnx.load(folder / "onnx" / "model.onnx")
    change(model.graph)
    onnx.save(model, folder / "onnx" / "model.onnx")
