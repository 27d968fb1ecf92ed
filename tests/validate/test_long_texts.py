"""Artifacts that are wrong behind some length are caught with the reason that fits; sound ones of every kind of positions pass."""

from __future__ import annotations

import itertools
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from filelock import FileLock

from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.stages import LONG_LEAST, long_tokens
from daemon.contract.jobs.figures import CheckFigures
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from handlers.report.lengths import sentence
from handlers.validate.engines.reach import Reach, reach_of
from handlers.validate.engines.task_profile import LANGUAGE_MODEL
from handlers.validate.length import course, faults, measuring
from handlers.validate.length.text import TAIL, WHOLE_PIECE, LongText, drawn, fill, split
from handlers.validate.verdict import judge
from tests.sampling import some
from tests.sharing import shared
from tests.validate import damage_length, zoo
from tests.validate.bench import Bench, measured
from tests.validate.damage_length import CASES, GRAPHS, LongDamage
from tests.validate.long_models import KINDS, ORIGINAL, REACH, WINDOW, LongLab, make_model


def test_an_artifacts_steps_are_drawn_by_the_checkpoint_and_end_elsewhere_than_the_live_models() -> None:
    for length in (16, 17, 40, 100, 257, 512, 513, 2048, 8192):
        live = split(length, 512, 2, 0)
        for seed in range(20):
            own = drawn(length, 384, 4096, live, seed)
            assert sum(own) == length and min(own) > 0 and own[-TAIL:] == [1] * TAIL
            body = own[:-TAIL]
            assert own == drawn(length, 384, 4096, live, seed) and len(body) >= 2
            assert not set(itertools.accumulate(body[:-1])) & set(itertools.accumulate(live))
            assert (WHOLE_PIECE[0] <= body[0] < WHOLE_PIECE[1]) == (length >= 512) and max(body[1:]) <= 385
        assert length < 40 or len({tuple(drawn(length, 384, 4096, live, seed)) for seed in range(20)}) > 3
    assert max(drawn(2048, 160, 160, split(2048, 160, 2, 0), 1)) <= 161, "no more outputs than there is room for"


SOUND = [(kind, variant) for kind in KINDS for variant in ("pytorch", *GRAPHS)]


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> LongLab:
    """The models. They and their artifacts are made as they are asked for."""
    return shared(tmp_path_factory, "long", LongLab)


@pytest.fixture(scope="session")
def benches(lab: LongLab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bench]:
    """The live models that were measured, by kind."""
    return {}


def _bench(kind: str, variant: str, lab: LongLab, benches: dict[str, Bench], scratch: Path) -> Bench:
    with FileLock(lab.folder / "lock"):
        lab.made(kind, variant)
        if kind not in benches:
            benches[kind] = lab.bench(kind, scratch / "bench")
    return benches[kind]


def _long(check: ArtifactCheck) -> dict[str, Any]:
    found: dict[str, Any] = check.figures["long"]
    return found


@pytest.mark.parametrize(("kind", "variant"), some(SOUND, of=55))
def test_sound_artifacts_pass_at_length(
    kind: str, variant: str, lab: LongLab, benches: dict[str, Bench], tmp_path_factory: pytest.TempPathFactory
) -> None:
    bench = _bench(kind, variant, lab, benches, tmp_path_factory.mktemp("sound"))
    check = bench.check(variant, lab.made(kind, variant), lab.source(kind, variant))
    assert check.verdict is Verdict.PASSED, check.reasons
    assert _long(check)["tokens"] == REACH and _long(check)["why"] is None
    window = {"mistral": WINDOW, "qwen2": WINDOW, "gemma3": WINDOW // 2}.get(kind)
    original = ORIGINAL if kind in ("dynamic", "yarn", "llama3", "longrope") else None
    assert (_long(check)["window"], _long(check)["original"]) == (window, original)


@pytest.mark.parametrize(("case", "variant"), some(CASES, of=53), ids=lambda value: value if isinstance(value, str) else value.name)
def test_each_damage_at_length_is_caught_with_its_reason(
    case: LongDamage, variant: str, lab: LongLab, benches: dict[str, Bench], tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    bench = _bench(case.kind, variant, lab, benches, tmp_path_factory.mktemp("damaged"))
    check = damage_length.checked(lab, bench, case, variant, tmp_path)
    assert check.verdict is Verdict.FAILED
    assert re.search(case.words, " | ".join(check.reasons)), check.reasons


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["t5", "marian"])
def test_encoder_decoders_are_compared_on_a_long_source_and_a_long_output(kind: str, tmp_path: Path) -> None:
    base = zoo.make_seq2seq_base(tmp_path / "base", kind)
    bench = measured(base, None, base, tmp_path / "scratch", long_tokens=300)
    folder = zoo.export_seq2seq(base, tmp_path / "onnx")
    check = bench.check("onnx", folder)
    assert check.verdict is Verdict.PASSED, check.reasons
    assert _long(check)["tokens"] == (300 if kind == "t5" else 96) and _long(check)["positions"] >= 40


@pytest.mark.slow
@pytest.mark.parametrize("auto", ["AutoModelForMaskedLM", "AutoModelForSequenceClassification", "AutoModel"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_encoders_are_compared_on_a_text_as_long_as_they_reach(auto: str, kind: str, tmp_path: Path) -> None:
    base = zoo.make_encoder_base(tmp_path / "base", auto, kind)
    bench = measured(base, None, base, tmp_path / "scratch")
    outputs = ("last_hidden_state",) if auto == "AutoModel" else ("logits",)
    check = bench.check("onnx", zoo.export_encoder(base, tmp_path / "onnx", auto, outputs))
    assert check.verdict is Verdict.PASSED, check.reasons
    assert _long(check)["tokens"] == 128


def test_a_text_that_is_switched_off_is_told(lab: LongLab, tmp_path: Path) -> None:
    with FileLock(lab.folder / "lock"):
        folder = lab.made("qwen3", "pytorch")
    bench = measured(folder, None, folder, tmp_path / "scratch", long_tokens=0)
    examination = bench.examined("pytorch", folder)
    told = examination.figures.long
    assert told is not None and told.tokens is None and told.why == "validate.long_tokens is 0" and sentence(told) == ""
    limits = catalog().variants["pytorch"].limits
    assert judge("pytorch", limits, examination, catalog().thresholds["pytorch"]).verdict is Verdict.PASSED


def test_the_text_is_of_distinct_passages_and_ends_with_its_beginning() -> None:
    bodies = [list(range(start, start + 50)) for start in range(100, 600, 100)]
    text = fill(list(range(40)), bodies, 1000)
    assert text == fill(list(range(40)), bodies, 1000) and len(text) == 1000
    assert text[-32:] == text[2:34]
    grams = [tuple(text[place : place + 60]) for place in range(len(text) - 60)]
    assert len(set(grams)) == len(grams), "a passage is repeated as a whole"


def test_steps_cover_the_text_and_are_cut_in_other_places() -> None:
    for length in (60, 97, 512, 2048):
        live, own = split(length, 512, 2, 0), split(length, 384, 3, TAIL)
        assert sum(live) == sum(own) == length and own[-TAIL:] == [1] * TAIL and max(live) <= 512 and max(own) <= 384
        cuts, others = (set(itertools.accumulate(one)) - {length} for one in (live, own))
        assert not cuts & others
    assert split(512, 512, 2, 4, [128])[0] == 128


def test_an_artifact_with_less_room_reads_the_beginning_in_steps_of_its_own_or_those_of_the_live_model() -> None:
    text = LongText(list(range(100)), [0, 20, 39, 40, 99], [50, 50], [32, 32, 32, 1, 1, 1, 1], None, positions=60)
    cut = text.fitting(40, "causal")
    assert (
        isinstance(cut, LongText) and cut.ids == list(range(40)) and cut.keep == [0, 20, 39] and cut.limited == "it has room for 40 tokens"
    )
    assert sum(cut.own_pieces) == 40 and cut.own_pieces[-TAIL:] == [1] * TAIL
    assert text.fitting(100, "causal") is text and text.fitting(60, "causal") is text, "its scaling goes on behind the positions it names"
    assert text.fitting(40, "encoder") == "it has room for 40 tokens, and the text is of 100"
    same = replace(text, own_pieces=text.pieces).fitting(70, "causal")
    assert isinstance(same, LongText) and same.own_pieces == [50, 20]


def test_large_models_read_shorter_texts() -> None:
    assert long_tokens(300_000_000) > 2048 > long_tokens(600_000_000) > 1024 > long_tokens(1_700_000_000) == LONG_LEAST


def test_where_errors_become_larger_is_found_and_noise_is_none() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        noise = random.lognormal(0, 0.5, 48) * np.linspace(1, 1.5, 48)
        found = course.largest_step(noise, 1e-9)
        assert found is not None and found.ratio < 1.5
    step = course.largest_step(np.where(np.arange(48) < 20, noise, 9 * noise), 1e-9)
    assert step is not None and step.ratio > 1.5 and abs(step.place - 20) <= 3


def _judged(away: dict[int, float], folder: Path, *, halves: bool, merged: bool = False, variant: str = "") -> str:
    """What is said of a model that is near the live one (48 positions), but so many deviations away at some; `merged`: and beside a
    merged one that is not. Its limit is that of `variant`, else that of `onnx-int8` (2), of the merged model itself that of `pytorch`
    (0.25)."""
    variant = variant or ("onnx-int8" if merged else "pytorch")
    drawn = np.random.default_rng(5)
    live = drawn.normal(0, 1, (48, 320)).astype(np.float32)
    rows = live + drawn.normal(0, 1e-3, live.shape).astype(np.float32)
    np.save(folder / "live.npy", live)
    np.save(folder / measuring.FILE, rows)
    for place, error in away.items():
        rows[place, 7] += error
    (folder / "outputs").mkdir()
    worker: Any = SimpleNamespace(name=variant, ask=lambda request: np.save(request.out, rows))
    text = LongText(list(range(48)), list(range(48)), [48], [48], None, logits=folder / "live.npy", halves=halves)
    long, unusable = measuring.measure(worker, text, LANGUAGE_MODEL, folder / "outputs", folder if merged else None)
    assert unusable is None
    figures, limits = CheckFigures(kl=1e-6, long=long), catalog().variants[variant].limits
    return " | ".join(faults.faults(figures, limits, catalog().thresholds[variant], alone=True))


def test_a_position_that_rounding_to_16_bits_decides_is_no_fault_and_several_are(tmp_path: Path) -> None:
    def told(*places: int, halves: bool, merged: bool = False, error: float = 0.8) -> str:
        return _judged(dict.fromkeys(places, error), Path(tempfile.mkdtemp(dir=tmp_path)), halves=halves, merged=merged)

    assert told(30, halves=True) == told(30, 40, halves=True) == ""
    assert "standard deviations at more than 2 positions, above the limit 0.25" in told(30, 40, 47, halves=True)
    assert "standard deviations, above the limit 0.25" in told(30, halves=False), "nothing rounds a merge in fp32"
    assert told(30, halves=True, merged=True, error=1.9) == ""
    assert "beside the merged PyTorch model is 2.1" in told(30, halves=True, merged=True, error=2.2)


def test_over_its_base_nothing_is_rounded_by_a_merge_and_the_merged_model_does_not_count(tmp_path: Path) -> None:
    def told(error: float, *, merged: bool) -> str:
        return _judged({30: error}, Path(tempfile.mkdtemp(dir=tmp_path)), halves=True, merged=merged, variant="gguf-adapter")

    assert told(0.2, merged=False) == told(0.2, merged=True) == ""
    assert "its largest error is 0.797 standard deviations, above the limit 0.25" in told(0.8, merged=False)
    assert "its largest error is 0.797 standard deviations, above the limit 0.25" in told(0.8, merged=True)


def test_of_few_positions_none_is_left_to_rounding() -> None:
    assert [measuring.ties(count) for count in (1, 2, 8, 20, 48)] == [0, 0, 0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "reach"),
    [
        ({"sliding_window": 64}, Reach(window=64)),
        ({"sliding_window": 64, "use_sliding_window": False}, Reach()),
        ({"sliding_window": 64, "layer_types": ["full_attention"]}, Reach()),
        ({"attention_chunk_size": 32, "layer_types": ["chunked_attention", "full_attention"]}, Reach(window=32)),
        ({"local_attention": 16}, Reach(window=16)),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "max_position_embeddings": 64}, Reach()),
        ({"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 32}}, Reach(original=32)),
        ({"rope_scaling": {"type": "llama3", "original_max_position_embeddings": 32}}, Reach(original=32)),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}, "max_position_embeddings": 64},
            Reach(original=64, varying=True, most=256),
        ),
        ({"rope_parameters": {"rope_type": "longrope"}, "original_max_position_embeddings": 32}, Reach(original=32, varying=True)),
        ({"rope_parameters": {"a": {"rope_type": "default"}, "b": {"rope_type": "yarn", "original_max_position_embeddings": 8}}},
         Reach(original=8)),
    ],
)  # fmt: skip
def test_where_a_model_changes_what_it_does_is_read_from_its_configuration(settings: dict[str, Any], reach: Reach) -> None:
    assert reach_of(SimpleNamespace(**settings)) == reach


@pytest.mark.slow
def test_an_untrained_model_of_one_layer_passes_at_length(tmp_path: Path) -> None:
    lab = LongLab(tmp_path)
    make_model(tmp_path / "qwen3" / "pytorch", "qwen3", steps=0)
    bench = lab.bench("qwen3", tmp_path / "bench")
    for variant in ("pytorch", *GRAPHS):
        check = bench.check(variant, lab.made("qwen3", variant), lab.source("qwen3", variant))
        assert not [reason for reason in check.reasons if "long text" in reason], check.reasons
