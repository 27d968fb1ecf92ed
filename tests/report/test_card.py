"""README.md of an export is a model card that huggingface_hub itself reads, for each family and layout, and names no folder of this box."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from daemon.contract.disk.files import FileEntry
from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import Addition, JobFacts
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from handlers.models.hub import License, license_of
from handlers.report import usage
from handlers.report.pages import readme
from tests.report import facts
from tests.report.facts import report_of

LOCAL = re.compile(r"(?<![\w.…~])/(?:models|runs|exports|var|home|mnt|tmp|root)\b")


def card_of(job: JobFacts, folder: Path) -> tuple[ModelCard, str]:
    """The card as the hub's own library reads it, from a file as it would; and its text."""
    text = readme.render(report_of(job, folder))
    (folder / "README.md").write_text(text, encoding="utf-8")
    return ModelCard.load(folder / "README.md"), text


def exported(*variants: str, task: str | None = "text-generation", extra: str = "", **changes: Any) -> JobFacts:
    """An export of these variants, all passed; `extra` is one more file in each."""
    stages = [facts.done("merge", 0, 5, figures={**facts.MERGE, "task": task})]
    for place, variant in enumerate(variants):
        stage = facts.done(variant, 5 + place, 1, sizes=(1000, 200, 30))
        if extra and stage.result:
            more = (*stage.result.files, FileEntry(path=extra, size=1, sha256="0" * 64))
            stage = stage.model_copy(update={"result": stage.result.model_copy(update={"files": more})})
        check = "merged" if variant == "pytorch" else f"check-{variant}"
        stages += [stage, facts.done(check, 20 + place, 1, checks=(facts.check(variant),))]
    work = Work(export=ExportOptions(variants=variants), validation=ValidateOptions())
    return facts.job(*stages, **{"work": work, **changes})


ALL = ("pytorch", "onnx", "onnx-int8")


def test_the_readme_of_each_folder_is_a_card_of_that_artifact_alone(tmp_path: Path) -> None:
    found = readme.of_artifacts(report_of(exported(*ALL), tmp_path))
    libraries = dict(zip(ALL, ("transformers", "onnx", "onnx"), strict=True))
    for variant, text in found.items():
        (tmp_path / "README.md").write_text(text, encoding="utf-8")
        data = ModelCard.load(tmp_path / "README.md").data
        assert (data.library_name, data.pipeline_tag, data.base_model) == (libraries[variant], "text-generation", "Qwen/Qwen3-0.6B")
        assert {one.metric_name.partition(":")[0] for one in data.eval_results} == {variant}
        assert not LOCAL.search(text)
    assert list(found) == list(ALL)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (exported(*ALL), {"library_name": "transformers", "pipeline_tag": "text-generation", "base_model_relation": "finetune"}),
        (
            exported(*ALL, task="text-classification"),
            {"library_name": "transformers", "pipeline_tag": "text-classification", "base_model_relation": "finetune"},
        ),
        (
            exported("onnx", "onnx-int8", task="text2text-generation"),
            {"library_name": "onnx", "pipeline_tag": "text2text-generation", "base_model_relation": "finetune"},
        ),
        (
            exported("pytorch", "onnx", task="feature-extraction", extra="modules.json"),
            {"library_name": "sentence-transformers", "pipeline_tag": "sentence-similarity", "base_model_relation": "finetune"},
        ),
        (exported("pytorch-adapter"), {"library_name": "peft", "pipeline_tag": "text-generation", "base_model_relation": "adapter"}),
        (exported("onnx-genai-int4"), {"library_name": "onnxruntime-genai", "pipeline_tag": "text-generation"}),
    ],
    ids=["causal", "classifier", "seq2seq", "sentences", "adapter", "genai"],
)
def test_each_family_and_layout_has_a_card_that_the_hub_reads(job: JobFacts, expected: dict[str, str], tmp_path: Path) -> None:
    found, text = card_of(job, tmp_path)
    data = found.data.to_dict()
    assert expected.items() <= data.items() and data["base_model"] == "Qwen/Qwen3-0.6B"
    assert "ckptd" in data["tags"] and "lora" in data["tags"]
    assert found.data.eval_results and found.data.model_name == "code-lora", "huggingface_hub took the results apart"
    assert {result.metric_type for result in found.data.eval_results} == {"agreement", "kl"}
    assert ModelCard(str(found)).data.to_dict() == data, "what the library writes again is the same card"
    assert not LOCAL.search(text)
    assert re.search(r"^pip install \S+==\d", text, re.MULTILINE)


@pytest.mark.parametrize("case", [facts.succeeded, facts.rejected_int8, facts.failed_merge, facts.unverified, facts.withheld])
def test_whatever_became_of_an_export_its_card_is_valid_and_claims_no_figure_of_what_did_not_pass(case: Any, tmp_path: Path) -> None:
    found, text = card_of(case(), tmp_path)
    named = " ".join(str(result.metric_name) for result in found.data.eval_results or [])
    report = report_of(case(), tmp_path / "again")
    assert all(artifact.verdict.value == "passed" for artifact in report.artifacts if artifact.variant in named.split())
    assert not LOCAL.search(text)


def test_a_full_fine_tune_names_no_base_and_no_relation(tmp_path: Path) -> None:
    full = facts.checkpoint(method="full", base_name=None)
    found, text = card_of(exported("pytorch", checkpoint=full, base=None), tmp_path)
    assert not {"base_model", "base_model_relation"} & found.data.to_dict().keys() and found.data.tags == ["ckptd", "transformers"]
    assert "| Base | none: a full fine-tune |" in text


@pytest.mark.parametrize("named", ["/models/my base", "./base", "~/base", "../x/y", "a/b/c"])
def test_a_base_that_is_a_folder_of_this_box_is_not_named_as_a_repository(named: str, tmp_path: Path) -> None:
    job = exported("pytorch", checkpoint=facts.checkpoint(base_name=named), base="/models/my base")
    found, text = card_of(job, tmp_path)
    assert found.data.base_model is None and "/models" not in text


@pytest.mark.parametrize(
    ("folder", "config", "card", "expected"),
    [
        ("Qwen3-0.6B", {"_name_or_path": "Qwen/Qwen3-0.6B"}, "", "Qwen/Qwen3-0.6B"),
        ("qwen3-0.6b", {}, "base_model: Qwen/Qwen3-0.6B\n", "Qwen/Qwen3-0.6B"),
        ("Qwen3-0.6B", {"_name_or_path": "/tmp/x"}, "base_model:\n- a/b\n- Qwen/Qwen3-0.6B\n", "Qwen/Qwen3-0.6B"),
        ("zephyr", {"_name_or_path": "mistralai/Mistral-7B"}, "base_model: mistralai/Mistral-7B\n", None),
        ("b", {"_name_or_path": "../b"}, "base_model: {a: b}\n", None),
    ],
)
def test_a_base_in_a_folder_is_named_where_it_states_its_name_itself(
    folder: str, config: dict[str, str], card: str, expected: str | None, tmp_path: Path
) -> None:
    """What it was made of itself is another model: that it is called otherwise than its folder."""
    place = tmp_path / folder
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (place / "README.md").write_text(f"---\nlicense: apache-2.0\n{card}---\n", encoding="utf-8")
    job = exported("pytorch", checkpoint=facts.checkpoint(base_name=str(place)), base=str(place))
    card_read, text = card_of(job, tmp_path / "work")
    assert (card_read.data.base_model, card_read.data.license) == (expected, "apache-2.0")
    assert f"| Base | {expected} |" in text or (expected is None and f"| Base | {folder}, a folder of the machine" in text)


def test_no_path_of_this_box_is_left_whatever_failed(tmp_path: Path) -> None:
    root = "/home/me/my runs"
    fault = Fault(
        code="no-space", operation="write", path=f"{root}/x y/m.onnx", cause=f"{root}/x y is full, as is /mnt/data/out",
        remedy="make room below /mnt/data/out or set output.directory in /home/me/.config/ckptd/config.toml",
    )  # fmt: skip
    added = Addition(name="other", path="/home/me/my adapters/other", weight=0.5, digest="ab" * 32)
    reference = facts.checkpoint(root=root, path=f"{root}/code-lora/checkpoint-60", base_name=None, additions=(added,))
    job = facts.made_all(facts.check("pytorch"), checkpoint=reference, base="/home/me/models/some base")
    job = job.model_copy(update={"stages": tuple(facts.lost("onnx", fault) if stage.name == "onnx" else stage for stage in job.stages)})
    _, text = card_of(job, tmp_path)
    assert "/home" not in text and "/mnt" not in text and "/var" not in text
    assert "checkpoint-60" in text and "some base" in text and "…/out" in text and "…/config.toml" in text


TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)
PLACES = st.lists(st.sampled_from([".", "..", "/", "~", "a", "--", " ", "models--a--b", "snapshots"]), max_size=4).map("".join)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example(run="run", base=".", method="LORA", license_="mit", task="text-generation")
@given(run=TEXTS, base=TEXTS | PLACES, method=TEXTS, license_=TEXTS, task=TEXTS)
def test_no_name_breaks_the_metadata_out_of_its_block(run: str, base: str, method: str, license_: str, task: str, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    folder.mkdir(exist_ok=True)
    (folder / "README.md").write_text(f"---\nlicense: {license_}\n---\n", encoding="utf-8")
    job = exported("pytorch", task=task, checkpoint=facts.checkpoint(run=run, base_name=base, method=method), base=str(folder))
    report = report_of(job, tmp_path)
    found = ModelCard(readme.render(report))
    keys = {"base_model", "base_model_relation", "library_name", "pipeline_tag", "license", "license_name", "license_link", "tags"}
    assert found.data.to_dict().keys() <= keys | {"model-index"} and found.data.library_name == "transformers"
    if found.data.base_model is not None:
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(found.data.base_model)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\nlicense: apache-2.0\nlanguage: en\n---\n# x", License("apache-2.0")),
        ("---\r\nlicense: MIT\r\n---\r\n", License("mit")),
        ("---\nlicense: [mit, apache-2.0]\n---\n", License("mit")),
        (
            "---\nlicense: other\nlicense_name: qwen\nlicense_link: LICENSE\n---\n",
            License("other", "qwen", "https://huggingface.co/Qwen/Qwen3-0.6B/blob/main/LICENSE"),
        ),
        ("---\nlicense: other\nlicense_link: https://a.example/l\n---\n", License("other", None, "https://a.example/l")),
        ("---\nlicense: other\nlicense_link: /etc/passwd\n---\n", License("other")),
        ("# no metadata\nlicense: mit\n", None),
        ("---\nlicense: mit\n", None),
        ("---\nlicense: {a: b}\n---\n", None),
        ("---\nlicense: !!python/object/apply:os.getcwd []\n---\n", None),
        ("---\n: [\n---\n", None),
        ("---\n" + "a: &a [x]\n" + "".join(f"b{n}: &b{n} [*a, *a, *a, *a]\n" for n in range(9)) + "license: mit\n---\n", License("mit")),
        ("---\n" + "[" * 5000 + "\n---\n", None),
        ("---\n" + "# filler\n" * 20_000 + "license: mit\n---\n", None),
    ],
)
def test_the_license_is_the_one_that_the_base_names(text: str, expected: License | None, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(text.encode())
    assert license_of(tmp_path, "Qwen/Qwen3-0.6B") == expected


def test_a_license_in_the_configuration_counts_where_no_card_names_one(tmp_path: Path) -> None:
    import os

    assert license_of(tmp_path / "missing", None) is None
    (tmp_path / "config.json").write_text('{"license": "gemma"}')
    os.mkfifo(tmp_path / "README.md")
    assert license_of(tmp_path, None) == License("gemma")
    found, text = card_of(exported("pytorch", base=str(tmp_path)), tmp_path / "work")
    assert found.data.license == "gemma" and "| License of the base | gemma |" in text


def test_a_list_of_requirements_has_the_versions_that_took_part_without_local_parts(tmp_path: Path) -> None:
    report = report_of(facts.succeeded(), tmp_path)
    report = report.model_copy(update={"versions": {"torch": "2.13.0+cpu", "numpy": "1 and 2", "sentencepiece": "1;rm", "onnx": "1.0"}})
    told = usage.Usage(report).requirements("torch", "sentencepiece", "onnx", "no-such-distribution")
    assert told == "torch==2.13.0 sentencepiece onnx==1.0 no-such-distribution"
    assert re.fullmatch(r"numpy==[\d.]+", usage.Usage(report).requirements("numpy")), "two took part: the installed one"


def test_values_that_are_not_known_are_left_out() -> None:
    assert readme.front_matter({"a": None, "b": "", "c": [], "d": "x: y", "e": 0}) == "---\nd: 'x: y'\ne: 0\n---\n"


def test_a_base_that_the_merge_could_not_read_is_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lie on a disk that does not answer: the report of that has to be written all the same."""
    opened: list[Path] = []
    monkeypatch.setattr("handlers.models.hub.license_of", lambda folder, repository: opened.append(folder))
    assert report_of(facts.failed_merge(), tmp_path / "1").base.license is None and opened == []
    report_of(facts.succeeded(), tmp_path / "2")
    assert opened == [Path("/models/Qwen3-0.6B")]
