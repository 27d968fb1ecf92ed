"""Encoders with and without heads: sound artifacts of every task pass, and each defect is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

from daemon.contract.jobs.messages import Outcome, Verdict
from handlers.texts.rows import Text
from handlers.validate.arithmetic.comparison import Comparison, Spread
from handlers.validate.checks import scoring
from handlers.validate.checks.examination import logits_file
from handlers.validate.checks.live import samples
from handlers.validate.checks.live.texts import hidden, pieces
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.engines.task_profile import ValidatedTask, context_length, labels_of, subject_of
from handlers.validate.outside import example
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import CompareWrapper
from tests import models
from tests.sampling import some
from tests.validate import artifacts, zoo
from tests.validate.bench import Bench, Direct, measured
from tests.validate.conftest import Validate


def classify(model: Any, batch: Any) -> Any:
    """Three classes of texts, whatever they are."""
    import torch

    return model(**batch, labels=torch.arange(len(batch["input_ids"])) % 3).loss


def several(model: Any, batch: Any) -> Any:
    """Three labels that a text may have together."""
    import torch

    return model(**batch, labels=torch.tensor([[row % 2, row // 2 % 2, row // 4 % 2] for row in range(6)], dtype=torch.float)).loss


def score(model: Any, batch: Any) -> Any:
    """A number for each text."""
    import torch

    return model(**batch, labels=torch.arange(6, dtype=torch.float)[:, None] / 2).loss


def tag(model: Any, batch: Any) -> Any:
    """One of four tags for each token."""
    labels = (batch["input_ids"] % 4).masked_fill(batch["attention_mask"] == 0, -100)
    return model(**batch, labels=labels).loss


def answer(model: Any, batch: Any) -> Any:
    """A span that the tokens' numbers decide."""
    starts = 1 + batch["input_ids"][:, 1] % 4
    return model(**batch, start_positions=starts, end_positions=starts + 2).loss


def restore(model: Any, batch: Any) -> Any:
    """The token at every place."""
    return model(**batch, labels=batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)).loss


def spread(model: Any, batch: Any) -> Any:
    """Mean vectors of unlike texts apart."""
    import torch

    vectors = torch.nn.functional.normalize(model(**batch).last_hidden_state.mean(dim=1), dim=1)
    return (vectors @ vectors.T).sum()


@dataclass(frozen=True)
class Case:
    """How a model of one task is made."""

    auto: str
    loss: Callable[[Any, Any], Any]
    task_type: str | None
    outputs: tuple[str, ...] = ("logits",)
    kind: str = "bert"
    base: str = ""
    """Auto class that the base is stored as, where it is another one."""
    load: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] = field(default_factory=dict)


SEQUENCE, TOKENS = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"
SPANS = ("start_logits", "end_logits")
POOLED = {"modules_to_save": ["pooler", "classifier"]}
CASES = {
    # The base has another head: the adapter brings its own, and the live model must be built with it.
    "classes": Case(SEQUENCE, classify, "SEQ_CLS", base="AutoModelForMaskedLM", load={"num_labels": 3}, lora=POOLED),
    "labels": Case(SEQUENCE, several, "SEQ_CLS", load={"num_labels": 3, "problem_type": "multi_label_classification"}),
    "number": Case(SEQUENCE, score, "SEQ_CLS", load={"num_labels": 1}),
    "tags": Case(TOKENS, tag, "TOKEN_CLS", kind="distilbert", base="AutoModelForMaskedLM", load={"num_labels": 4}),
    "biases": Case(TOKENS, tag, "TOKEN_CLS", base="AutoModelForMaskedLM", load={"num_labels": 4}, lora={"bias": "all"}),
    "spans": Case("AutoModelForQuestionAnswering", answer, "QUESTION_ANS", SPANS, base="AutoModelForMaskedLM"),
    "masked": Case("AutoModelForMaskedLM", restore, None, kind="modernbert"),
    "vectors": Case("AutoModel", spread, "FEATURE_EXTRACTION", ("last_hidden_state",), kind="roberta"),
}
LAYERS = {"distilbert": ["q_lin", "v_lin", "lin2"], "modernbert": ["Wqkv", "Wo"]}


@dataclass(frozen=True)
class Model:
    """One encoder, from its base to its graph."""

    base: Path
    adapter: Path
    merged: Path
    onnx: Path
    bench: Bench


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    """Makes the model of a case, once. Read only."""
    made: dict[str, Model] = {}

    def one(name: str) -> Model:
        if name not in made:
            case, root = CASES[name], tmp_path_factory.mktemp(name)
            own = {} if case.base else case.load
            base = zoo.make_encoder_base(root / "base", case.base or case.auto, case.kind, **own)
            targets = LAYERS.get(case.kind, ["query", "value", "output.dense"])
            adapter = zoo.train_adapter(
                base, root / "adapter", case.auto, case.loss, load=case.load, target_modules=targets, task_type=case.task_type, **case.lora
            )
            merged = zoo.merge(base, adapter, root / "merged")
            graph = zoo.export_encoder(merged, root / "onnx", case.auto, case.outputs)
            made[name] = Model(base, adapter, merged, graph, measured(adapter, base, merged, root / "scratch"))
        return made[name]

    return one


Make = Callable[[str], Model]
TASKS = {
    "classes": "text-classification", "labels": "text-classification", "number": "text-classification", "tags": "token-classification",
    "biases": "token-classification", "spans": "question-answering", "masked": "fill-mask", "vectors": "feature-extraction",
}  # fmt: skip
NO_LEFT = {"classes", "labels", "number", "tags", "biases", "spans"}
"""Models that count positions from the left: padding there moves their texts."""


@pytest.mark.parametrize("name", some(CASES, of=3))
def test_sound_artifacts_of_every_task_pass(name: str, make: Make) -> None:  # R4.1 R4.2
    model = make(name)
    reference = model.bench.reference
    assert reference.subject.task == TASKS[name] and not reference.fallbacks
    answered = reference.adapter is not None and name != "vectors"
    assert all((one.base is not None) == answered for one in reference.samples[: samples.SHOWN]), "what the base's own head says"
    assert len(reference.warnings) == (name == "spans"), "PEFT's wrapper for question answering drops the segments"
    assert reference.sides == (["right"] if name in NO_LEFT else ["right", "left"])
    for variant, folder in (("pytorch", model.merged), ("onnx", model.onnx)):
        check = model.bench.check(variant, folder)
        assert check.verdict is Verdict.PASSED, check.reasons
        figures = check.figures
        assert figures["task"] == TASKS[name] and figures["error_max"] < 1e-3
        assert figures["agreement"] == (None if name == "number" else 1.0)
        assert (figures["kl"] is None) == (name in ("number", "vectors"))
        assert figures["greedy_identical"] is None and figures["cache_error_max_absolute"] is None
        assert set(figures["padding_errors"]) == set(reference.sides)
        assert figures["sample"]["text"] == figures["sample"]["reference"]
        assert [one["text"] for one in figures["samples"]] == [one["reference"] for one in figures["samples"]]
        assert len(figures["samples"]) == samples.SHOWN and figures["samples"][0] == figures["sample"]
    assert ("cosine_min" in figures) == (name == "vectors")


def test_each_task_counts_its_own_positions(make: Make) -> None:
    texts = make("classes").bench.reference.samples
    assert len(texts) == 12 and all(sample.keep == [0] for sample in texts), "four prompts, whole and in halves"
    for sample in make("spans").bench.reference.samples:
        starts, ends = np.load(sample.logits)
        assert sample.keep == [0, 1] and len(starts) == len(sample.ids) and not np.array_equal(starts, ends)
    for sample in make("tags").bench.reference.samples:
        assert sample.keep == list(range(1, len(sample.ids) - 1)), "all tokens but [CLS] and [SEP]"
    for sample in make("masked").bench.reference.samples:
        assert sample.keep == [place for place, token in enumerate(sample.ids) if token == 3] != []
        assert 3 not in sample.encoded
    for sample in make("vectors").bench.reference.samples:
        assert sample.keep == list(range(len(sample.ids)))


def test_question_answering_reads_pairs_of_texts(make: Make) -> None:
    sample = make("spans").bench.reference.samples[0]
    assert sample.first and sample.types is not None and set(sample.types) == {0, 1}
    model = onnx.load(make("spans").onnx / "model.onnx")
    assert "token_type_ids" in [value.name for value in model.graph.input]


def test_segments_that_training_through_peft_never_saw_are_told(make: Make, tmp_path: Path) -> None:
    import torch
    from peft import AutoPeftModelForQuestionAnswering
    from transformers import AutoTokenizer

    model = make("spans")
    (told,) = model.bench.reference.warnings
    live = AutoPeftModelForQuestionAnswering.from_pretrained(model.adapter, dtype=torch.float32).eval()
    sample = model.bench.reference.samples[0]
    inputs = AutoTokenizer.from_pretrained(model.base)(sample.first, sample.text, return_tensors="pt", return_token_type_ids=True)
    assert set(inputs["token_type_ids"].ravel().tolist()) == {0, 1}
    with torch.inference_mode():
        through, inside = live(**inputs), live.get_base_model()(**inputs)
        without = live.get_base_model()(**{**inputs, "token_type_ids": torch.zeros_like(inputs["token_type_ids"])})
    assert torch.equal(through.start_logits, without.start_logits) and not torch.allclose(through.start_logits, inside.start_logits)
    assert "does not pass segments (token_type_ids) to the model" in told and told.endswith("use token_type_ids of 0.")
    # The same adapter without its task type is wrapped by a class that hands everything on.
    adapter = artifacts.copy(model.adapter, tmp_path / "adapter")
    zoo.edit_json(adapter / "adapter_config.json", task_type=None)
    assert not measured(adapter, model.base, model.merged, tmp_path / "scratch").reference.warnings


def test_the_wrapper_of_a_classifier_hands_segments_on(make: Make) -> None:
    model = make("labels")
    live = Direct("live", EngineSpec(engine="live", folder=str(model.adapter), base=str(model.base), task="text-classification"))
    live.load()
    assert live.ask(CompareWrapper(ids=[1, 40, 41, 2, 50, 51, 2], types=[0, 0, 0, 0, 1, 1, 1])).max_absolute == 0.0
    merged = Direct("pytorch", EngineSpec(engine="torch", folder=str(model.merged), task="text-classification"))
    merged.load()
    assert merged.ask(CompareWrapper(ids=[1, 40, 2], types=[0, 0, 0])).max_absolute is None


def test_a_head_that_the_adapter_brings_makes_the_live_model_and_has_no_bare_base(make: Make) -> None:
    model = make("classes")
    assert json.loads((model.base / "config.json").read_text())["architectures"] == ["BertForMaskedLM"]
    model.bench.examine("pytorch", model.merged)
    assert model.bench.rows(model.merged).shape == (1, 3)
    assert model.bench.reference.adapter is None
    adapter = make("labels").bench.reference.adapter
    assert adapter is not None and adapter.kl is not None and adapter.kl > 0.01


@pytest.mark.parametrize("name", ["classes", "spans"])
def test_a_graph_that_ignores_its_mask_is_caught_by_a_padded_batch(name: str, make: Make, tmp_path: Path) -> None:
    folder = artifacts.copy(make(name).onnx, tmp_path / "onnx")
    artifacts.ignore_input(folder, "attention_mask", 1)
    check = make(name).bench.check("onnx", folder)
    assert check.verdict is Verdict.FAILED
    assert len(check.reasons) == 1 and "-padded batch it differs from single runs" in check.reasons[0], check.reasons
    assert "right" in check.reasons[0]


def test_a_classifiers_graph_that_ignores_segments_is_caught_though_no_prompt_has_two(make: Make, tmp_path: Path) -> None:
    folder = artifacts.copy(make("classes").onnx, tmp_path / "onnx")
    artifacts.ignore_input(folder, "token_type_ids", 0)
    check = make("classes").bench.check("onnx", folder)
    assert check.verdict is Verdict.FAILED
    assert "on a long text of" in check.reasons[0] and "from the merged PyTorch model" in check.reasons[0], check.reasons


def test_starts_and_ends_that_are_swapped_fail(make: Make, tmp_path: Path) -> None:
    folder = artifacts.copy(make("spans").onnx, tmp_path / "onnx")
    artifacts.swap_outputs(folder, *SPANS)
    check = make("spans").bench.check("onnx", folder)
    assert check.verdict is Verdict.FAILED
    assert "starts and ends of answers, its most likely place is the live model's" in check.reasons[1], check.reasons


def test_labels_with_other_names_fail_although_every_figure_is_right(make: Make, tmp_path: Path) -> None:
    folder = artifacts.copy(make("classes").onnx, tmp_path / "onnx")
    zoo.edit_json(folder / "config.json", id2label={"0": "LABEL_1", "1": "LABEL_0", "2": "LABEL_2"})
    check = make("classes").bench.check("onnx", folder)
    assert check.verdict is Verdict.FAILED and check.figures["agreement"] == 1.0
    assert check.reasons[0] == "its labels have other names than the live model's: label 0 is 'LABEL_1' instead of 'LABEL_0'"


def test_another_head_than_the_adapters_fails(make: Make, tmp_path: Path) -> None:  # R1.3
    from safetensors.torch import load_file, save_file

    model, head = make("classes"), "classifier.weight"
    folder = artifacts.copy(model.merged, tmp_path / "merged")
    weights = load_file(folder / "model.safetensors")
    weights[head] = weights[head].roll(1, 0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    check = model.bench.check("pytorch", folder)
    assert check.verdict is Verdict.FAILED, check.figures
    assert any("largest logit error" in reason for reason in check.reasons)


def test_vectors_of_another_model_fail(make: Make) -> None:
    check = make("vectors").bench.check("pytorch", make("vectors").base)
    assert check.verdict is Verdict.FAILED and check.figures["cosine_min"] < 0.99


def test_quantized_and_half_precision_graphs_pass_their_limits(make: Make, tmp_path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = make("tags")
    quantized = artifacts.quantize(model.onnx, tmp_path / "int8")
    check = model.bench.check("onnx-int8", quantized)
    assert check.verdict is Verdict.PASSED and check.figures["error_max"] > 1e-3, check.reasons
    half = artifacts.copy(model.onnx, tmp_path / "half")
    onnx.save(convert_float_to_float16(onnx.load(half / "model.onnx")), half / "model.onnx")
    check = model.bench.check("onnx-int8", half)
    assert check.verdict is Verdict.PASSED and 1e-5 < check.figures["error_max"] < 0.05, check.reasons


def test_a_graph_is_found_by_the_folders_own_list(make: Make, tmp_path: Path) -> None:
    from handlers.graphs.graphset import Graph, GraphSet

    model = make("tags")
    folder = artifacts.copy(model.onnx, tmp_path / "onnx")
    (folder / "model.onnx").rename(folder / "tagger.onnx")
    graph = Graph(role="model", file="tagger.onnx")
    GraphSet(task="token-classification", family="encoder", dtype="float32", opset=17, graphs=(graph,)).write(folder)
    assert model.bench.check("onnx", folder).verdict is Verdict.PASSED


def test_figures_follow_the_head() -> None:
    mine, theirs = np.array([[2.0, -1.0], [0.5, 3.0]]), np.array([[2.0, -1.0], [3.0, 0.5]])
    assert Comparison("choice").add(mine, theirs).summary.agreement == 0.5
    both = Comparison("labels").add(mine, theirs).summary
    assert both.agreement == 1.0 and both.kl > 0
    assert Comparison("labels").add(mine, -theirs).summary.agreement == 0.0
    number = Comparison("value").add(mine, theirs).summary
    assert number.agreement is None and number.kl is None and number.error_max_absolute == 2.5
    vectors = Comparison("vector")
    assert vectors.add(mine, mine[::-1]).summary.agreement == 0.0 and vectors.add(mine, mine * 3).summary.agreement == 1.0
    assert -1 <= (vectors.figures(1.0).cosine_min or 0) < 0.9


def test_numbers_that_are_all_alike_are_not_measured_in_their_tiny_deviation() -> None:
    seen = Spread()
    seen.add(np.array([[2.0], [2.0 + 1e-7]]))
    assert seen.unit("value") == pytest.approx(0.1) and seen.unit("choice") < 1e-6


def test_a_folder_says_what_kind_of_head_it_has(tmp_path: Path) -> None:
    def subject(**values: Any) -> ValidatedTask:
        (tmp_path / "config.json").write_text(json.dumps(values))
        return subject_of(tmp_path)

    assert subject(architectures=["BertForSequenceClassification"]).labels == ("LABEL_0", "LABEL_1")
    named = subject(architectures=["BertForSequenceClassification"], id2label={"1": "good", "0": "bad"}, problem_type="regression")
    assert (named.head, labels_of(tmp_path)) == ("value", ("bad", "good"))
    assert subject(architectures=["BertForSequenceClassification"], id2label={"0": "x"}).head == "value"
    assert subject(architectures=["Qwen3Model"]).head == "vector"
    assert subject(architectures=["NobodyKnowsIt"]) == ValidatedTask()


def test_context_lengths_follow_the_family() -> None:
    assert context_length({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}) == 512
    assert context_length({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}) == 512
    assert context_length({"model_type": "t5", "n_positions": 512}) is None
    assert context_length({"model_type": "gpt2", "n_positions": 1024}) == 1024


def test_hidden_tokens_are_few_and_never_special() -> None:
    ids = [1, *range(10, 30), 2]
    masked, places = hidden(ids, {1, 2}, 3)
    assert 3 <= len(places) <= 5 and [masked[place] for place in places] == [3] * len(places)
    assert [token for token in masked if token != 3] == [token for place, token in enumerate(ids) if place not in places]
    assert hidden([1, 9, 2], {1, 2}, 3) == ([1, 3, 2], [1])
    assert hidden([1, 2], {1, 2}, None)[0] == [1, 2]
    assert pieces(ValidatedTask("text-classification"), ["a b", "a"]) == ["a b", "a", "b"]


def test_a_classifier_and_its_artifact_are_scored_against_the_labels_of_the_data(make: Make, tmp_path: Path) -> None:  # R2.6
    model = make("classes")
    bench = measured(model.adapter, model.base, model.merged, tmp_path / "scratch", models.TEXTS)
    texts = [Text(one, label=f"label_{number % 3}" if number else "9") for number, one in enumerate(models.TEXTS)]
    live = cast(EngineWorker, Direct("live", EngineSpec(engine="live", folder=str(model.adapter), base=str(model.base))))
    bench.reference.samples = scoring.mark(live, bench.reference, texts, 8)
    scores = scoring.score(bench.reference, {}, lambda number: bench.reference.samples[number].logits)
    assert scores is not None and scores.texts == 5, "the halves have no label, nor has the text with one that the model does not know"
    assert scores.accuracy == 1.0 == scores.macro_f1, "it was trained on them"
    bench.examine("onnx", model.onnx)
    assert scoring.score(bench.reference, {}, lambda number: logits_file(bench.outputs(model.onnx), number)) == scores
    wrong = [replace(text, label=str((number + 1) % 3)) for number, text in enumerate(texts)]
    bench.reference.samples = scoring.mark(live, bench.reference, wrong, 8)
    found = scoring.score(bench.reference, {}, lambda number: bench.reference.samples[number].logits)
    assert found is not None and found.accuracy == 0


@pytest.mark.slow
def test_the_stage_validates_a_classifier_from_checkpoint_to_report(make: Make, validate: Validate, tmp_path: Path) -> None:  # R4.1
    model = make("classes")
    swapped = artifacts.copy(model.onnx, tmp_path / "swapped")
    zoo.edit_json(swapped / "config.json", id2label={"0": "LABEL_2", "1": "LABEL_1", "2": "LABEL_0"})
    inputs = {"merge": model.merged, "pytorch": model.merged, "onnx": model.onnx, "onnx-int8": swapped}
    done = validate(model.adapter, model.base, inputs, samples=2, new_tokens=8, speed_tokens=16)
    assert {result.outcome for result in done.results.values()} == {Outcome.SUCCEEDED}, done.results
    assert [check.verdict for check in done.checks.values()] == [Verdict.PASSED, Verdict.PASSED, Verdict.FAILED], done.checks
    assert done.figures["reference"]["task"] == "text-classification" and done.figures["reference"]["adapter"] is None
    assert done.checks["onnx"].figures["tokens_per_second"] > 0 and done.checks["onnx"].figures["speed_over_pytorch"] > 0


def with_example(folder: Path, target: Path, task: str) -> Path:
    """A copy of a graph's folder with the list of its graphs and its example."""
    from handlers.folder.examples import place
    from handlers.graphs.graphset import Graph, GraphSet

    made = artifacts.copy(folder, target)
    graph = Graph(role="model", file="model.onnx")
    GraphSet(task=task, family="encoder", dtype="float32", opset=17, graphs=(graph,)).write(made)
    place(task, made)
    return made


BROKEN = {
    "other outputs than the artifact gave": ("self.session.run(names, feeds)", "[0.9 * one for one in self.session.run(names, feeds)]"),
    "other token ids than the artifact's": ("encoding.ids, \"attention_mask\"", "encoding.ids[:1] + encoding.ids[:-1], \"attention_mask\""),
    "does not run: KeyError": ("encoding.attention_mask, \"token", "encoding.attention_mask, \"no_token"),
    "does not answer in JSON": ("print(json.dumps(result", "print(\"Well, \" + json.dumps(result"),
}  # fmt: skip


def sensible(name: str, told: str | None) -> bool:
    """Models without segments don't feed them, and beside a mask a part of a word may be divided otherwise than inside of the word."""
    return not (told == "does not run: KeyError" and name in ("tags", "masked", "vectors")) and not (
        told == "other token ids than the artifact's" and name == "masked"
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("spans", None), ("spans", "other outputs than the artifact gave"),
        *(pytest.param(name, told, marks=pytest.mark.slow) for name in CASES for told in (None, *BROKEN) if sensible(name, told)),
    ],
)  # fmt: skip
def test_the_example_must_read_and_give_what_the_artifact_reads_and_gives(name: str, told: str | None, make: Make, tmp_path: Path) -> None:
    model, task = make(name), TASKS[name]
    folder = with_example(model.onnx, tmp_path / "onnx", task)
    model.bench.examine("onnx", folder)
    wanted = example.Wanted(model.bench.subject, model.bench.reference.samples[0], model.bench.rows(folder), 1e-4)
    if told is not None:
        script, (whole, broken) = folder / example.NAME, BROKEN[told]
        assert whole in script.read_text()
        script.write_text(script.read_text().replace(whole, broken))
    said = example.check_encoder(folder, wanted, 1, tmp_path)
    assert said is None if told is None else said is not None and told in said


def test_the_first_sample_of_a_masked_model_can_be_written_as_a_text(make: Make, tmp_path: Path) -> None:
    model = make("masked")
    sample = model.bench.reference.samples[0]
    text = example._masked(model.onnx, sample)
    assert text.count("[MASK]") == len(sample.keep) and text.replace("[MASK]", "").strip()


def test_labels_are_compared_at_their_thresholds_and_these_must_be_the_live_models(make: Make, tmp_path: Path) -> None:
    model = make("labels")
    merged = artifacts.copy(model.merged, tmp_path / "merged")
    zoo.edit_json(merged / "config.json", thresholds={"LABEL_1": 0.9})
    assert subject_of(merged).thresholds == (0.5, 0.9, 0.5) and subject_of(model.merged).thresholds is None
    bench = measured(model.adapter, model.base, merged, tmp_path / "scratch")
    assert bench.check("pytorch", merged).verdict is Verdict.PASSED
    check = bench.check("onnx", model.onnx)
    assert check.verdict is Verdict.FAILED
    assert check.reasons[0] == "its labels have other thresholds than the live model's: label 1 has 0.5 instead of 0.9"
    mine, theirs = np.array([[1.0, 1.0]]), np.array([[1.0, 3.0]])
    assert Comparison("labels").add(mine, theirs).summary.agreement == 1.0
    assert Comparison("labels", (0.5, 0.9)).add(mine, theirs).summary.agreement == 0.0


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"threshold": 0.3}, (0.3, 0.3)),
        ({"thresholds": [0.2]}, (0.2, 0.5)),
        ({"thresholds": {"1": 0.7}}, (0.5, 0.7)),
        ({"thresholds": {"b": 0.7, "a": "high"}}, (0.5, 0.7)),
        ({}, None),
    ],
)
def test_thresholds_are_read_as_the_example_reads_them(tmp_path: Path, said: dict[str, Any], wanted: tuple[float, ...] | None) -> None:
    config = {"architectures": ["BertForSequenceClassification"], "problem_type": "multi_label_classification", **said}
    (tmp_path / "config.json").write_text(json.dumps({**config, "id2label": {"0": "a", "1": "b"}}))
    assert subject_of(tmp_path).thresholds == wanted


def test_what_an_adapters_labels_mean_comes_from_the_configuration_beside_it(make: Make, tmp_path: Path) -> None:
    model = make("classes")
    names = {"0": "bad", "1": "so-so", "2": "good"}

    def merged(name: str, **values: Any) -> Any:
        adapter = artifacts.copy(model.adapter, tmp_path / f"{name}-adapter")
        (adapter / "config.json").write_text(json.dumps(values))
        folder = zoo.merge(model.base, adapter, tmp_path / name)
        return json.loads((folder / "config.json").read_text())

    said = merged("named", id2label=names, label2id={}, problem_type="multi_label_classification", thresholds=[0.1, 0.2, 0.3], vocab_size=7)
    assert said["id2label"] == names and said["label2id"] == {"bad": 0, "so-so": 1, "good": 2}
    assert said["problem_type"] == "multi_label_classification" and said["thresholds"] == [0.1, 0.2, 0.3] and said["vocab_size"] == 320
    for number, other in enumerate(({"0": "a", "1": "b"}, {"0": "a", "1": "a", "2": "b"}, {"x": "a", "1": "b", "2": "c"})):
        assert merged(f"other-{number}", id2label=other, problem_type="regression").get("problem_type") is None
