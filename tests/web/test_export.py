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

from handlers.validate.workers.client import WorkerFailed
from handlers.web import known
from handlers.web.browser.chromium import BrowserError
from tests import marian
from tests.onnx.test_encoders import make as make_encoder
from tests.toolchains import real
from tests.validate import sabotage
from tests.validate.bench import Bench
from tests.web import forms
from tests.web.site import visited

pytestmark = pytest.mark.slow
VARIANTS = tuple(forms.VARIANTS)
PROMPT = "The lighthouse"
TOKENS = 16


@pytest.fixture(scope="module")
def exported(run: Path, state: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return real.export(run / "checkpoint-4", state, tmp_path_factory.mktemp("out"), VARIANTS)


def test_all_forms_pass_and_the_readme_says_how_a_page_takes_them(exported: Path) -> None:  # R2.4 R4.1 R10
    report: dict[str, Any] = json.loads((exported / "report.json").read_bytes())
    made = {one["variant"]: one for one in report["artifacts"] if one["variant"] in VARIANTS}
    assert {name: one["verdict"] for name, one in made.items()} == dict.fromkeys(VARIANTS, "passed")
    for one in made.values():
        assert one["figures"]["speed_over_pytorch"] > 0
        assert one["figures"]["peak_rss_bytes"] > 100 << 20, "the page's memory, not that of the process that asks it"
    sizes = [made[name]["size_bytes"] for name in VARIANTS]
    assert sizes == sorted(sizes, reverse=True)
    readme = (exported / "README.md").read_text()
    for name in VARIANTS:
        section = readme.split(f"\n## {name}/\n")[1].split("\n## ")[0]
        assert f"@huggingface/transformers@{known.release()}" in section and f'"{name}"' in section
        (code,) = re.findall(r"```javascript\n(.*?)```", section, re.S)
        assert "wasmPaths" in code and "http" not in code
    assert "not with WebGPU" in json.dumps(report) or "WebGPU" in readme


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


def live_text(run: Path) -> str:
    """What base and adapter write after the prompt, by the most likely token alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(run.parent / "base")
    base = AutoModelForCausalLM.from_pretrained(run.parent / "base", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, run / "checkpoint-4").eval()
    given = tokenizer(PROMPT, return_tensors="pt")
    with torch.inference_mode():
        made = model.generate(**given, max_new_tokens=TOKENS, do_sample=False)
    return str(tokenizer.decode(made[0], skip_special_tokens=True))


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_page_of_a_published_folder_writes_what_the_live_model_writes(variant: str, run: Path, site: Path) -> None:  # R10
    with visited(site) as visit:
        assert visit.open(f"some%20where/deep/{variant}/") == "Ready."
        said = visit.answer(text=PROMPT, tokens=TOKENS, chat=False)
        assert said.startswith(PROMPT) and len(said) > len(PROMPT) + 4
        if variant != "web-int4":  # four bits may choose another token
            assert said == live_text(run)
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


def folders(lab: sabotage.Lab, source: str, work: Path) -> dict[str, Path]:
    """Variant → its folder, made of a source of the lab."""
    graphs = {name: lab.made(source, name) for name in forms.VARIANTS.values()}
    return {variant: forms.make(variant, graphs, work / variant)[0] for variant in VARIANTS}


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("source", sabotage.SOURCES)
def test_what_was_made_of_a_wrong_model_is_caught_and_what_is_sound_passes(source: str, lab: sabotage.Lab, tmp_path: Path) -> None:  # R4.5
    bench = lab.bench(tmp_path / "scratch")
    checks = [bench.check(variant, folder) for variant, folder in folders(lab, source, tmp_path).items()]
    verdicts = [str(one.verdict) for one in checks]
    # A page of noise in one matrix changes less than eight bits may: only the graph in fp32 shows it.
    found = 1 if source == "corrupted block" else 2
    assert verdicts == ["passed"] * 3 if source == "sound" else verdicts[:found] == ["failed"] * found, [one.reasons for one in checks]


@pytest.mark.usefixtures("packages")
def test_damaged_weights_another_tokenizer_and_a_lost_cache_are_caught(lab: sabotage.Lab, tmp_path: Path) -> None:
    bench = lab.bench(tmp_path / "scratch")
    folder = folders(lab, "sound", tmp_path)["web"]
    assert not caught(bench, folder)
    for name, damage in (("weights", weights), ("tokens", tokens), ("cache", cache), ("positions", positions)):
        copy = tmp_path / name
        shutil.copytree(folder, copy)
        damage(copy)
        assert caught(bench, copy), name


def weights(folder: Path) -> None:
    def change(graph: onnx.GraphProto) -> None:
        multiplied = [node.input[1] for node in graph.node if node.op_type in ("MatMul", "Gemm")][:-1]  # the last one is the head
        one = max((one for one in graph.initializer if one.name in multiplied), key=lambda one: len(one.raw_data))
        array = numpy_helper.to_array(one).copy()
        array.reshape(-1)[:4096] = np.random.default_rng(0).normal(size=4096)
        one.CopyFrom(numpy_helper.from_array(array, one.name))

    edited(folder, change)


def tokens(folder: Path) -> None:
    text = json.loads((folder / "tokenizer.json").read_text())
    first, second, *rest = text["model"]["merges"]
    text["model"]["merges"] = [*rest, second, first][: len(rest) // 2]
    (folder / "tokenizer.json").write_text(json.dumps(text))


def cache(folder: Path) -> None:
    """The cached keys of the first layer are all the same."""

    def change(graph: onnx.GraphProto) -> None:
        name = "past_key_values.0.key"
        node = onnx.helper.make_node("Mul", [name, "nothing"], ["lost"], name="lost")
        for one in graph.node:
            for place, given in enumerate(one.input):
                if given == name:
                    one.input[place] = "lost"
        graph.node.insert(0, node)
        graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), "nothing"))

    edited(folder, change)


def positions(folder: Path) -> None:
    """Positions are twice as far apart."""

    def change(graph: onnx.GraphProto) -> None:
        for one in graph.node:
            for place, given in enumerate(one.input):
                if given == "position_ids":
                    one.input[place] = "later"
        graph.node.insert(0, onnx.helper.make_node("Mul", ["position_ids", "two"], ["later"], name="later"))
        graph.initializer.append(numpy_helper.from_array(np.array(2), "two"))

    edited(folder, change)


def edited(folder: Path, change: Any) -> None:
    model = onnx.load(folder / "onnx" / "model.onnx")
    change(model.graph)
    onnx.save(model, folder / "onnx" / "model.onnx")


def caught(bench: Bench, folder: Path) -> bool:
    """Whether the check fails, or refuses to compare what the model says."""
    try:
        return bench.check("web", folder).verdict == "failed"
    except (WorkerFailed, BrowserError):
        return True
