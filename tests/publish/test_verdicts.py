"""What is said of an export follows from the journal's facts alone."""

from __future__ import annotations

import itertools

import pytest

from daemon.contract.faults.errors import Fault
from daemon.contract.jobs.messages import ArtifactCheck, JobFacts, Outcome, StageFacts, StageResult, Verdict
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from daemon.contract.jobs.verdicts import asked_variants, judge, status_of
from tests.journal.entries import reference

P, F, U = Verdict.PASSED, Verdict.FAILED, Verdict.UNVERIFIED
VARIANTS = ("pytorch", "onnx", "onnx-int8")
RULES = ValidateOptions()


def fault(cause: str) -> Fault:
    return Fault(code="c", operation="o", cause=cause, remedy=f"mend {cause}")


def made(name: str, *checks: ArtifactCheck) -> StageFacts:
    return StageFacts(name=name, state="succeeded", result=StageResult(outcome=Outcome.SUCCEEDED, checks=checks))


def facts(*stages: StageFacts, variants: tuple[str, ...] = VARIANTS, quantization: str = "") -> JobFacts:
    work = Work(export=ExportOptions(variants=variants, quantization=quantization), validation=ValidateOptions())  # type: ignore[arg-type]
    return JobFacts(export_id="e", created="", checkpoint=reference(), work=work, stages=stages)


@pytest.mark.parametrize("verdicts", list(itertools.product([P, F, U], repeat=3)))
def test_the_status_is_succeeded_only_if_all_passed_and_failed_only_if_all_failed(verdicts: tuple[Verdict, ...]) -> None:
    checks = [ArtifactCheck(variant=name, verdict=verdict) for name, verdict in zip(VARIANTS, verdicts, strict=True)]
    expected = "succeeded" if set(verdicts) == {P} else "failed" if set(verdicts) == {F} else "partial"
    assert status_of(VARIANTS, checks, ValidateOptions(publish_unverified=VARIANTS)) == expected


def test_a_variant_nobody_checked_counts_as_failed_and_one_nobody_asked_for_counts_for_nothing() -> None:
    passed = ArtifactCheck(variant="pytorch", verdict=P)
    assert status_of(("pytorch", "onnx"), [passed], RULES) == "partial"
    assert status_of(("pytorch",), [passed, ArtifactCheck(variant="onnx", verdict=F)], RULES) == "succeeded"
    assert status_of((), [], RULES) == "failed"


def test_one_formats_failure_takes_no_other_and_names_the_stage_that_failed() -> None:  # R4.5
    checks = judge(
        facts(
            made("merge"), made("pytorch"), StageFacts(name="onnx", state="failed", fault=fault("the exporter broke")),
            StageFacts(name="onnx-int8", state="skipped"), made("merged", ArtifactCheck(variant="pytorch", verdict=P)),
        )
    )  # fmt: skip
    assert [check.verdict for check in checks] == [P, F, F]
    for check in checks[1:]:
        assert check.reasons == ("it was not made: onnx failed: the exporter broke",)
        assert check.remedy == "mend the exporter broke"


def test_what_validation_could_not_look_at_is_unverified_with_the_reason() -> None:  # R4.5
    (check,) = judge(
        facts(made("pytorch"), StageFacts(name="merged", state="failed", fault=fault("no memory")), variants=("pytorch",))
    )  # fmt: skip
    assert (check.verdict, check.reasons, check.remedy) == (U, ("it could not be checked: no memory",), "mend no memory")


def test_a_rejected_artifact_keeps_validations_own_reasons_and_gets_a_remedy() -> None:  # R4.4, R4.5
    rejected = ArtifactCheck(variant="pytorch", verdict=F, reasons=("kl 2.0 is above 0.001",))
    (check,) = judge(facts(made("pytorch"), made("merged", rejected), variants=("pytorch",)))
    assert check.reasons == rejected.reasons
    assert check.remedy


def test_the_quantization_level_decides_which_variants_are_judged() -> None:  # R5.1
    assert asked_variants(facts(quantization="none")) == ("pytorch", "onnx")
    assert asked_variants(facts(variants=("onnx",), quantization="int8")) == ("onnx", "onnx-int8")
