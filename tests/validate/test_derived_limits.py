"""The arithmetic of benchmarks/thresholds.py: where good and damaged artifacts part, rates, and limits that refuse no good one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import _limits, thresholds
from benchmarks._limits import EARLIER, EARLIER_ITSELF, GOOD, Judge, Record
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.figures import CheckFigures
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from handlers.validate import deciding
from handlers.validate.checks.examination import Examination
from handlers.validate.verdict import judge

LIMITS = Thresholds(agreement=0.8, kl=0.1, error=3.0)
JUDGE = Judge(LIMITS, (0.1, 0.25))
VALUES = st.floats(0, 10)
GOODS = st.lists(st.tuples(st.floats(0, 1), VALUES, VALUES), min_size=1, max_size=8)
"""Agreement, kl, error of each good artifact."""


def record(kind: str = GOOD, *, agreement: float | None = 1.0, kl: float | None = 0.0, error: float | None = 0.0, **values: Any) -> Record:
    known = {"agreement": agreement, "kl": kl, "kl_upper": kl, "error_max": error, "otherwise": [], "model": "a", "parameters": 1}
    return {"kind": kind, "variant": "onnx-int4", "live": "sound", "loss": 3.0, **known, **values}


@pytest.mark.parametrize(
    ("found", "fails"),
    [
        (record(agreement=0.8, kl=0.1, error=3.0), False),
        (record(agreement=0.79, kl=0.021), True),
        (record(agreement=0.79, kl=0.02), False),
        (record(agreement=0.79, kl=0.01, kl_upper=0.03), True),
        (record(agreement=0.79, kl=0.01, kl_upper=None), True),
        (record(agreement=0.79, kl=None), True),
        (record(kl=0.11), True),
        (record(error=3.1), True),
        (record(kl=float("nan")), True),
        (record(agreement=None, kl=None, error=1.0), False),
        (record(agreement=None, kl=None, error=4.0), True),
    ],
)
def test_limits_are_judged_as_the_check_judges_them(found: Record, fails: bool) -> None:
    assert _limits.crosses(found, LIMITS) is fails
    assert _limits.fails({**found, "otherwise": ["its weights are others"]}, JUDGE)


def test_an_artifact_may_differ_from_itself_by_the_limit_or_by_a_share_of_its_error() -> None:
    assert not _limits.contradicts(record(cache=0.1, padding=None), (0.1, 0.25))
    assert _limits.contradicts(record(cache=0.11), (0.1, 0.25))
    assert not _limits.contradicts(record(cache=0.11, error=0.5), (0.1, 0.25))
    assert _limits.contradicts(record(cache=0.0, padding=0.2, error=0.5), (0.1, 0.25))
    assert _limits.contradicts(record(cache=float("nan")), (0.1, 0.25))
    assert _limits.fails(record(cache=0.2), JUDGE) and not _limits.fails(record(cache=0.2, error=1.0), JUDGE)


@pytest.mark.parametrize("variant", ["onnx-int4", "onnx-int4-fine", "onnx-mixed", "onnx-int8-static"])
@pytest.mark.parametrize(("cache", "error", "passes"), [(0.008, 0.45, True), (0.126, 0.31, False), (0.14, 0.37, False), (0.2, 1.0, True)])
def test_a_cache_that_repeats_one_token_is_found_in_rounded_graphs(variant: str, cache: float, error: float, passes: bool) -> None:
    figures = CheckFigures(agreement=0.95, kl=0.002, error_max=error, positions=349, logit_std=1.0, cache_error_max_absolute=cache)
    check = judge(variant, catalog().variants[variant].limits, Examination(figures=figures), catalog().thresholds[variant])
    assert (check.verdict is Verdict.PASSED) is passes, check.reasons
    assert passes or "the cache is broken" in check.reasons[0]


def judged(agreement: float, kl: float | None, limits: Thresholds = LIMITS) -> ArtifactCheck:
    """By figures alone."""
    figures = CheckFigures(agreement=agreement, kl=kl, error_max=0.4, positions=120, logit_std=1.0)
    return judge("onnx-int4", catalog().variants["onnx-int4"].limits, Examination(figures=figures), limits)


def test_choices_between_almost_equal_answers_do_not_count() -> None:
    check = judged(0.75, 0.0057)
    assert check.verdict is Verdict.PASSED
    assert "agreement 0.75 is below the limit 0.8 and does not count: the divergence of 0.0057 nats" in check.figures["notes"][0]
    for agreement, kl, limits in (
        (0.75, 0.021, LIMITS),
        (0.75, None, LIMITS),
        (0.75, 0.0057, LIMITS.model_copy(update={"kl": 0.025})),
        (0.85, 0.0057, LIMITS.model_copy(update={"agreement": 0.9})),
    ):
        check = judged(agreement, kl, limits)
        assert check.verdict is Verdict.FAILED and check.reasons[0].startswith(f"agreement {agreement}"), limits
        assert "does not count" not in str(check.figures["notes"])
    assert judged(0.75, 0.02).verdict is Verdict.PASSED
    assert judged(0.49, 0.0057).verdict is Verdict.FAILED
    assert judged(0.81, 0.0057).figures["notes"] == []
    strict = LIMITS.scaled("strict")  # asks for an agreement of 0.9 too, but nobody has set that
    assert (
        judged(0.85, 0.0057, strict).verdict is Verdict.PASSED
        and judged(0.85, 0.0057, strict.model_copy(update={"agreement": 0.91})).reasons
    )


def test_the_benchmark_knows_where_choices_do_not_count() -> None:
    assert _limits.EVEN == deciding.EVEN_FIGURE


def test_where_two_distributions_part() -> None:
    good, bad = [record(kl=one) for one in (0.01, 0.03)], [record("damaged", kl=one) for one in (0.02, 0.3, 0.5)]
    found = _limits.parting([*good, *bad], "kl")
    assert found == {"largest_good": 0.03, "smallest_bad": 0.02, "smallest_bad_above": 0.3, "below": 1, "of": 3}
    assert _limits.parting([*good, record("damaged", kl=0.02)], "kl") == {
        "largest_good": 0.03, "smallest_bad": 0.02, "smallest_bad_above": None, "below": 1, "of": 1,
    }  # fmt: skip
    assert _limits.parting(good, "kl") is None
    assert _limits.parting([record(kl=None), record("damaged", kl=1.0)], "kl") is None


def test_rates_count_the_damaged_and_the_good_ones_apart() -> None:
    records = [
        record(), record(kl=0.2), record(kl=0.05), record(kl=0.01),
        record("damaged", kl=0.2), record("hidden", otherwise=["weights"]), record("cache", cache=0.2), record("missed"),
    ]  # fmt: skip
    found = _limits.figures(records, {"onnx-int4": Judge(Thresholds(agreement=0.8, kl=0.04, error=3.0), (0.1, 0.25))})
    assert (found["good"], found["bad"]) == (4, 4)
    assert found["detection_earlier"] == found["detection_declared"] == 0.25
    assert found["detection_whole_earlier"] == 0.5
    assert found["detection_rate"] == found["onnx-int4"]["detection_whole_declared"] == 0.75
    assert (found["false_alarms_whole_earlier"], found["false_alarm_rate"]) == (0.25, 0.5)
    assert found["damages"]["hidden"] == {
        "of": 1, "detection_earlier": 0.0, "detection_declared": 0.0, "detection_whole_earlier": 1.0, "detection_whole_declared": 1.0,
    }  # fmt: skip
    assert found["missed"] == ["a, onnx-int4, missed"]


def test_each_model_has_its_own_rates_and_largest_figures() -> None:
    records = [
        record(kl=0.01), record(kl=0.03, agreement=0.9), record("damaged", kl=0.2),
        record(model="b", parameters=2, kl=0.5),
    ]  # fmt: skip
    found = _limits.figures(records, {"onnx-int4": JUDGE})["of_models"]
    assert list(found) == ["a", "b"]
    assert (found["a"]["good"], found["a"]["bad"], found["a"]["loss"]) == (2, 1, 3.0)
    assert found["a"]["largest_good"]["onnx-int4"] == {"kl": 0.03, "disagreement": pytest.approx(0.1), "error_max": 0.0}
    assert (found["a"]["false_alarms_whole_declared"], found["b"]["false_alarms_whole_declared"]) == (0.0, 1.0)
    assert "detection_declared" not in found["b"]


def test_what_was_left_out_is_told_and_counts_as_nothing() -> None:
    left = {"model": "a", "variant": "onnx-int4", "kind": "swapped layers", "live": "sound", "seed": 0, "left_out": "KeyError: 'x'"}
    found = _limits.figures([record(), left], {"onnx-int4": JUDGE})
    assert (found["good"], found["bad"], found["detection_rate"]) == (1, 0, None)
    assert found["left_out"] == ["a, onnx-int4, swapped layers: KeyError: 'x'"]


def test_a_run_that_was_cut_off_measures_nothing_again(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    assert thresholds.read(path) == []
    thresholds.Records(path).add(record(seed=0))
    with path.open("a") as stream:
        stream.write('{"model": "a", "vari')
    records = thresholds.Records(path)
    assert record() in records, "an early record, which says no seed"
    for other in (record("damaged"), record(seed=1), record(model="b"), record(live="stale"), record(variant="onnx")):
        assert other not in records
    records.add(record("damaged"))
    assert [one["kind"] for one in thresholds.read(path)] == [GOOD, "damaged"]


@given(st.floats(1e-9, 1e9))
def test_steps_of_limits_are_1_2_5(number: float) -> None:
    step = _limits.next_step(number)
    assert number * (1 - 1e-9) <= step <= 2.5001 * number
    assert f"{step:.0e}"[0] in "125"
    assert _limits.next_step(step) == step


@given(GOODS)
def test_proposed_limits_refuse_nothing_good_that_passed_and_are_never_wider(goods: list[tuple[float, float, float]]) -> None:
    records = [record(agreement=agreement, kl=kl, error=error) for agreement, kl, error in goods]
    damaged = [record("damaged", kl=one, error=10 * one) for one in (0.001, 0.01, 0.09)]
    limits = _limits.proposed([*records, *damaged], JUDGE, (1.0, 0.0))
    assert limits.agreement >= LIMITS.agreement and limits.kl <= LIMITS.kl and limits.error <= LIMITS.error
    for one in records:
        assert _limits.crosses(one, LIMITS) or not _limits.crosses(one, limits, _limits.EVEN * LIMITS.kl)


def test_a_limit_is_tightened_only_where_that_finds_what_nothing_else_finds_and_not_below_real_models() -> None:
    good = [record(kl=0.001), record(kl=0.003)]
    hidden, told = record("damaged", kl=0.05), record("damaged", kl=0.05, otherwise=["its weights are others"])
    assert _limits.tight(good, LIMITS) == Thresholds(agreement=1.0, kl=0.01, error=1e-6)
    assert _limits.proposed([*good, told], JUDGE, (1.0, 0.0)) == LIMITS
    assert _limits.proposed([*good, hidden], JUDGE, None) == LIMITS
    assert _limits.proposed([*good, hidden], JUDGE, (1.0, 0.0)) == Thresholds(agreement=1.0, kl=0.01, error=3.0)
    assert _limits.proposed([*good, hidden], JUDGE, (0.9, 0.04)) == Thresholds(agreement=0.9, kl=0.04, error=3.0)
    assert _limits.proposed([*good, hidden], JUDGE, (0.7, 0.2)) == LIMITS
    assert _limits.gained([*good, hidden, told], JUDGE, Thresholds(agreement=0.8, kl=0.01, error=3.0)) == [hidden]
    assert _limits.proposed([hidden], JUDGE, (1.0, 0.0)) == LIMITS


def test_every_variant_whose_earlier_limits_are_named_is_declared() -> None:
    assert set(EARLIER) <= set(catalog().thresholds)
    for name, (agreement, kl, error) in EARLIER.items():
        declared = catalog().thresholds[name]
        assert declared.agreement >= agreement and declared.kl <= kl and declared.error <= error, f"{name} is wider than it was"
    for name, (limit, part) in EARLIER_ITSELF.items():
        limits = catalog().variants[name].limits
        assert limits.cache == limits.padding < limit and limits.noise_share <= part, f"{name} is wider than it was"


def test_a_benchmark_that_runs_as_a_script_imports_the_library_onnx() -> None:
    folder = Path(_limits.__file__).parent
    code = "import sys; sys.path[:0] = sys.argv[1:]; from benchmarks import _common; import onnx; print(onnx.__file__)"
    done = subprocess.run([sys.executable, "-c", code, str(folder.parent), str(folder)], capture_output=True, text=True, check=True)
    assert "site-packages" in done.stdout
