"""What models say against labels and references of the data: the same scores for base, live model and artifact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from daemon.contract.jobs.messages import Outcome
from handlers.validate.checks.scoring import label_number, of_labels, of_texts
from handlers.validate.record import read_reference
from tests.validate.conftest import StartStage, Validate
from tests.validate.test_texts import conversations


def test_accuracy_and_f1_are_those_of_the_definition() -> None:
    scores = of_labels([0, 0, 1, 2], [0, 1, 1, 1])
    assert (scores.texts, scores.accuracy) == (4, 0.5)
    assert scores.macro_f1 == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)
    assert of_labels([1, 1], [1, 1]).macro_f1 == 1 and of_labels([0], [1]).macro_f1 == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_scores_of_labels_are_shares_and_one_for_what_is_all_right(pairs: list[tuple[int, int]]) -> None:
    said, wanted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    scores = of_labels(said, wanted)
    assert scores.accuracy is not None and scores.macro_f1 is not None
    assert 0 <= scores.accuracy <= 1 and 0 <= scores.macro_f1 <= 1
    assert (scores.macro_f1 == 1) == (scores.accuracy == 1) == (said == wanted)


def test_texts_are_scored_as_sacrebleu_scores_them() -> None:
    said, wanted = ["the cat sat on the mat", "a  dog"], ["the cat sat on a mat", "a dog"]
    scores = of_texts(said, wanted)
    assert scores.exact_match == 0.5, "spaces apart"
    assert scores.chrf == pytest.approx(sacrebleu.corpus_chrf(["the cat sat on the mat", "a dog"], [wanted]).score, abs=1e-3)
    assert scores.bleu == pytest.approx(sacrebleu.corpus_bleu(["the cat sat on the mat", "a dog"], [wanted]).score, abs=1e-3)
    chinese = of_texts(["今天下午两点开会讨论报告"], ["今天下午三点开会讨论报告"])
    assert chinese.bleu is not None and chinese.bleu > 30, "characters count where there are no spaces"
    assert of_texts([""], ["x"]).exact_match == 0 and of_texts(["x"], ["x"]).exact_match == 1


@pytest.mark.parametrize(
    ("label", "number"),
    [("POSITIVE", 1), ("positive ", 1), ("0", 0), ("7", None), ("other", None), (None, None), ("²", None)],
)
def test_a_label_is_known_by_its_name_or_its_number(label: str | None, number: int | None) -> None:
    assert label_number(label, ("negative", "positive")) == number
    assert label_number(label, None) is None


@pytest.mark.slow
def test_a_chat_models_answers_are_scored_and_their_tokens_compared_apart(
    validate: Validate, folders: dict[str, Path], pico_base: Path, pico_checkpoint: Path, tmp_path: Path
) -> None:  # R2.6
    data = conversations(tmp_path / "data")
    inputs = {"merge": folders["pytorch"], "onnx": folders["onnx"]}
    done = validate(pico_checkpoint, pico_base, inputs, data=str(data), samples=4, new_tokens=6, speed_tokens=0)
    assert {name: one.outcome for name, one in done.results.items()} == dict.fromkeys(done.results, Outcome.SUCCEEDED), [
        one.fault for one in done.results.values()
    ]
    live = done.figures["reference"]
    assert live["scores"]["texts"] == live["base_scores"]["texts"] == 4 and live["scores"]["chrf"] is not None
    figures = done.checks["onnx"].figures
    assert figures["scores"] == live["scores"], "an exact artifact says the same"
    assert figures["completion"]["agreement"] > 0.95 and 0 < figures["completion"]["positions"] < figures["positions"]
    reference = read_reference(done.folders["reference"])
    sample = reference.samples[0]
    assert sample.completion and sample.answer and sample.answer.startswith("print(na")
    assert max(sample.completion) < len(np.load(sample.logits)) and len(sample.completion) < len(sample.keep)
    tokenizer = json.loads((folders["pytorch"] / "tokenizer.json").read_text())
    pieces = {number: piece for piece, number in tokenizer["model"]["vocab"].items()}
    marked = "".join(pieces.get(sample.ids[sample.keep[row] + 1], "<|end|>") for row in sample.completion)
    assert marked.startswith("<|assistant|>print(name,") and marked.endswith("<|end|>") and "user" not in marked
    # People see what each model answers to the question, not what it goes on with after the data's answer.
    shown = done.results["reference"].figures["samples"]
    for number, (one, mine) in enumerate(zip(shown, figures["samples"], strict=True)):
        asked = reference.samples[number]
        assert one["prompt"] == mine["prompt"] == asked.asked and str(asked.answer) not in str(one["prompt"])
        assert one["text"] == mine["reference"] == mine["text"] and asked.question in one["prompt"] and mine["question"] == asked.question
        assert asked.said is not None and len(asked.said) <= asked.steps
    assert figures["greedy_identical"] == figures["greedy_prompts"] == 4
    assert figures["greedy_same"] == [len(one.said or []) for one in reference.samples]


@pytest.mark.slow
def test_a_translator_is_scored_on_its_own_pairs(start_stage: StartStage, tmp_path: Path) -> None:  # R2.6
    from tests.validate import zoo

    model = zoo.make_seq2seq_base(tmp_path / "model")
    pairs = [{"translation": {"de": one, "en": one}} for one in zoo.TEXTS]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    options: dict[str, Any] = {"data": str(tmp_path / "pairs.jsonl"), "samples": 3, "new_tokens": 24, "speed_tokens": 0}
    run = start_stage("reference", model, None, {"merge": model}, **options)
    result, result_folder = run.result(), run.context.staging
    assert result.outcome is Outcome.SUCCEEDED, result.fault
    scores = result.figures["reference"]["scores"]
    assert (
        scores["texts"] == 3
        and 0 < scores["chrf"] <= 100
        and 0 <= scores["bleu"] <= 100
        and "base_scores" not in result.figures["reference"]
    )
    for sample in read_reference(Path(result_folder)).samples:
        assert sample.prompt == sample.ids and sample.text.startswith(sample.answer or "nothing") and sample.completion is None
    assert set(result.figures["prompts"]) <= set(zoo.TEXTS)
