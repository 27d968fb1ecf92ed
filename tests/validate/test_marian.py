"""A translator without a tokenizer.json goes through validation as others do: its texts are read, and its example is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from daemon.contract.jobs.messages import Outcome, Verdict
from handlers.folder import examples
from handlers.validate.workers.client import WorkerFailed
from tests import marian
from tests.marian import Marian, Translated
from tests.validate import artifacts, zoo
from tests.validate.bench import Bench, measured
from tests.validate.conftest import Validate

PROMPTS = tuple(source for source, _ in marian.sentences(4))


@pytest.fixture(scope="module")
def bench(marian_model: Marian, marian_export: Translated, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The live model over a few sentences."""
    return measured(marian_model.adapter, marian_model.base, marian_export.merged, tmp_path_factory.mktemp("bench") / "scratch", PROMPTS)


@pytest.mark.slow
def test_its_texts_are_read_and_its_answers_are_texts(bench: Bench, marian_export: Translated) -> None:
    reference = bench.reference
    assert reference.readable and not reference.fallbacks and not reference.warnings
    assert [sample.text for sample in reference.samples] == list(PROMPTS)
    assert len({sample.continuation for sample in reference.samples}) == len(PROMPTS)
    for variant, folder in (("pytorch", marian_export.merged), ("onnx", marian_export.onnx)):
        check = bench.check(variant, folder)
        assert check.verdict is Verdict.PASSED, check.reasons
        sample = check.figures["sample"]
        assert sample["prompt"] == PROMPTS[0] and sample["text"] == sample["reference"] and len(sample["text"]) > 8


@pytest.mark.slow
def test_another_vocabulary_beside_the_graphs_fails(bench: Bench, marian_export: Translated, tmp_path: Path) -> None:
    folder = artifacts.copy(marian_export.onnx, tmp_path / "onnx")
    vocabulary = json.loads((folder / "vocab.json").read_text())
    (folder / "vocab.json").write_text(json.dumps(dict(zip(vocabulary, [0, 1, *list(vocabulary.values())[:1:-1]], strict=True))))
    check = bench.check("onnx", folder)
    assert check.verdict is Verdict.FAILED and "its tokenizer gives other token ids than the reference's" in check.reasons[0]


@pytest.mark.slow
def test_a_checkpoint_that_lacks_a_part_of_its_tokenizer_is_told_so(
    marian_model: Marian, marian_export: Translated, tmp_path: Path
) -> None:
    pin = artifacts.copy(marian_model.adapter, tmp_path / "pin")
    for name in ("vocab.json", "tokenizer_config.json"):
        (pin / name).write_bytes((marian_model.base / name).read_bytes())
    zoo.edit_json(pin / "tokenizer_config.json", tokenizer_class="MarianTokenizer")
    with pytest.raises(WorkerFailed, match="transformers can't load it"):
        measured(pin, marian_model.base, marian_export.merged, tmp_path / "scratch", PROMPTS)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_the_stage_runs_its_example(
    broken: bool, marian_model: Marian, marian_export: Translated, validate: Validate, tmp_path: Path
) -> None:  # R4.1
    folder = artifacts.copy(marian_export.onnx, tmp_path / "onnx")
    if broken:
        (folder / examples.MARIAN).write_text((folder / examples.MARIAN).read_text().replace("text[end:]", "text[:4]"))
    inputs = {"merge": marian_export.merged, "pytorch": marian_export.merged, "onnx": folder}
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    done = validate(
        marian_model.adapter, marian_model.base, inputs, samples=2, new_tokens=8, speed_tokens=8, prompts=str(tmp_path / "prompts.txt")
    )
    assert {result.outcome for result in done.results.values()} == {Outcome.SUCCEEDED}, done.results
    assert done.figures["prompts"] == list(PROMPTS[:2]) and not any(result.fallbacks for result in done.results.values())
    passed, check = done.checks.values()
    assert passed.verdict is Verdict.PASSED, passed.reasons
    if broken:
        assert check.reasons == ("its example.py gives other tokens than the artifact gave in this check",)
    else:
        assert check.verdict is Verdict.PASSED, check.reasons
        assert check.figures["sample"]["text"] == check.figures["sample"]["reference"] != ""
