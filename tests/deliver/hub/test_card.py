"""The model card: metadata that the Hub's own client takes, the verdict, and what people wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from handlers.deliver.hub import card
from tests.deliver.contract.bench import Bench
from tests.deliver.hub.far_end.stock import stock
from tests.deliver.hub.far_end.store import small
from tests.deliver.sites.hub import SITE

LOAD = """
from huggingface_hub import ModelCard
card = ModelCard.load(given["repo"])
card.validate()
say([card.data.to_dict(), card.text])
"""
REPORT = {
    "task": "causal-lm", "base": {"id": "Qwen/Qwen3-0.6B"},
    "artifacts": [{"variant": "pytorch", "verdict": "passed", "figures": {"kl": 0.0125, "agreement": 0.99}}],
}  # fmt: skip


def _loaded(bench: Bench, site: SITE, home: Path) -> Any:
    return stock(site.service.url, home, LOAD, repo="me/run-a")


def test_its_metadata_are_valid_and_say_what_was_asked_for(bench: Bench, site: SITE, tmp_path: Path) -> None:
    site.more = {"license": "apache-2.0", "tags": ["finance", "yes", "a: b #c"]}
    receipt = bench.deliver(bench.export(onnx="failed"), move="force").receipt
    data, text = _loaded(bench, site, tmp_path / "home")
    assert data["license"] == "apache-2.0" and data["library_name"] == "transformers"
    assert data["tags"] == ["ckptd", "finance", "yes", "a: b #c"]
    assert "| `pytorch` | passed |" in text and "| `onnx` | failed |" in text and receipt.version in text and "step 100" in text.lower()


def test_what_a_person_writes_stays_over_versions(bench: Bench, site: SITE, tmp_path: Path) -> None:
    bench.deliver(bench.export())
    repo = site.service.store.repo("me/run-a")
    data = site.service.store.contents(repo.at("main").files["README.md"]).decode()
    mine = data.replace("---\n", "---\nlicense: mit\nlanguage: [de]\n", 1) + "\n# Grüße\r\nmine\n"
    files = {**repo.at("main").files, "README.md": small(mine.encode())}
    repo.branches["main"] = repo.add(repo.branches["main"], files, "mine", "").id
    site.more = {"license": "apache-2.0"}
    receipt = bench.deliver(bench.export(200)).receipt
    assert receipt.moved
    data, text = _loaded(bench, site, tmp_path / "home")
    assert data["license"] == "mit" and data["language"] == ["de"], "a key that a person wrote is theirs"
    assert "# Grüße" in text and receipt.version in text and "-100-" not in text


def test_figures_of_the_report_are_results_by_the_clients_own_parser(site: SITE, tmp_path: Path) -> None:
    values = card.metadata(REPORT, "mit", (), "transformers", "run-a-100-00000000")
    text = card.written("", values, card.section("What this is", ["a"], [("pytorch", "/", "x")], {"pytorch": "passed"}))
    said = stock(site.service.url, tmp_path / "home", """
from huggingface_hub import ModelCard
card = ModelCard(given["text"])
card.validate()
results = [(row.metric_type, row.metric_value) for row in card.data.eval_results]
say([card.data.base_model, card.data.pipeline_tag, card.data.model_name, results])
""", text=text)  # fmt: skip
    assert said == ["Qwen/Qwen3-0.6B", "text-generation", "run-a-100-00000000", [["kl", 0.0125], ["agreement", 0.99]]]


def test_a_base_that_is_a_folder_here_is_not_named() -> None:
    for base in ("/data/models/base", "../base", "a/b/c", "base model/x"):
        assert "base_model" not in card.metadata({"base": {"id": base}}, "", (), "transformers", "v")


def test_a_run_with_a_hostile_name_makes_a_valid_card(bench: Bench, site: SITE, tmp_path: Path) -> None:
    run = "a|b`\n---\nlicense: evil\n<!-- ckptd writes to here --> ${x}"
    receipt = bench.deliver(bench.export(run=run)).receipt
    repo = site.repo(run)
    assert receipt.moved and repo is not None
    data, text = stock(site.service.url, tmp_path / "home", LOAD, repo=repo.name)
    assert "license" not in data
    again = bench.deliver(bench.export(200, run=run)).receipt
    data, text = stock(site.service.url, tmp_path / "home2", LOAD, repo=repo.name)
    assert again.moved and text.count("## What this is") == 1 and "license" not in data
