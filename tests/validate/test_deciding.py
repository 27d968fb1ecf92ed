"""Whether limits are kept: what bounds say of artifacts whose true figures are known, and what counts where they say nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.figures import CheckFigures, Decision, Likeness
from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.options import Undecided
from handlers.coreml import comparison as coreml
from handlers.validate.arithmetic.bounds import ERROR, looks
from handlers.validate.arithmetic.comparison import Comparison
from handlers.validate.arithmetic.fine_tuning import FineTuning
from handlers.validate.checks.examination import Examination
from handlers.validate.checks.live.rounded import Beside
from handlers.validate.deciding import Look, decide, kept
from handlers.validate.engines.task_profile import LANGUAGE_MODEL
from handlers.validate.verdict import judge
from tests.validate.test_verdicts import AT_THE_LIMITS

LIMITS = Thresholds(agreement=0.85, kl=0.05, error=2.0)
NEAR = AT_THE_LIMITS | {"agreement": 0.95, "kl": 0.01, "error_max": 1.0}
NUMBERS = looks(6, 64)


def _texts(values: list[float], positions: float = 50.0) -> list[tuple[float, float]]:
    return [(value * positions, positions) for value in values]


def _decision(limit: str, decisions: tuple[Decision, ...]) -> Decision:
    return next(decision for decision in decisions if decision.limit == limit)


def _outcomes(true: dict[str, float], random: np.random.Generator) -> dict[str, str]:
    """What is decided in the end of an artifact with these figures, looking as often as may be; texts differ by a factor of two or so."""
    figures = Likeness(kl=true["kl"], agreement=1 - true["apart"], perplexity_ratio=true["ratio"], error_max=1.0)
    scale = np.exp(random.normal(-0.125, 0.5, NUMBERS[-1]))
    apart = random.binomial(50, random.beta(true["apart"] * 9, (1 - true["apart"]) * 9, NUMBERS[-1]))
    rows = {
        "kl": _texts((true["kl"] * scale).tolist()), "agreement": [(50.0 - count, 50.0) for count in apart.tolist()],
        "perplexity": _texts((math.log(true["ratio"]) + random.normal(0, 0.05, NUMBERS[-1])).tolist()),
    }  # fmt: skip
    decisions: tuple[Decision, ...] = ()
    for number, count in enumerate(NUMBERS):
        look = Look({name: texts[:count] for name, texts in rows.items()}, number, len(NUMBERS))
        decisions = decide(figures, look, LIMITS, decisions, demanded=False)
    return {decision.limit: decision.outcome for decision in decisions}


@pytest.mark.parametrize("beyond", ["kl", "ratio"])
def test_an_artifact_that_just_misses_a_limit_passes_in_less_than_one_of_a_hundred_draws(beyond: str) -> None:
    random, draws = np.random.default_rng(1), 200
    true = {"kl": 0.01, "apart": 0.03, "ratio": 1.02} | {
        "kl": {"kl": 1.02 * LIMITS.kl},
        "ratio": {"ratio": LIMITS.perplexity_ratio + 0.01},
    }[beyond]
    passed = sum(all(outcome == "passed" for outcome in _outcomes(true, random).values()) for _ in range(draws))
    assert passed <= ERROR * draws


def test_an_artifact_that_just_keeps_all_limits_fails_in_less_than_one_of_a_hundred_draws_and_a_near_one_passes() -> None:
    random, draws = np.random.default_rng(2), 200
    at_the_limits = {"kl": 0.99 * LIMITS.kl, "apart": 0.145, "ratio": LIMITS.perplexity_ratio - 0.01}
    failed = sum("failed" in _outcomes(at_the_limits, random).values() for _ in range(draws))
    near = {"kl": 0.008, "apart": 0.03, "ratio": 1.02}
    passed = sum(all(outcome == "passed" for outcome in _outcomes(near, random).values()) for _ in range(50))
    far = {"kl": 0.4, "apart": 0.5, "ratio": 2.0}
    caught = sum("failed" in _outcomes(far, random).values() for _ in range(50))
    assert failed <= ERROR * draws and passed == caught == 50


def test_what_a_look_decided_stays_decided() -> None:
    figures, good = Likeness(kl=0.01, error_max=1.0), _texts([0.008, 0.01, 0.012, 0.009, 0.011, 0.01])
    first = decide(figures, Look({"kl": good}, 0, 2), LIMITS)
    assert _decision("kl", first).outcome == "passed"
    worse = Look({"kl": good + _texts([3.0] * 6)}, 1, 2)
    assert _decision("kl", decide(figures, worse, LIMITS, first)) == _decision("kl", first)
    assert _decision("kl", decide(figures, worse, LIMITS)).outcome != "passed"


def test_agreement_does_not_count_where_the_divergence_is_certainly_at_most_half_of_its_limit_unless_it_was_demanded() -> None:
    figures = Likeness(kl=0.005, agreement=0.75, error_max=1.0)
    look = Look({"kl": _texts([0.004, 0.005, 0.006] * 8), "agreement": _texts([0.75, 0.77, 0.73] * 8)})
    excused = _decision("agreement", decide(figures, look, LIMITS, demanded=False))
    assert excused.outcome == "passed" and excused.value == pytest.approx(0.75)
    assert _decision("agreement", decide(figures, look, LIMITS, demanded=True)).outcome == "failed"
    larger = Look({**look.texts, "kl": _texts([0.04, 0.041, 0.039] * 8)})
    assert _decision("agreement", decide(figures, larger, LIMITS, demanded=False)).outcome == "failed"
    check = _judged({"agreement": 0.75, "kl": 0.005}, look.texts)
    assert check.verdict is Verdict.PASSED
    assert (
        "agreement 0.75 is below the limit 0.85 and does not count: the divergence of 0.005 nats is certainly" in check.figures["notes"][0]
    )


def test_an_error_beyond_the_limit_is_a_fact_and_none_bounds_the_share_of_positions() -> None:
    figures = Likeness(error_max=1.0)
    none = _decision("error", decide(figures, Look({"error": [(1.0, 50.0)] * 6}), LIMITS))
    assert none.outcome == "passed" and none.high is not None and 0.1 < none.high < 0.6
    more = _decision("error", decide(figures, Look({"error": [(1.0, 50.0)] * 64}), LIMITS))
    assert more.high is not None and more.high < none.high / 4
    assert _decision("error", decide(figures, Look({"error": [(1.0, 50.0)] * 63 + [(2.1, 50.0)]}), LIMITS)).outcome == "failed"


def test_no_divergence_excuses_that_far_more_choices_differ_than_may() -> None:
    look = Look({"kl": _texts([0.004, 0.005, 0.006] * 8), "agreement": _texts([0.6, 0.62, 0.58] * 8)})
    decisions = decide(Likeness(kl=0.005, agreement=0.6, error_max=1.0), look, LIMITS, demanded=False)
    assert _decision("agreement", decisions).outcome == "failed"
    assert _judged({"agreement": 0.6, "kl": 0.005}, look.texts).verdict is Verdict.FAILED
    few = Look({"kl": _texts([0.004, 0.005]), "agreement": _texts([0.0, 0.6])})
    undecided = decide(Likeness(kl=0.0045, agreement=0.3, error_max=1.0), few, LIMITS, demanded=False)
    assert _decision("agreement", undecided).outcome == "undecided"
    assert not kept(_decision("agreement", undecided), "figure", _decision("kl", undecided))


@pytest.mark.parametrize(("outcome", "value", "excused"), [("passed", 0.024, True), ("passed", 0.026, False), ("undecided", 0.011, False)])
def test_of_undecided_choices_a_divergence_that_is_bounded_excuses_more(outcome: Any, value: float, excused: bool) -> None:
    divergence = Decision(limit="kl", value=value, allowed=0.05, outcome=outcome)
    agreement = Decision(limit="agreement", value=0.7, allowed=0.85, outcome="undecided")
    assert kept(agreement, "figure", divergence) is excused


@pytest.mark.parametrize("limit", ["kl", "agreement", "perplexity"])
def test_a_figure_that_is_no_number_fails_whatever_counts_where_it_is_undecided(limit: str) -> None:
    name = "perplexity_ratio" if limit == "perplexity" else limit
    assert _judged({name: math.nan}, {limit: [(math.nan, 50.0)] * 6}, "accept").verdict is Verdict.FAILED


class _Ready(Examination):
    """One whose texts are given."""

    given: dict[str, list[tuple[float, float]]]

    def by_limit(self) -> dict[str, list[tuple[float, float]]]:
        return self.given


def _judged(
    figures: dict[str, Any],
    texts: Any,
    undecided: Undecided = "figure",
    beside: Beside | None = None,
    kl: float = 1.0,
    weighed: bool = False,
) -> Any:
    """`kl`: of the base."""
    examination = _Ready(CheckFigures(**NEAR | {"texts": 6} | figures), base=Likeness(kl=kl), beside=beside, weighed=weighed)
    examination.given = dict(texts)
    return judge("onnx-int8", catalog().variants["onnx-int8"].limits, examination, LIMITS, undecided)


@pytest.mark.parametrize(("values", "figure"), [([0.02, 0.09, 0.01, 0.05], Verdict.PASSED), ([0.02, 0.3, 0.04, 0.05], Verdict.FAILED)])
def test_what_counts_where_a_limit_is_undecided_is_configured_and_told(values: list[float], figure: Verdict) -> None:
    texts = {"kl": _texts(values)}
    verdicts = {wins: _judged({"kl": float(np.mean(values))}, texts, wins) for wins in ("figure", "accept", "reject")}
    assert [check.verdict for check in verdicts.values()] == [figure, Verdict.PASSED, Verdict.FAILED]
    by_figure = "kept" if figure is Verdict.PASSED else "missed"
    told_as = f'"figure", so the figure counts: {by_figure}', '"accept", so it counts as kept', '"reject", so it counts as missed'
    for check, words in zip(verdicts.values(), told_as, strict=True):
        (told,) = (sentence for sentence in (*check.figures["notes"], *check.reasons) if "KL" in sentence)
        assert told.startswith(f"KL {np.mean(values):.3g} nats, certainly between ") and told.endswith(f"(validate.undecided is {words})")
        assert "undecided after 4 prompts whether it is within the limit 0.05" in told
        assert any("divergence" in reason for reason in check.reasons) == (by_figure == "missed" and words != told_as[1])
        assert _decision("kl", tuple(Decision(**row) for row in check.figures["decisions"])).outcome == "undecided"


@pytest.mark.parametrize(("agreement", "verdict"), [(0.99, Verdict.PASSED), (0.2, Verdict.FAILED)])
@pytest.mark.parametrize("undecided", ["figure", "accept", "reject"])
def test_what_counts_where_texts_do_not_decide_is_not_asked_of_pictures(undecided: Undecided, agreement: float, verdict: Verdict) -> None:
    kl = 0.001 if verdict is Verdict.PASSED else 5.0
    media = {"agreement": agreement, "kl": kl, "error_max": 0.1, "positions": 96}
    assert _judged({"media": media}, {"kl": _texts([0.001] * 6)}, undecided).verdict is verdict


def test_a_share_of_the_fine_tuning_that_is_unproved_is_not_called_too_small() -> None:
    shares = [(0.95, 1.0), (0.5, 1.0), (0.99, 1.0)]
    figures = {"fine_tuning": 0.81, "distance_from_live": 0.1, "distance_from_base": 1.0}
    reason = _judged(figures, {"fine_tuning": shares}, "reject").reasons[0]
    assert reason.startswith("share of the fine-tuning 0.813, certainly between ") and reason.endswith("so it counts as missed)")


def test_where_the_weights_are_proved_they_decide_a_share_that_is_hidden_in_the_rounding() -> None:
    figures = {"fine_tuning": 0.6, "distance_from_live": 0.1, "distance_from_base": 0.1, "kl": 0.01, "twin_error": 1e-6}
    open_share = {"fine_tuning": [(0.0, 1.0), (1.8, 1.0), (0.2, 1.0), (0.4, 1.0)]}
    check = _judged(figures, open_share, kl=0.001)
    (note,) = (note for note in check.figures["notes"] if note.startswith("share of the fine-tuning 0.6, certainly between "))
    assert check.verdict is Verdict.PASSED and "4 prompts do not decide it" in note and "as far as these bits hold it" in note
    assert {row["limit"]: row["outcome"] for row in check.figures["decisions"]}["fine_tuning"] == "passed"
    assert _judged(figures, open_share, kl=0.1).verdict is Verdict.FAILED, "the fine-tuning changes more than rounding does"
    assert _judged(figures | {"twin_error": None}, open_share, kl=0.001).verdict is Verdict.FAILED, "nothing is proved"
    weighed = _judged(figures | {"twin_error": None}, open_share, kl=0.001, weighed=True)
    assert weighed.verdict is Verdict.PASSED, "weights that were compared without a twin prove it too"
    lost = {"fine_tuning": [(0.01, 1.0), (0.012, 1.0), (0.011, 1.0), (0.01, 1.0)]}
    assert _judged(figures | {"fine_tuning": 0.011}, lost, "accept", kl=0.001).verdict is Verdict.FAILED, "the texts decide it"


@pytest.mark.parametrize("variant", ["coreml-int8", "coreml-palettized"])
def test_a_comparison_that_the_base_of_a_light_fine_tuning_passes_too_proves_nothing(variant: str) -> None:
    """These let a weight be farther from its number than the nearest one is. GGUF's too, whose twin proves it, where there is one."""
    random = np.random.default_rng(0)
    base = random.normal(0, 1, (32, 64)).astype(np.float32)
    merged = base + 1e-4 * random.normal(0, 1, base.shape).astype(np.float32)
    scales = np.abs(base).max(1, keepdims=True) / 127
    form = coreml.Weight("w", "int8", True, np.round(base / scales) * scales, 64 if variant == "coreml-int8" else 0)
    assert coreml._beyond(form, merged) is None, "the base's, rounded, are within it"
    assert catalog().variants[variant].limits.loose and catalog().variants["gguf-q4_k_m"].limits.loose
    assert not catalog().variants["mlx-int4"].limits.loose, "there each bit is compared"


def test_where_limits_may_be_kept_beside_either_of_two_models_each_has_half_of_the_error() -> None:
    figures, texts = Likeness(kl=0.01, error_max=1.0), {"kl": _texts([0.008, 0.01, 0.012, 0.009])}
    one, two = (_decision("kl", decide(figures, Look(texts, ways=ways), LIMITS)) for ways in (1, 2))
    assert one.high is not None and two.high is not None and two.high > one.high and two.low == one.low


@pytest.mark.parametrize("sound", [True, False])
def test_of_experts_bounds_beside_the_rounded_model_decide(sound: bool) -> None:
    """Beside the live model as it is, an error is beyond the limit for certain; beside the rounded one all is near, or nobody knows."""
    random, beside = np.random.default_rng(4), Beside(LANGUAGE_MODEL, 1.0)
    for number in range(6):
        rows, factor = random.normal(0, 1, (50, 40)).astype(np.float32), 0.4 if number == 0 and not sound else 0.01
        beside.add(rows, rows + factor * random.normal(0, 1, rows.shape).astype(np.float32), [])
    given = {"error_max": 9.0, "rounded": beside.figures().given}
    checks = [_judged(given, {"kl": _texts([0.01] * 6)}, wins, beside) for wins in ("accept", "reject")]
    assert [check.verdict for check in checks] == [Verdict.PASSED, Verdict.PASSED if sound else Verdict.FAILED]
    outcomes = {row["limit"]: row["outcome"] for row in checks[0].figures["decisions"]}
    assert outcomes == {"kl": "passed" if sound else "undecided", "agreement": outcomes["agreement"], "error": "passed"}
    asked_once = any("because the live model with rounded experts is asked once" in note for note in checks[0].figures["notes"])
    assert asked_once is not sound and any("choose other experts" in note for note in checks[0].figures["notes"])


def test_one_text_decides_nothing_and_pieces_of_a_text_are_one() -> None:
    random, comparison = np.random.default_rng(0), Comparison()
    for _ in range(5):
        rows = random.normal(0, 1, (10, 20)).astype(np.float32)
        comparison.add(rows, rows + 0.01, same_text=True)
    figures = comparison.figures(1.0)
    decisions = decide(figures, Look(comparison.by_limit()), LIMITS)
    assert figures.texts == 1 and _decision("kl", decisions).texts == 1
    assert _decision("kl", decisions).outcome == "undecided" and kept(_decision("kl", decisions), "figure")


@pytest.mark.parametrize("rows", [1, 12], ids=["a vector of each text", "vectors of each text"])
@pytest.mark.parametrize(("noise", "outcome"), [(1e-3, "passed"), (0.0, "passed"), (3.0, "failed"), (0.5, "undecided")])
def test_vectors_that_are_nowhere_near_to_others_agree_and_others_are_counted(rows: int, noise: float, outcome: str) -> None:
    random, comparison = np.random.default_rng(3), Comparison("vector")
    for _ in range(8 if rows > 1 else 40):
        mine = random.normal(0, 1, (rows, 16)).astype(np.float32)
        comparison.add(mine, mine + noise * random.normal(0, 1, mine.shape).astype(np.float32))
    figures, limits = comparison.figures(1.0), Thresholds(agreement=0.99, kl=0.05, error=100.0)
    decision = _decision("agreement", decide(figures, Look(comparison.by_limit()), limits))
    assert decision.outcome == outcome, decision
    apart, mistakable = (sum(part for part, _ in comparison.by_limit()[name]) for name in ("agreement", "mistakable"))
    assert figures.positions - apart <= mistakable


def test_the_share_of_the_fine_tuning_over_texts_is_the_figure() -> None:
    random, tuning = np.random.default_rng(0), FineTuning("choice")
    for _ in range(8):
        live = random.normal(0, 2, (16, 200))
        base = live + random.normal(0, 0.3, live.shape)
        tuning.add(live, base, base + 0.6 * (live - base), same_text=False)
    sums = tuning.by_limit()["fine_tuning"]
    figure = tuning.figures().fine_tuning
    assert figure is not None and sum(part for part, _ in sums) / sum(weight for _, weight in sums) == pytest.approx(figure)
    decision = _decision("fine_tuning", decide(Likeness(error_max=0.0), Look({"fine_tuning": sums}), LIMITS, tuned=figure))
    assert decision.outcome == "failed" and decision.high is not None and decision.high < 0.75


def test_the_limit_of_the_perplexity_follows_from_that_of_the_divergence_unless_it_is_set() -> None:
    assert LIMITS.perplexity_ratio == pytest.approx(math.exp(math.sqrt(0.1)))
    own = Thresholds(agreement=0.85, kl=0.05, error=2.0, perplexity=1.01)
    assert own.perplexity_ratio == 1.01 and own.scaled("loose").perplexity == pytest.approx(1.01**2)
    texts = {"perplexity": _texts([0.4] * 6)}
    check = _judged({"perplexity_ratio": 1.5}, texts)
    assert check.verdict is Verdict.FAILED and check.reasons == (
        "the perplexity of the texts is 1.49 times the live model's, above the limit 1.37",
    )
    assert check.remedy is not None and "validate.limits.onnx-int8.perplexity" in check.remedy
