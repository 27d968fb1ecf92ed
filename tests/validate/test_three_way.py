"""Base, live model and artifact on the same tokens: intervals, perplexity, the share of the fine-tuning, and what is said of them."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.figures import CheckFigures, Likeness
from daemon.contract.jobs.messages import Verdict
from handlers.validate import record
from handlers.validate.arithmetic import growth, intervals
from handlers.validate.arithmetic.comparison import Comparison
from handlers.validate.arithmetic.correlation import spearman
from handlers.validate.arithmetic.fine_tuning import FineTuning
from handlers.validate.checks import notes
from handlers.validate.checks.examination import Examination
from handlers.validate.folders import special_tokens, weights
from handlers.validate.verdict import judge
from tests.validate.bench import measured
from tests.validate.test_verdicts import AT_THE_LIMITS, LIMITS

NEAR = {"agreement": 0.95, "kl": 0.01, "error_max": 1.0}


def _logits(seed: int, rows: int = 12, width: int = 20) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (rows, width)).astype(np.float32)


def _judged(variant: str = "onnx-int8", base: Likeness | None = None, **figures: Any) -> Any:
    examination = Examination(CheckFigures(**AT_THE_LIMITS | NEAR | figures), base=base)
    return judge(variant, catalog().variants[variant].limits, examination, LIMITS)


# Intervals


@settings(max_examples=20)
@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50)), min_size=2, max_size=20))
def test_an_interval_holds_the_figure_and_is_the_same_each_time(prompts: list[tuple[float, int]]) -> None:
    above, below = [value * count for value, count in prompts], [float(count) for _, count in prompts]
    interval = intervals.of_ratio(above, below)
    assert interval is not None and interval == intervals.of_ratio(above, below)
    assert min(value for value, _ in prompts) - 1e-9 <= interval[0] <= interval[1] <= max(value for value, _ in prompts) + 1e-9


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, hits = np.random.default_rng(1), 0
    for _ in range(100):
        found = intervals.of_ratio(rng.exponential(1.0, 30).tolist(), [1.0] * 30)
        hits += found is not None and found[0] <= 1.0 <= found[1]
    assert 85 <= hits <= 99


def test_positions_of_one_prompt_do_not_narrow_an_interval() -> None:
    few, many = Comparison(), Comparison()
    for seed in range(4):
        rows, other = _logits(seed), _logits(seed) + _logits(seed + 100) * 0.05 * (seed + 1)
        few.add(rows, other)
        many.add(np.tile(rows, (10, 1)), np.tile(other, (10, 1)))
    assert many.figures(1.0).kl_interval == pytest.approx(few.figures(1.0).kl_interval)


def test_one_prompt_has_no_interval_and_pieces_of_a_text_are_one() -> None:
    comparison = Comparison()
    comparison.add(_logits(1), _logits(2))
    assert comparison.figures(1.0).kl_interval is None and comparison.figures(1.0).texts == 1
    comparison.add(_logits(3), _logits(4), same_text=True)
    assert comparison.figures(1.0).kl_interval is None and comparison.figures(1.0).texts == 1
    comparison.add(_logits(5), _logits(6))
    assert comparison.figures(1.0).kl_interval is not None and comparison.figures(1.0).texts == 2


def test_perplexities_are_those_of_the_formula() -> None:
    reference, other, following = _logits(1), _logits(2), [(0, 3), (4, 7), (11, 0)]
    comparison = Comparison()
    comparison.add(reference, other, following)

    def loss(rows: np.ndarray) -> float:
        return float(np.mean([np.log(np.exp(rows[row]).sum()) - rows[row, token] for row, token in following]))

    figures = comparison.figures(1.0)
    assert comparison.perplexity == pytest.approx(math.exp(loss(reference)), rel=1e-5)
    assert figures.perplexity == pytest.approx(math.exp(loss(other)), rel=1e-5) and figures.perplexity_tokens == 3
    assert figures.perplexity_ratio == pytest.approx(math.exp(loss(other) - loss(reference)), rel=1e-5)


def test_ranks_are_spearmans() -> None:
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 100, 1000, 10000])) == pytest.approx(1.0)
    assert spearman(np.array([1.0, 2, 3, 4, 5]), np.array([5.0, 6, 7, 8, 7])) == pytest.approx(0.8207826816681233)  # with a tie
    assert spearman(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])) is None


def test_vectors_have_a_rank_correlation_of_their_similarities() -> None:
    for noise, least, most in ((0.0, 1.0, 1.0), (0.3, 0.6, 0.999), (50.0, -0.8, 0.6)):
        comparison = Comparison("vector")
        for seed in range(8):
            rows = _logits(seed)
            comparison.add(rows, rows + noise * _logits(seed + 50))
        found = comparison.figures(1.0).rank_correlation
        assert found is not None and least - 1e-9 <= found <= most + 1e-9, (noise, found)


# The share of the fine-tuning


@settings(max_examples=30)
@given(st.floats(0.0, 1.0), st.floats(0.0, 0.3), st.integers(0, 1000))
def test_the_share_says_how_far_from_base_to_live_an_artifact_is_and_rounding_does_not_move_it(
    share: float, noise: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    tuning = FineTuning("choice")
    for number in range(8):
        live = rng.normal(0, 2, (16, 200))
        base = live + rng.normal(0, 0.3, live.shape)
        artifact = base + share * (live - base) + rng.normal(0, noise, live.shape)
        tuning.add(live, base, artifact, same_text=number % 4 == 3)
    figures = tuning.figures()
    assert figures.fine_tuning == pytest.approx(share, abs=0.1)
    assert figures.fine_tuning_interval is not None
    low, high = figures.fine_tuning_interval
    assert low - 0.05 <= figures.fine_tuning <= high + 0.05  # type: ignore[operator]


def test_where_base_and_live_model_are_the_same_nothing_is_said_of_the_share() -> None:
    tuning, live = FineTuning("choice"), _logits(1)
    tuning.add(live, live + 1e-6, live + 0.1, same_text=False)
    assert tuning.figures() == CheckFigures() == FineTuning("choice").figures()


def test_an_artifact_that_is_closer_to_the_base_fails_and_one_that_only_may_be_does_not() -> None:
    share = {"fine_tuning": 0.05, "distance_from_base": 0.01, "distance_from_live": 0.4}
    check = _judged(**share)
    assert check.verdict is Verdict.FAILED and len(check.reasons) == 1
    assert "closer to the base than to the live model" in check.reasons[0] and "0.01 from the base" in check.reasons[0]
    assert check.reasons[0].endswith("a merged model without its adapter, or its few bits took the adapter away")
    less = share | {"fine_tuning": 0.6}
    assert "of an earlier or another checkpoint" in _judged(**less).reasons[0]
    proved = _judged(**less, twin_error=1e-6)
    assert "earlier" not in proved.reasons[0] and "Its weights are the merged ones, rounded" in proved.reasons[0]
    assert proved.remedy is not None and proved.remedy.startswith("use the variant ")
    assert _judged(**share | {"fine_tuning": 0.8}).verdict is Verdict.PASSED
    rounded = _judged(**share | {"distance_from_live": 4e-4})
    assert rounded.verdict is Verdict.PASSED and 'merge.dtype = "float32" keeps it' in rounded.figures["notes"][0]


# Notes


@pytest.mark.parametrize(
    ("base", "figures", "words"),
    [
        (Likeness(kl=0.008, agreement=0.9), {}, "the comparison is blind: the base without the adapter has KL 0.008"),
        (Likeness(kl=0.02, agreement=0.95), {}, "the base without the adapter agrees with the live model at 95 % of the positions"),
        (Likeness(kl=0.02, agreement=0.9), {}, None),
        (Likeness(cosine_mean=0.99), {"kl": None, "agreement": None, "cosine_mean": 0.98}, "a mean cosine of 0.99"),
        (Likeness(cosine_mean=0.9), {"kl": None, "agreement": None, "cosine_mean": 0.98}, None),
        (Likeness(error_mean_absolute=0.1), {"kl": None, "agreement": None, "error_mean_absolute": 0.2}, "a mean error of 0.1"),
        (Likeness(kl=0.02, agreement=0.95, greedy_same_median=3.0), {"greedy_same_median": 9.0}, None),
    ],
)  # fmt: skip
def test_a_base_that_is_as_near_as_the_artifact_makes_the_comparison_blind(
    base: Likeness, figures: dict[str, Any], words: str | None
) -> None:
    told = _judged(base=base, **figures).figures["notes"]
    assert len(told) == (words is not None)
    if words:
        assert words in told[0] and "give prompts of the run's own data in validate.prompts" in told[0]


def test_an_artifact_that_fails_anyway_is_not_called_blind() -> None:
    assert _judged(base=Likeness(kl=0.01), kl=0.9).figures["notes"] == []


# Growth


def test_a_difference_that_grows_is_told_from_one_that_does_not() -> None:
    rng = np.random.default_rng(0)
    flat = [rng.lognormal(0, 0.4, 40) for _ in range(6)]
    for curves, grown in ((flat, False), ([curve * np.linspace(0.1, 3, 40) for curve in flat], True), ([flat[0][:5]], None)):
        found = growth.of(curves)
        if grown is None:
            assert found is None
            continue
        assert found is not None
        figures = CheckFigures(growth=found[0], growth_interval=found[1])
        assert bool(notes.grows(figures)) is grown, found


def test_few_flat_curves_seldom_look_like_growing_ones() -> None:
    rng, told = np.random.default_rng(0), 0
    for _ in range(200):
        found = growth.of([rng.lognormal(0, 0.5, 36) for _ in range(4)])
        assert found is not None
        told += notes.grows(CheckFigures(growth=found[0], growth_interval=found[1])) is not None
    assert told <= 6


def test_errors_that_grow_within_the_noise_of_fp32_are_no_note() -> None:
    grown = {"growth": 2.4, "growth_interval": (2.1, 2.7)}
    assert _judged("onnx", error_max=7e-5, **grown).figures["notes"] == []
    (told,) = _judged("onnx", error_max=0.01, **grown).figures["notes"]
    assert told.startswith("the differences grow over the sequence, 2.4 times")


def test_a_cache_that_fails_more_with_every_step_says_so() -> None:
    broken = {"cache_error_max_absolute": 9.0}
    assert "tokens are lost or counted wrongly" in _judged(**broken, cache_growth=3.0).reasons[0]
    assert "from the first steps on" in _judged(**broken, cache_growth=1.1).reasons[0]


# Files


def test_special_tokens_are_compared_as_programs_read_them(tmp_path: Path) -> None:
    pin, base, artifact = (tmp_path / name for name in ("pin", "base", "artifact"))
    for folder in (pin, base, artifact):
        folder.mkdir()
    (base / "config.json").write_text('{"eos_token_id": 2, "pad_token_id": 0, "bos_token_id": null}')
    (base / "tokenizer.json").write_text("{}")
    (base / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}, "pad_token": null}')
    (pin / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    wanted = special_tokens.expected(pin, base)
    assert wanted == {
        "ids": {"eos_token_id": [2, 5], "pad_token_id": 0}, "config": {"eos_token_id": 2, "pad_token_id": 0},
        "names": {"eos_token": "</s>"},
    }  # fmt: skip
    assert special_tokens.difference(artifact, wanted) is None, "a folder without these files has none that are wrong"
    (artifact / "config.json").write_text('{"eos_token_id": 2, "text_config": {"pad_token_id": 0}}')
    assert special_tokens.difference(artifact, wanted) == "its special tokens are not the live model's: eos_token_id is 2 instead of [2, 5]"
    (artifact / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    (artifact / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    assert special_tokens.difference(artifact, wanted) is None
    (artifact / "tokenizer_config.json").write_text("{}")
    assert special_tokens.difference(artifact, wanted) is None, "another program's file of that name"
    (artifact / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert "eos_token is not set instead of '</s>'" in str(special_tokens.difference(artifact, wanted))
    (artifact / "tokenizer_config.json").unlink()
    assert special_tokens.difference(artifact, wanted, (5, 2, 9)) is None, "its runtime may know more"
    told = "its special tokens are not the live model's: the end of a text is [5, 9] instead of [2]"
    assert special_tokens.difference(artifact, wanted, (5, 9)) == told
    assert special_tokens.difference(artifact, None) is None, "none are known"
    (pin / "tokenizer_config.json").write_text('{"eos_token": "<end>"}')
    assert special_tokens.expected(pin, base)["names"] == {"eos_token": "<end>"}, "the checkpoint's file goes before the base's"


def test_weights_of_another_merge_are_named_by_their_tensor(folders: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    merged = folders["pytorch"]
    other = Path(shutil.copytree(merged, tmp_path / "other"))
    assert weights.difference(other, merged) is None
    tensors = load_file(other / "model.safetensors")
    name = sorted(tensors)[len(tensors) // 2]
    tensors[name].view(-1)[-1] += 1
    save_file(tensors, other / "model.safetensors", {"format": "pt"})
    told = weights.difference(other, merged)
    assert told is not None and f"tensor {name} has other bytes" in told


def test_a_reference_is_read_back_with_its_base(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    bench = measured(pico_checkpoint, pico_base, pico_base, tmp_path / "logits")
    folder = tmp_path / "kept"
    shutil.copytree(tmp_path / "logits", folder / "logits")
    record.write_reference(folder, bench.reference)
    found = record.read_reference(folder)
    assert [one.base_rows for one in found.samples] == [one.base_rows for one in bench.reference.samples]
    assert all(one.base_logits is not None and one.base_logits.is_file() for one in found.samples)
