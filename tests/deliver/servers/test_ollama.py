"""A running Ollama gets models under names by content, is asked, and its alias stands for what answered rightly alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.servers.ollama.vocabulary import Vocabulary
from tests.deliver import exports
from tests.deliver.contract import bench as contract
from tests.deliver.servers.ollama_stub import Ollama
from tests.deliver.sites.ollama import ADAPTER, MERGED, SITE


class Bench(contract.Bench):
    """Of an Ollama."""

    site: SITE

    @property
    def ollama(self) -> Ollama:
        return self.site.ollama

    def names(self) -> set[str]:
        return {name.removesuffix(":latest") for name in self.ollama.models}


def talking(export: exports.Export) -> exports.Export:
    """An export with a conversation: text that its template leaves as it is."""
    answers = json.loads((export.folder / "report.json").read_text())["answers"]
    conversation = {"messages": [{"role": "user", "content": " the cat"}], "ids": [1, 3, 4]}
    exports.report(export, answers={**answers, "conversations": [conversation]})
    return export


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (folder := tmp_path / "far end").mkdir()
    with SITE(folder) as site:
        yield Bench(site, tmp_path)


def test_a_model_is_made_asked_and_followed(bench: Bench) -> None:
    receipt = bench.deliver(bench.export()).receipt
    model = bench.ollama.models[f"{receipt.version}:latest"]
    assert model.parameters == {"num_ctx": 4096, "stop": ["</s>"]} and model.template == "{{ range .Messages }}{{ .Content }}{{ end }}"
    assert receipt.moved and receipt.usage == "ollama run run-a" and receipt.figures["share"] == pytest.approx(1)
    assert receipt.figures["positions"] == 4
    second = bench.deliver(bench.export(200)).receipt
    assert bench.site.current("run-a") == second.version and bench.names() == {"run-a", receipt.version, second.version}


@pytest.mark.parametrize(
    ("fault", "word"), [("base", "as the base does"), ("twice", "2.00"), ("template", "chat template"), ("old", "unsupported")]
)
def test_what_is_wrong_is_taken_back_and_the_old_stays(bench: Bench, fault: str, word: str) -> None:
    old = bench.deliver(bench.export()).receipt
    bench.ollama.fault = fault
    end = bench.deliver(bench.export(200)).end
    assert end.permanent and end.fault and word in end.fault.sentence(), end
    assert bench.names() == {"run-a", old.version} and bench.site.current("run-a") == old.version


def test_an_alias_that_goes_on_with_what_it_had_is_caught(bench: Bench) -> None:
    old = bench.deliver(bench.export()).receipt
    bench.ollama.fault = "stale"
    end = bench.deliver(bench.export(201)).end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_ANSWERS and "older version" in end.fault.sentence()
    assert bench.site.current("run-a") == old.version


def test_an_ollama_without_log_probabilities_is_judged_by_its_choice(bench: Bench) -> None:
    bench.ollama.fault = "mute"
    figures = bench.deliver(bench.export()).receipt.figures
    assert figures["agreement"] == 1 and figures["share"] is None and "applied twice" in figures["not_told"]
    bench.ollama.fault = "mute base"
    assert bench.deliver(bench.export(202)).end.permanent


def test_conversations_are_written_by_the_models_own_template_or_the_model_is_taken_back(bench: Bench) -> None:
    old = bench.deliver(talking(bench.export())).receipt
    assert old.figures["conversations"] == 1 and "not_told" not in old.figures
    for fault in ("rewrites", "mute rewrites"):
        bench.ollama.fault = fault
        end = bench.deliver(talking(bench.export(200))).end
        assert end.permanent and end.fault and "chat template" in end.fault.sentence(), fault
        assert bench.names() == {"run-a", old.version} and bench.site.current("run-a") == old.version
    bench.site.more = {"chat": False}  # type: ignore[misc]
    assert bench.deliver(talking(bench.export(200))).receipt.figures["conversations"] == 0


def test_a_version_that_is_served_stays_when_it_can_not_be_asked_any_more(bench: Bench) -> None:
    export = bench.export()
    served = bench.deliver(export).receipt
    for fault in ("base", "old key"):
        bench.ollama.fault, bench.ollama.key = fault, "another" if fault == "old key" else bench.site.secret
        assert bench.deliver(export).end.permanent
        assert bench.names() == {"run-a", served.version} and bench.site.current("run-a") == served.version


def test_files_that_were_lost_before_the_model_was_made_are_sent_again(bench: Bench) -> None:
    bench.ollama.fault, export = "lost", bench.export()
    end = bench.deliver(export).end
    assert end.fault and not end.permanent and not bench.names()
    bench.ollama.fault = ""
    assert bench.deliver(export).receipt.moved


def test_an_adapter_is_laid_over_the_base_that_is_there(bench: Bench) -> None:
    end = bench.deliver(bench.export(files=ADAPTER)).end
    assert end.permanent and end.fault and "`base`" in end.fault.sentence()
    bench.site.more = {"base": "llama:1b"}  # type: ignore[misc]
    bench.ollama.models["llama:1b"] = bench.site._person()
    receipt = bench.deliver(bench.export(files=ADAPTER)).receipt
    model = bench.ollama.models[f"{receipt.version}:latest"]
    assert model.files == ("f" * 64,) and len(model.adapters) == 1 and receipt.moved
    assert [row.version for row in bench.listed("run-a")] == [receipt.version]


def test_a_name_that_was_given_to_something_else_is_no_version(bench: Bench) -> None:
    export = bench.export()
    receipt = bench.deliver(export).receipt
    bench.ollama.models[f"{receipt.version}:latest"] = bench.site._person()
    end = bench.deliver(export).end
    assert end.permanent and end.fault and end.fault.code == FaultCode.DELIVERY_CONFLICT and bench.listed("run-a") == []
    bench.remove(receipt.version)
    assert receipt.version in bench.names()


def test_a_persons_model_under_the_alias_stays_but_by_force(bench: Bench) -> None:
    bench.ollama.models["run-a:latest"] = bench.site._person()
    bench.ollama.steps["f" * 64] = 7
    export = bench.export()
    receipt = bench.deliver(export).receipt
    assert not receipt.moved and "did not bring" in receipt.why_not_moved
    assert bench.deliver(export, move="force").receipt.moved and bench.site.current("run-a") == receipt.version


def test_an_export_without_answers_is_said(bench: Bench, tmp_path: Path) -> None:
    export = exports.make(tmp_path / "bare", files=MERGED)
    end = bench.deliver(export).end
    assert end.permanent and end.fault and "no answers" in end.fault.sentence() and not bench.names()


def test_tokens_are_read_as_texts_and_back() -> None:
    gpt = Vocabulary(
        {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["Ġa", "Ã", "¤", "<x>"], "tokenizer.ggml.token_type": [1, 1, 1, 3]}
    )
    assert gpt.text([0, 1, 2, 3]) == " aä<x>" and gpt.text([1]) is None and gpt.text([9]) is None and gpt.id(b"\xc3") == 1
    llama = Vocabulary({
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<s>", "\u2581a", "<0xC3>", "<0xA4>"],
        "tokenizer.ggml.token_type": [3, 1, 6, 6],
        "tokenizer.ggml.bos_token_id": 0,
    })  # fmt: skip
    assert llama.text([0, 1, 2, 3]) == "aä" and llama.id(b" a") == 1
    with pytest.raises(ValueError, match="bert"):
        Vocabulary({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a"]})
