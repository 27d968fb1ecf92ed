"""Encoder-decoders: sound artifacts pass in each way of running them, and each defect is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest

from daemon.contract.jobs.messages import Outcome, Verdict
from handlers.validate.engines.generation_rules import read_rules
from handlers.validate.engines.graphs.onnx_tasks import OnnxSeq2Seq
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.workers.client import WorkerFailed
from handlers.validate.workers.seq2seq_decoding import cached
from tests.sampling import some
from tests.validate import artifacts, zoo
from tests.validate.bench import Bench, measured
from tests.validate.conftest import Validate

LATER, MERGED = "decoder_with_past_model.onnx", "decoder_model_merged.onnx"
TARGETS = {"marian": ["q_proj", "v_proj", "out_proj", "fc2"], "bart": ["q_proj", "v_proj", "fc1"], "t5": ["q", "v", "o"]}


@dataclass(frozen=True)
class Translator:
    """One encoder-decoder, from its base to its graphs."""

    base: Path
    adapter: Path
    merged: Path
    onnx: Path
    bench: Bench


Make = Callable[[str], Translator]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes a translator of a model type, once. Read only."""
    made: dict[str, Translator] = {}

    def one(kind: str) -> Translator:
        if kind not in made:
            root = tmp_path_factory.mktemp(kind)
            base = zoo.make_seq2seq_base(root / "base", kind)
            adapter = zoo.train_adapter(
                base, root / "adapter", "AutoModelForSeq2SeqLM", lambda model, batch: zoo.copying(model, batch, 1), steps=8,
                target_modules=TARGETS[kind], task_type="SEQ_2_SEQ_LM",
            )  # fmt: skip
            merged = zoo.merge(base, adapter, root / "merged")
            graphs = zoo.export_seq2seq(merged, root / "onnx")
            made[kind] = Translator(base, adapter, merged, graphs, measured(adapter, base, merged, root / "scratch"))
        return made[kind]

    return one


@pytest.fixture
def marian(make: Make) -> Translator:
    return make("marian")


def damaged(translator: Translator, folder: Path) -> Path:
    """A copy of the graphs that may be damaged."""
    return artifacts.copy(translator.onnx, folder / "onnx")


@pytest.mark.parametrize(("kind", "sides"), some([("t5", ["right", "left"]), ("marian", ["right"]), ("bart", ["right"])], of=3))
def test_the_merged_model_and_both_ways_of_running_the_graphs_agree_with_the_live_model(  # R4.2 R11
    kind: str, sides: list[str], make: Make
) -> None:
    translator = make(kind)
    reference = translator.bench.reference
    assert reference.adapter is not None and (reference.adapter.kl or 0) > 0.05, "the adapter must matter"
    assert len({token for sample in reference.samples for token in sample.tokens}) > 8, "the reference must say something"
    # Positions of T5 are relative, so that padding may stand on either side.
    assert reference.sides == sides and not reference.warnings
    for variant, folder in (("pytorch", translator.merged), ("onnx", translator.onnx)):
        check = translator.bench.check(variant, folder)
        assert check.verdict is Verdict.PASSED, check.reasons
        figures = check.figures
        assert figures["task"] == "text2text-generation"
        assert figures["agreement"] == 1.0 and figures["error_max"] < 1e-4
        assert figures["greedy_identical"] == figures["greedy_prompts"] == 4
        assert figures["positions"] == sum(len(sample.tokens) for sample in reference.samples)
        assert all(sample.base is not None for sample in reference.samples[: len(figures["samples"])])
        assert set(figures["padding_errors"]) == set(sides)
    assert set(figures["cache_errors"]) == {"decoder_with_past", "decoder_merged"}


@pytest.mark.slow
def test_the_reference_is_what_transformers_itself_generates(make: Make) -> None:
    from peft import PeftModel
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    for kind in ("marian", "bart"):
        translator = make(kind)
        live = PeftModel.from_pretrained(AutoModelForSeq2SeqLM.from_pretrained(translator.base), str(translator.adapter)).eval()
        tokenizer = AutoTokenizer.from_pretrained(translator.base)
        for sample in translator.bench.reference.samples:
            inputs = tokenizer(sample.text, return_tensors="pt")
            output = live.generate(**inputs, max_new_tokens=10, min_new_tokens=0, do_sample=False, num_beams=1)[0].tolist()
            assert output[1 : 1 + len(sample.tokens)] == sample.tokens[: len(output) - 1]


def test_a_blanked_cross_cache_is_named_with_the_way_that_reads_it(marian: Translator, tmp_path: Path) -> None:
    folder = damaged(marian, tmp_path)
    sound = (folder / LATER).read_bytes()
    artifacts.blank_cache(folder, "past_key_values.1.encoder.value", LATER)
    check = marian.bench.check("onnx", folder)
    assert check.verdict is Verdict.FAILED
    first, *others = check.reasons
    assert "cached decoding (decoder_with_past) differs" in first and all("on a long text" in one for one in others), check.reasons
    zoo.merge_decoders(folder)
    (folder / LATER).write_bytes(sound)
    check = marian.bench.check("onnx", folder)
    assert check.verdict is Verdict.FAILED
    first, *others = check.reasons
    assert "cached decoding (decoder_merged) differs" in first and all("on a long text" in one for one in others), check.reasons
    # A pass without a cache can't see it.
    assert check.figures["agreement"] == 1.0


@pytest.mark.parametrize("merged", [False, True])
def test_a_cross_cache_that_loses_its_rows_after_the_first_step_is_an_error(merged: bool, marian: Translator, tmp_path: Path) -> None:
    folder = damaged(marian, tmp_path)
    sound = (folder / LATER).read_bytes()
    artifacts.empty_output(folder, "present.0.encoder.value", LATER)
    if merged:
        zoo.merge_decoders(folder)
        (folder / LATER).write_bytes(sound)
    with pytest.raises(WorkerFailed, match=r"present\.0\.encoder\.value has the shape \(0, 4, .*cross-attention cache is lost"):
        marian.bench.check("onnx", folder)


def test_the_cross_cache_has_its_shape_at_every_step_of_a_batch(marian: Translator) -> None:  # R11
    engine = OnnxSeq2Seq(EngineSpec(engine="onnx", folder=str(marian.onnx), task="text2text-generation"))
    shapes = set()
    check = engine._check_cross

    def watched(graph: object, outputs: dict[str, object], mask: np.ndarray) -> None:
        shapes.update((name, tuple(value.shape())) for name, value in outputs.items() if ".encoder." in name)  # type: ignore[attr-defined]
        check(graph, outputs, mask)  # type: ignore[arg-type]

    engine._check_cross = watched  # type: ignore[method-assign, assignment]
    for way in engine.ways:
        shapes.clear()
        cached(engine, [[5, 6, 7, 1], [9, 1]], [[4, 5, 6], [7, 8, 9]], way, "right")
        assert shapes == {(name, (2, 4, 4, 12)) for name in zoo.Ports().names("present") if ".encoder." in name}


@pytest.mark.parametrize(
    ("file", "name"), [("encoder_model.onnx", "attention_mask"), ("decoder_model.onnx", "encoder_attention_mask"),
                       (MERGED, "encoder_attention_mask"), (LATER, "encoder_attention_mask")],
)  # fmt: skip
def test_a_graph_that_ignores_its_mask_is_caught_by_a_padded_batch(file: str, name: str, marian: Translator, tmp_path: Path) -> None:
    folder = damaged(marian, tmp_path)
    if file == MERGED:
        sound = {part: (folder / part).read_bytes() for part in ("decoder_model.onnx", LATER)}
        for part in sound:
            artifacts.ignore_input(folder, name, 1, part)
        zoo.merge_decoders(folder)
        for part, content in sound.items():
            (folder / part).write_bytes(content)
    else:
        artifacts.ignore_input(folder, name, 1, file)
    check = marian.bench.check("onnx", folder)
    assert check.verdict is Verdict.FAILED
    assert len(check.reasons) == 1 and "in a right-padded batch it differs" in check.reasons[0], check.reasons


def test_an_adapter_that_was_not_merged_fails(marian: Translator) -> None:  # R1.3
    check = marian.bench.check("pytorch", marian.base)
    assert check.verdict is Verdict.FAILED and any("agreement" in reason for reason in check.reasons)


def test_one_way_alone_is_enough_and_none_is_refused(marian: Translator, tmp_path: Path) -> None:
    folder = damaged(marian, tmp_path)
    (folder / LATER).unlink()
    (folder / "decoder_model.onnx").unlink()
    assert set(marian.bench.check("onnx", folder).figures["cache_errors"]) == {"decoder_merged"}
    (folder / MERGED).unlink()
    with pytest.raises(WorkerFailed, match="not enough to decode with"):
        marian.bench.check("onnx", folder)


def test_decoders_without_a_cache_are_run_over_all_tokens_at_each_step(marian: Translator, tmp_path: Path) -> None:
    folder = damaged(marian, tmp_path)
    for name in (LATER, MERGED):
        (folder / name).unlink()
    model = onnx.load(folder / "decoder_model.onnx")
    del model.graph.output[1:]
    onnx.save(model, folder / "decoder_model.onnx")
    check = marian.bench.check("onnx", folder)
    assert check.verdict is Verdict.PASSED, check.reasons
    assert set(check.figures["cache_errors"]) == {"decoder"}


def test_half_precision_graphs_get_inputs_of_their_type(marian: Translator, tmp_path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    folder = damaged(marian, tmp_path)
    (folder / MERGED).unlink()
    for name in ("encoder_model.onnx", "decoder_model.onnx", LATER):
        # The encoder keeps fp32 outputs, which the decoders take as fp16.
        onnx.save(convert_float_to_float16(onnx.load(folder / name), keep_io_types=name.startswith("encoder")), folder / name)
    check = marian.bench.check("onnx-int8", folder)
    assert check.verdict is Verdict.PASSED, check.reasons
    assert 1e-5 < check.figures["error_max"] < 0.05


def test_rules_of_generation_are_obeyed() -> None:
    generation = {"decoder_start_token_id": 3, "bad_words_ids": [[0], [1, 2]], "forced_bos_token_id": 4, "eos_token_id": [5, 6]}
    rules = read_rules(generation, {"eos_token_id": 9, "begin_suppress_tokens": [2]})
    assert (rules.start, rules.banned, rules.ends) == (3, (0,), (5, 6))
    logits = np.array([9.0, 1.0, 8.0, 7.0, 0.0])
    assert [rules.choose(logits, 0), rules.choose(logits, 1)] == [4, 2]
    suppressing = read_rules({"bos_token_id": 3}, {"begin_suppress_tokens": [0]})
    assert [suppressing.choose(logits, 0), suppressing.choose(logits, 1)] == [2, 0]
    with pytest.raises(Exception, match="decoder_start_token_id"):
        read_rules({}, {})


@pytest.mark.slow
def test_the_stage_validates_an_encoder_decoder_from_checkpoint_to_report(
    marian: Translator, validate: Validate, tmp_path: Path
) -> None:  # R4.1
    broken = damaged(marian, tmp_path)
    artifacts.blank_cache(broken, "past_key_values.0.encoder.key", LATER)
    inputs = {"merge": marian.merged, "pytorch": marian.merged, "onnx": marian.onnx, "onnx-int8": broken}
    done = validate(marian.adapter, marian.base, inputs, samples=2, new_tokens=8, speed_tokens=8)
    assert {result.outcome for result in done.results.values()} == {Outcome.SUCCEEDED}, done.results
    assert [done.checks[name].verdict for name in ("pytorch", "onnx")] == [Verdict.PASSED, Verdict.PASSED], done.checks
    assert done.figures["reference"]["task"] == "text2text-generation"
    assert done.checks["onnx"].figures["speed_over_pytorch"] > 0
    assert [sample["tokens"] for sample in done.record("reference", "reference.json")["samples"]]
    assert done.record("check-onnx", "check.json")["prompts"][0]["cache_errors"]
