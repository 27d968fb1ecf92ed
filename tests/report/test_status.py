"""The status of an export, and the verdict of each variant, follow from the journal's facts alone."""

from __future__ import annotations

from itertools import product

import pytest

from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, Verdict
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from daemon.contract.jobs.verdicts import asked_variants, judge, status_of
from tests.report import facts

P, F, U = Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIED


def checks(*verdicts: Verdict) -> list[ArtifactCheck]:
    return [ArtifactCheck(variant=f"v{number}", verdict=verdict) for number, verdict in enumerate(verdicts)]


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ((P,), "succeeded"), ((P, P, P), "succeeded"), ((P, P, F), "partial"), ((P, U), "partial"), ((U,), "partial"),
        ((U, F), "partial"), ((F,), "failed"), ((F, F), "failed"), ((), "failed"),
    ],
)  # fmt: skip
def test_the_status_follows_from_the_verdicts_of_the_variants_asked_for(verdicts: tuple[Verdict, ...], status: str) -> None:
    asked = [f"v{number}" for number in range(len(verdicts))]
    assert status_of(asked, checks(*verdicts), ValidateOptions(publish_unverified=tuple(asked))) == status
    assert status_of(asked, checks(*verdicts), ValidateOptions()) == (status if P in verdicts else "failed"), (
        "what nobody verified is not published by itself"
    )


def test_only_all_passed_is_succeeded_and_the_order_never_matters() -> None:
    for verdicts in product((P, F, U), repeat=3):
        for allowed in ((), ("v0", "v1", "v2")):
            rules = ValidateOptions(publish_unverified=allowed)
            given = status_of(["v0", "v1", "v2"], checks(*verdicts), rules)
            assert given == status_of(["v2", "v0", "v1"], reversed(checks(*verdicts)), rules)
            assert (given == "succeeded") == (set(verdicts) == {P})
            assert (given == "failed") == (set(verdicts) <= ({F} if allowed else {F, U}))


def test_a_variant_without_a_check_counts_as_failed() -> None:
    assert status_of(["v0", "v1"], checks(P), ValidateOptions()) == "partial"
    assert status_of(["v1"], checks(P), ValidateOptions()) == "failed"


def verdicts(job: JobFacts) -> dict[str, Verdict]:
    return {check.variant: check.verdict for check in judge(job)}


def test_a_check_of_something_that_nobody_asked_for_counts_for_nothing() -> None:
    only = Work(export=ExportOptions(variants=("onnx-int8",)), validation=ValidateOptions())
    job = facts.made_all(facts.check("onnx", F), facts.check("onnx-int8"), work=only)
    assert verdicts(job) == {"onnx-int8": P}


# R4.5
def test_what_was_not_made_names_the_stage_that_kept_it_from_being_made() -> None:
    for check in judge(facts.failed_merge()):
        assert check.verdict is F
        assert check.reasons == (f"it was not made: merge failed: {facts.BASE_MISSING.cause}",)
        assert check.remedy == facts.BASE_MISSING.remedy


def test_one_failed_format_leaves_the_verdicts_of_the_others_alone() -> None:
    assert verdicts(facts.failed_int8()) == {"pytorch": P, "onnx": P, "onnx-int8": F}


def test_what_validation_could_not_look_at_is_unverified_with_validations_reason() -> None:
    for check in judge(facts.unverified()):
        assert check.verdict is U
        assert check.reasons == ("it could not be checked: no memory",)
        assert check.remedy == "free memory and retry"


def test_a_pass_for_an_artifact_that_was_never_made_is_not_believed() -> None:
    job = facts.made_all(facts.check("pytorch"), facts.check("onnx"), facts.check("onnx-int8"))
    stages = tuple(facts.lost("onnx", None, state="cancelled") if stage.name == "onnx" else stage for stage in job.stages)
    found = verdicts(job.model_copy(update={"stages": stages}))
    assert found == {"pytorch": P, "onnx": F, "onnx-int8": P}


def test_a_failed_artifact_always_has_a_remedy() -> None:
    bare = ArtifactCheck(variant="onnx", verdict=F, reasons=("wrong",))
    found = {check.variant: check.remedy for check in judge(facts.made_all(facts.check("pytorch"), bare))}
    assert found["onnx"] and found["onnx-int8"]


def test_a_stage_that_checks_nothing_says_nothing_of_its_own_artifact_or_of_others() -> None:  # a format of another package
    passed = tuple(ArtifactCheck(variant=name, verdict=Verdict.PASSED) for name in ("pytorch", "onnx", "onnx-int8"))
    unchecked = facts.made_all()
    stages = tuple(
        one.model_copy(update={"result": one.result.model_copy(update={"checks": passed})}) if one.name == "onnx" and one.result else one
        for one in unchecked.stages
    )
    judged = judge(unchecked.model_copy(update={"stages": stages}))
    assert {check.verdict for check in judged} == {Verdict.UNVERIFIED}


def test_what_a_job_ended_as_stays_so_when_a_package_was_removed() -> None:
    work = Work(export=ExportOptions(variants=("pytorch", "gone")), validation=ValidateOptions())
    job = facts.made_all(facts.check("pytorch"), work=work)
    unmade = judge(job)
    assert [(check.variant, check.verdict) for check in unmade] == [("pytorch", P), ("gone", F)]
    checked = ArtifactCheck(variant="gone", verdict=U, reasons=("nobody knows",))
    stages = (*job.stages, facts.done("gone", 90, 1, sizes=(1,)), facts.done("check-gone", 91, 1, checks=(checked,)))
    made = job.model_copy(update={"stages": stages})
    assert verdicts(made) == {"pytorch": P, "gone": U}
    assert status_of(asked_variants(made), judge(made), made.work.validation) == "partial"
