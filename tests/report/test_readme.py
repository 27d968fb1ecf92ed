"""README.md of an export says what it is, and its examples run as they stand."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import FileEntry, JobFacts, Verdict
from handlers.child.progress import Reporter
from handlers.folder.examples import MARIAN, place, place_beside
from handlers.models.tasks import TASKS, Task
from handlers.pytorch.format import FORMAT as PYTORCH
from handlers.report import usage
from handlers.report.advice import headline
from handlers.report.pages import readme
from tests import models
from tests.report import facts

PROMPT = "def add(a, b):\n"
CASES = [facts.succeeded, facts.rejected_int8, facts.failed_int8, facts.failed_merge, facts.unverified, facts.withheld]


def readme_of(job: JobFacts, folder: Path) -> str:
    return readme.render(facts.report_of(job, folder))


def examples(text: str) -> dict[str, str]:
    """Heading of each artifact → its code block."""
    return dict(re.findall(r"^## (\S+)/\n.*?^```(?:python|sh)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def chats(text: str) -> dict[str, str]:
    """Heading of each artifact → the code block that asks a question; of those that have one."""
    parts = re.findall(r"^## (\S+)/\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    found = {name: re.search(r"^To ask a question.*?^```(?:python|sh)\n(.*?)^```$", part, re.MULTILINE | re.DOTALL) for name, part in parts}
    return {name: one[1] for name, one in found.items() if one}


def with_figures(job: JobFacts, figures: dict[str, dict[str, Any]]) -> JobFacts:
    """The job, with what its stages counted."""
    stages = (
        stage.model_copy(update={"result": stage.result.model_copy(update={"figures": figures[stage.name]})})
        if stage.result and stage.name in figures
        else stage
        for stage in job.stages
    )
    return job.model_copy(update={"stages": tuple(stages)})


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real export of a pico model: `pytorch`, `onnx` and `onnx-int8` made by their stages, and the README beside them."""
    from handlers.onnx.export import stage as onnx
    from handlers.onnx.quantize import int8
    from handlers.pytorch import stage

    folder = tmp_path_factory.mktemp("export")
    base = models.make_base(folder / "base", dtype="float32", num_hidden_layers=1)
    inputs, figures = {"merge": str(base)}, dict[str, dict[str, Any]]()
    for name, module in (("pytorch", stage), ("onnx", onnx), ("onnx-int8", int8)):
        context = facts.context(facts.succeeded(), folder / "work" / name)
        staging = folder / name
        staging.mkdir()
        changes = {"stage": name, "staging": str(staging), "inputs": dict(inputs), "base": str(base), "pin": str(base)}
        figures[name] = module.run(context.model_copy(update=changes), Reporter(StringIO())).figures
        inputs[name] = str(staging)
    sample = {"prompt": PROMPT, "reference": "", "text": ""}
    job = facts.made_all(*(facts.check(name, sample=sample) for name in ("pytorch", "onnx", "onnx-int8")))
    (folder / "README.md").write_text(readme_of(with_figures(job, figures), folder / "work"), encoding="utf-8")
    return folder


def run_example(export: Path, variant: str) -> str:
    return run_code(examples((export / "README.md").read_text(encoding="utf-8"))[variant], export)


def run_code(code: str, folder: Path) -> str:
    """Run an example as it stands: a shell's command, whose `python` is this one, or Python."""
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PATH": binaries}
    command = ["/bin/sh", "-c", code] if code.startswith("python ") else [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_counting_graph(folder: Path) -> None:
    """An ONNX graph with the inputs and outputs of a language model whose next token is the next position.

    It is off by as much as the mask's length differs from past and new tokens together, so that wrong positions, a wrong mask
    or a cache that is not handed on give another text.
    """
    import onnx

    source = """
        <ir_version: 9, opset_import: ["" : 18]>
        count (int64[batch, sequence] input_ids, int64[batch, total] attention_mask, int64[batch, sequence] position_ids,
               float[batch, 2, past, 4] past_key_values.0.key, float[batch, 2, past, 4] past_key_values.0.value)
            => (float[batch, sequence, 320] logits, float[batch, 2, total, 4] present.0.key, float[batch, 2, total, 4] present.0.value)
        {
            batch = Shape <start = 0, end = 1> (input_ids)
            sequence = Shape <start = 1, end = 2> (input_ids)
            past = Shape <start = 2, end = 3> (past_key_values.0.key)
            total = Shape <start = 1, end = 2> (attention_mask)
            heads = Constant <value_ints = [2]> ()
            width = Constant <value_ints = [4]> ()
            shape = Concat <axis = 0> (batch, heads, sequence, width)
            new = ConstantOfShape (shape)
            present.0.key = Concat <axis = 2> (past_key_values.0.key, new)
            present.0.value = Concat <axis = 2> (past_key_values.0.value, new)
            one = Constant <value_int = 1> ()
            vocabulary = Constant <value_int = 320> ()
            seen = Add (past, sequence)
            wrong = Sub (total, seen)
            next = Add (position_ids, one)
            shifted = Add (next, wrong)
            token = Mod (shifted, vocabulary)
            values = Constant <value_floats = [0.0, 1.0]> ()
            logits = OneHot <axis = -1> (token, vocabulary, values)
        }
    """
    for name in ("key", "value"):
        source = source.replace(f"past_key_values.0.{name}", f"past_{name}").replace(f"present.0.{name}", f"present_{name}")
    model = onnx.parser.parse_model(source)
    named = {f"past_{name}": f"past_key_values.0.{name}" for name in ("key", "value")}
    named |= {f"present_{name}": f"present.0.{name}" for name in ("key", "value")}
    for node in model.graph.node:
        node.input[:] = [named.get(name, name) for name in node.input]
        node.output[:] = [named.get(name, name) for name in node.output]
    for entry in (*model.graph.input, *model.graph.output):
        entry.name = named.get(entry.name, entry.name)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "model.onnx")


# R3.3
def test_the_onnx_example_hands_on_cache_positions_and_mask_and_stops_at_the_end_token(tmp_path: Path) -> None:
    for variant, end in (("onnx", None), ("onnx-int8", 20)):
        folder = tmp_path / variant
        folder.mkdir()
        make_counting_graph(folder)
        place("text-generation", folder)
        tokenizer = models.make_tokenizer().backend_tokenizer
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "config.json").write_text(json.dumps({"eos_token_id": end}))
        begin = tokenizer.encode(usage.PROMPT).ids
        code = examples(readme_of(plain_job(), tmp_path / "work"))[variant]
        expected = tokenizer.decode(begin + list(range(len(begin), end or len(begin) + 32)))
        assert run_code(code, tmp_path) == f"{expected}\n"


def test_the_example_in_a_folders_own_readme_runs_from_that_folder_alone_whatever_its_name_is(tmp_path: Path) -> None:
    folder = tmp_path / "deployed here"
    folder.mkdir()
    make_counting_graph(folder)
    place("text-generation", folder)
    tokenizer = models.make_tokenizer().backend_tokenizer
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text("{}")
    text = of_artifacts(plain_job(), tmp_path / "work")["onnx"]
    (code,) = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    begin = tokenizer.encode(usage.PROMPT).ids
    assert run_code(code, folder) == tokenizer.decode(begin + list(range(len(begin), len(begin) + 32))) + "\n"


def of_artifacts(job: JobFacts, folder: Path) -> dict[str, str]:
    return readme.of_artifacts(facts.report_of(job, folder))


def test_a_folders_own_readme_says_what_it_is_and_how_good(tmp_path: Path) -> None:
    found = of_artifacts(facts.succeeded(), tmp_path)
    assert list(found) == ["pytorch", "onnx", "onnx-int8"]
    text = found["onnx-int8"]
    assert "# onnx-int8, code-lora, step 60" in text and "and passed." in text
    assert "| Base | Qwen/Qwen3-0.6B |" in text and "| Checkpoint | checkpoint-60 (LORA) |" in text
    assert "| Agreement with the live model | 96.2 % |" in text and "| Speed relative to PyTorch | 4.8 × |" in text
    assert "onnx-int8/" not in text, "it may have another name where it lies"


def test_a_folders_own_readme_says_that_nothing_verified_it(tmp_path: Path) -> None:
    job = facts.unverified()
    for text in of_artifacts(job, tmp_path).values():
        assert "It was not verified: " in text and "passed" not in text


def test_what_is_not_published_gets_no_readme_and_a_format_keeps_its_own(tmp_path: Path) -> None:
    assert list(of_artifacts(facts.rejected_int8(), tmp_path / "1")) == ["pytorch", "onnx"]
    job = plain_job()
    own = FileEntry(path="README.md", size=1, sha256="0" * 64)
    stages = (
        stage.model_copy(update={"result": stage.result.model_copy(update={"files": (*stage.result.files, own)})})
        if stage.name == "onnx" and stage.result else stage
        for stage in job.stages
    )  # fmt: skip
    assert list(of_artifacts(job.model_copy(update={"stages": tuple(stages)}), tmp_path / "2")) == ["pytorch", "onnx-int8"]


def plain_job() -> JobFacts:
    """Every artifact passed, and validation gave no sample."""
    return facts.made_all(*(facts.check(name, sample=None) for name in ("pytorch", "onnx", "onnx-int8")))


# R3.3
@pytest.mark.slow
def test_the_examples_of_a_real_export_run_and_agree(export: Path) -> None:
    written = run_example(export, "pytorch")
    line = PROMPT.strip()
    assert written.startswith(line) and len(written) > len(line) + 8
    assert run_example(export, "onnx") == written
    assert run_example(export, "onnx-int8").startswith(line)


# R3.3
@pytest.mark.slow
def test_the_questions_of_a_real_export_are_answered_alike(export: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = (export / "README.md").read_text(encoding="utf-8")
    asked = chats(text)
    assert list(asked) == ["pytorch", "onnx", "onnx-int8"]
    tokenizer = AutoTokenizer.from_pretrained(export / "pytorch")
    messages = [{"role": "user", "content": usage.QUESTION}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = AutoModelForCausalLM.from_pretrained(export / "pytorch").generate(**inputs, max_new_tokens=64, do_sample=False)
    wanted = tokenizer.decode(made[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True) + "\n"
    assert run_code(asked["pytorch"], export) == run_code(asked["onnx"], export) == wanted
    assert run_code(asked["onnx-int8"], export) != ""
    assert "Needs `torch` and `transformers` (4.57 or newer)." in text


def test_a_model_with_a_chat_template_has_questions_and_another_one_has_none(tmp_path: Path) -> None:
    figures = {"pytorch": {"chat_template": True}}
    asked = chats(readme_of(with_figures(plain_job(), figures), tmp_path / "1"))
    assert list(asked) == ["pytorch", "onnx", "onnx-int8"]
    assert asked["onnx-int8"] == "python onnx-int8/example.py --chat 'How are you?' --tokens 64\n"
    compile(asked["pytorch"], "example", "exec")
    assert chats(readme_of(plain_job(), tmp_path / "2")) == {}
    assert chats(readme_of(with_figures(plain_job(), {"pytorch": {"chat_template": False}}), tmp_path / "3")) == {}


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"transformers": "4.57", "transformers_why": None}, "`transformers` (4.57 or newer)."),
        ({"transformers": "5", "transformers_why": "the layers differ"}, "`transformers` (5 or newer: the layers differ)."),
        ({"transformers": None, "transformers_why": None}, "(made and checked with transformers 5; no older one was tried)."),
        ({"transformers": 4, "transformers_why": ["<b>"]}, "(made and checked with transformers 5; no older one was tried)."),
    ],
)
def test_the_oldest_release_that_reads_the_folder_is_named(figures: dict[str, Any], words: str, tmp_path: Path) -> None:
    assert f"{words}\n" in readme_of(with_figures(plain_job(), {"pytorch": figures}), tmp_path)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_onnx_examples_need_nothing_but_onnxruntime_numpy_and_what_prepares_the_input(task: Task, tmp_path: Path) -> None:
    place(task.name, tmp_path)
    imported = set(re.findall(r"^ *(?:import|from) (\w+)", (tmp_path / "example.py").read_text(), re.MULTILINE))
    prepares = {"tokenizers"} if task.reads_text else {"transformers", "PIL"}
    assert imported - sys.stdlib_module_names == {"numpy", "onnxruntime"} | prepares
    place_beside(MARIAN, tmp_path)
    imported = set(re.findall(r"^ *(?:import|from) (\w+)", (tmp_path / "marian_tokenizer.py").read_text(), re.MULTILINE))
    assert imported - sys.stdlib_module_names == {"sentencepiece"}


def test_only_published_artifacts_have_an_example(tmp_path: Path) -> None:
    assert list(examples(readme_of(facts.succeeded(), tmp_path / "1"))) == ["pytorch", "onnx", "onnx-int8"]
    assert list(examples(readme_of(facts.rejected_int8(), tmp_path / "2"))) == ["pytorch", "onnx"]
    nothing = readme_of(facts.failed_merge(), tmp_path / "3")
    assert examples(nothing) == {} and "Nothing was published, so there is nothing to run." in nothing


# R4.5
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_verdict_failures_remedies_and_gaps_are_told(case: Any, tmp_path: Path) -> None:
    report = facts.report_of(case(), tmp_path)
    text = readme.render(report)
    prose = usage.Usage(report).prose
    for failure in report.failures:
        assert prose(failure.sentence) in text and prose(failure.remedy) in text
    for gap in report.not_verified:
        assert prose(gap.what) in text.partition("## Not verified")[2]
    assert f"\n---\n\n# code-lora, step 60\n\n{prose(headline.title_line(report))}\n\n" in text and "\n\n| | |\n| --- |" in text
    assert all(f"\n| {artifact.variant} | {artifact.verdict.value} |" in text for artifact in report.artifacts)
    assert "\n\n\n" not in text


@pytest.mark.parametrize("checked", [True, False])
def test_no_artifact_that_nobody_ran_is_said_to_have_been_checked(checked: bool, tmp_path: Path) -> None:
    report = facts.report_of(facts.succeeded(), tmp_path)
    verdict = Verdict.PASSED if checked else Verdict.UNVERIFIED
    some = report.artifacts[0].model_copy(update={"verdict": verdict})
    chosen = [variant for variant in catalog().variants.values() if variant.usage is not None]
    artifacts = tuple(some.model_copy(update={"variant": variant.name}) for variant in chosen)
    figures = {"dtype": "int8", "transformers_js": "4.0.0", "base_values": "dequantized"}
    stages = tuple(report.stages[0].model_copy(update={"name": variant.name, "figures": figures}) for variant in chosen)
    usages = usage.Usage(report.model_copy(update={"artifacts": artifacts, "stages": stages}))
    claims = {variant.name for variant in chosen if re.search(r"\b[Cc]heck (ran it|was)|was checked on", usages.text(variant.name))}
    assert claims >= {"pytorch", "onnx-genai-int4", "web-int8", "pytorch-adapter"} if checked else not claims, claims


def test_hostile_texts_stay_one_line_of_plain_text(tmp_path: Path) -> None:
    hostile = "a\n\n# Heading\n```\n<script>alert(1)</script> | [x](http://evil.example) `code` **b** https://evil.example"
    line = 'it\'s "so"; $(touch here) \\ <b>'
    check = facts.check("onnx-int8", Verdict.FAILED, sample={"prompt": f"```\n{line}\n{hostile}", "reference": "", "text": ""})
    check = check.model_copy(update={"reasons": (hostile,), "remedy": hostile})
    job = facts.made_all(
        facts.check("pytorch", sample=check.figures["sample"]), facts.check("onnx"), check, checkpoint=facts.checkpoint(run=hostile)
    )
    text = readme_of(job, tmp_path)
    prose = re.sub(r"^```(?:python|sh)\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert "<" not in prose and "](" not in prose.replace("\\](", "") and "://" not in prose
    assert "\n# Heading" not in text and text.count("```") == 8
    for code in examples(text).values():
        if code.startswith("python "):
            assert shlex.split(code)[2] == line
            continue
        compile(code, "example", "exec")
        assert ascii(line) in code


def test_a_folder_of_sentence_transformers_is_shown_as_one(tmp_path: Path) -> None:
    job = plain_job()
    assert "AutoTokenizer" in readme_of(job, tmp_path) and "SentenceTransformer" not in readme_of(job, tmp_path)
    module = FileEntry(path="modules.json", size=1, sha256="0" * 64)
    stages = [
        stage.model_copy(update={"result": stage.result.model_copy(update={"files": (*stage.result.files, module)})})
        if stage.name in ("pytorch", "onnx") and stage.result
        else stage
        for stage in job.stages
    ]
    text = readme_of(job.model_copy(update={"stages": tuple(stages)}), tmp_path)
    assert 'SentenceTransformer("pytorch", device="cpu")' in text and "AutoTokenizer" not in text
    assert 'SentenceTransformer("onnx", backend="onnx")' in text and 'SentenceTransformer("onnx-int8"' not in text
    assert examples(text)["onnx"] == "python onnx/example.py 'def main():' 'How are you?'\n"


def test_a_prompt_survives_its_way_into_the_example() -> None:
    for prompt in ("π 😀 \"'\\", "```", "a\nb", "{{ x }}"):
        assert eval(usage.literal(prompt)) == prompt  # the literal that the examples hold
        assert "`" not in usage.literal(prompt) and usage.literal(prompt).isascii()


@pytest.mark.parametrize("given", [None, "{{ 1 // 0 }}", "{% if %}", "{{ nothing.at.all }}", b"\xff"])
def test_words_of_a_format_that_are_missing_or_wrong_are_its_own_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | bytes | None
) -> None:
    words = tmp_path / "usage.md"
    if given is not None:
        words.write_bytes(given if isinstance(given, bytes) else given.encode())
    find = usage.find_variant
    changed = {"pytorch": replace(PYTORCH.variants[0], usage=words)}
    monkeypatch.setattr(usage, "find_variant", lambda name: changed.get(name) or find(name))
    text = readme_of(facts.succeeded(), tmp_path / "work")
    assert "Its format's own words can't be shown: " in text.partition("## pytorch/")[2].partition("## ")[0]
    assert "```" in text.partition("## onnx/")[2], "the others are as ever"


ASKED = {
    "question-answering": "python onnx/example.py 'How are you?' --context 'def main():'\n",
    "fill-mask": "python onnx/example.py 'def main(): [MASK]'\n",
    "text-classification": "python onnx/example.py 'def main():'\n",
    "token-classification": "python onnx/example.py 'def main():'\n",
    "feature-extraction": "python onnx/example.py 'def main():'\n",
}


@pytest.mark.parametrize("task", ASKED)
def test_the_example_of_an_encoder_is_asked_what_its_task_needs(task: str, tmp_path: Path) -> None:
    figures = {name: {"task": task} for name in ("merge", "onnx", "merged", "reference")}
    text = readme_of(with_figures(plain_job(), figures), tmp_path)
    asked = examples(text)
    assert asked["onnx"] == ASKED[task]
    compile(asked["pytorch"], "example", "exec")
    short = {"text-classification": "top_k=None", "token-classification": 'aggregation_strategy="simple"', "fill-mask": "mask_token"}
    assert short.get(task, "AutoModel") in asked["pytorch"]


# R3.3
@pytest.mark.slow
@pytest.mark.parametrize("task", ASKED)
def test_the_examples_of_an_encoder_run_as_they_stand(task: str, tmp_path: Path) -> None:
    from tests.onnx import encoder_models

    model = encoder_models.source(tmp_path / "pytorch", "Bert", task)
    encoder_models.graph_of(model, tmp_path / "onnx", task)
    figures = {name: {"task": task} for name in ("merge", "onnx", "merged", "reference")}
    asked = examples(readme_of(with_figures(plain_job(), figures), tmp_path / "job"))
    assert json.loads(run_code(asked["onnx"], tmp_path)) is not None
    assert run_code(asked["pytorch"], tmp_path)


@pytest.mark.parametrize("towers", [None, "mmproj-F16.gguf"])
def test_a_gguf_file_is_shown_with_a_picture_where_it_has_towers_and_without_one_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, towers: str | None
) -> None:
    find, gguf = usage.find_variant, usage.find_variant("gguf-f16")
    monkeypatch.setattr(usage, "find_variant", lambda name: gguf if name == "pytorch" else find(name))
    figures = {"file": "model-F16.gguf", "length": 64, **({"towers": towers} if towers else {})}
    text = readme_of(with_figures(facts.succeeded(), {"pytorch": figures}), tmp_path).partition("## pytorch/")[2].partition("\n## ")[0]
    assert "can't be shown" not in text and 'Llama("pytorch/model-F16.gguf", n_ctx=64' in text
    assert ("--mmproj pytorch/mmproj-F16.gguf" in text) == (towers is not None)
