"""Which forms take the place of a variant that was not exact enough: a pure rule that always ends, within its limits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daemon.contract.jobs.fallbacks import WayDown, way_down
from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from daemon.contract.jobs.options import ValidateOptions
from daemon.contract.jobs.plan import fallback, variant_names

P, F, U = Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIED


def inexact(variant: str) -> ArtifactCheck:
    return ArtifactCheck(variant=variant, verdict=F, reasons=(f"{variant} diverges",), of_precision=True)


def down(
    *checks: ArtifactCheck,
    asked: tuple[str, ...] = ("onnx-int8",),
    seconds: dict[str, float] | None = None,
    lost: dict[str, str] | None = None,
    **options: object,
) -> WayDown:
    return way_down(asked, {check.variant: check for check in checks}, seconds or {}, ValidateOptions.model_validate(options), lost)


def test_each_failed_check_leads_to_the_next_form_until_one_passes() -> None:  # R2.5
    assert down().added == ()
    assert down(inexact("onnx-int8")).added == ("onnx-int8-weight",)
    further = down(inexact("onnx-int8"), inexact("onnx-int8-weight"))
    assert further.added == ("onnx-int8-weight", "onnx-fp16")
    assert [(step.wanted, step.taken, step.reason) for step in further.steps][1] == (
        "onnx-int8-weight", "onnx-fp16", "onnx-int8-weight diverges"
    )  # fmt: skip
    passed = ArtifactCheck(variant="onnx-int8-weight", verdict=P)
    assert down(inexact("onnx-int8"), passed).added == ("onnx-int8-weight",)


def test_a_form_that_can_not_be_made_or_checked_is_not_the_end_of_the_way() -> None:  # R2.5
    killed = {"onnx-int8-weight": "it could not be made: not enough memory"}
    found = down(inexact("onnx-int8"), lost=killed)
    assert found.added == ("onnx-int8-weight", "onnx-fp16") and found.steps[1].reason == killed["onnx-int8-weight"]
    unverified = ArtifactCheck(variant="onnx-int8-weight", verdict=U, reasons=("nothing here runs it",))
    assert down(inexact("onnx-int8"), unverified, lost={"onnx-int8-weight": "x"}).steps[1].reason == "nothing here runs it"
    assert down(lost={"onnx-int8": "it could not be made: not enough memory"}) == WayDown(), "nothing of it was measured"
    wrong = inexact("onnx-int8-weight").model_copy(update={"of_precision": False})
    assert down(inexact("onnx-int8"), wrong, lost=killed).added == ("onnx-int8-weight",), "a wrong tokenizer is wrong in each form"


def test_no_step_is_taken_where_less_quantization_can_not_help() -> None:
    tokenizer = inexact("onnx-int8").model_copy(update={"of_precision": False})
    assert down(tokenizer) == WayDown()
    assert down(ArtifactCheck(variant="onnx-int8", verdict=U)) == WayDown()
    assert down(inexact("onnx-int8"), inexact("onnx")) == WayDown(), "what it was made of is wrong itself"
    assert down(inexact("onnx-int8"), inexact("pytorch")) == WayDown(), "the merged model is wrong itself"


def test_the_way_ends_where_the_configuration_says() -> None:
    assert down(inexact("onnx-int8"), on_failed_check="reject") == WayDown()
    assert down(inexact("onnx-int8"), on_failed_check="publish") == WayDown()
    took = {"onnx-int8-weight": 50.0, "check-onnx-int8-weight": 20.0}
    late = down(inexact("onnx-int8"), inexact("onnx-int8-weight"), seconds=took, fallback_minutes=1)
    assert late.added == ("onnx-int8-weight",) and "fallback_minutes" in late.stopped["onnx-int8"]


def test_a_form_that_is_asked_for_anyway_is_not_added_again() -> None:
    found = down(inexact("onnx-int8"), asked=("onnx-int8", "onnx-int8-weight"))
    assert found.added == () and found.chain("onnx-int8") == ("onnx-int8", "onnx-int8-weight")


@given(
    st.lists(st.sampled_from(variant_names()), unique=True),
    st.dictionaries(st.sampled_from(variant_names()), st.sampled_from([P, F, U])),
    st.dictionaries(st.sampled_from(variant_names()), st.floats(0, 1e5)),
    st.floats(0.1, 1e4), st.sets(st.sampled_from(variant_names())),
)  # fmt: skip
def test_the_rule_always_ends_and_only_ever_grows_with_more_checks(
    asked: list[str], verdicts: dict[str, Verdict], seconds: dict[str, float], minutes: float, broken: set[str]
) -> None:
    lost = dict.fromkeys(broken - {name for name, verdict in verdicts.items() if verdict is not U}, "it could not be made")
    options = ValidateOptions(fallback_minutes=minutes)
    checks = {name: ArtifactCheck(variant=name, verdict=verdict, of_precision=verdict is F) for name, verdict in verdicts.items()}
    found = way_down(asked, checks, seconds, options, lost)
    assert not set(found.added) & set(asked)
    assert all(fallback(step.wanted) == step.taken for step in found.steps)
    assert all(step.wanted in lost or checks[step.wanted].verdict is F for step in found.steps)
    assert all(checks[step.asked].verdict is F for step in found.steps)
    for first in asked:
        assert len(found.chain(first)) == len(set(found.chain(first)))
    # What was decided stays decided when the check of the last form comes: its stages have been made by then.
    for name in found.added:
        if name not in checks:
            later = way_down(asked, {**checks, name: ArtifactCheck(variant=name, verdict=P)}, seconds, options, lost)
            assert name in later.added
