"""report.json says everything that matters, in a form that other programs can rely on."""

from __future__ import annotations

import importlib.metadata
import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from daemon.contract import units
from daemon.contract.faults.errors import Permanent
from daemon.contract.jobs.messages import ArtifactCheck, AttemptFacts, JobFacts, Verdict
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from handlers.report import schema
from handlers.report.content import gate
from handlers.report.content.build import build
from handlers.report.pages import html, readme
from handlers.report.stage import as_json
from tests.report import facts
from tests.report.facts import report_of

CASES = [facts.succeeded, facts.rejected_int8, facts.failed_int8, facts.failed_merge, facts.unverified, facts.withheld]


def stored(job: JobFacts, folder: Path) -> dict[str, Any]:
    return json.loads(as_json(report_of(job, folder)))


def test_the_schema_in_the_documentation_is_the_models() -> None:
    assert schema.TARGET.read_text(encoding="utf-8") == schema.schema_text(), "run python -m handlers.report.schema"


def test_every_field_of_the_schema_is_described() -> None:
    written = json.loads(schema.schema_text())
    ours = {"Report": written} | {name: part for name, part in written["$defs"].items() if name not in ("Fault", "Fallback", "FileEntry")}
    bare = [
        f"{name}.{field}"
        for name, part in ours.items()
        for field, about in part.get("properties", {}).items()
        if "description" not in about
    ]
    assert bare == []


# R6.3
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_every_report_obeys_the_schema(case: Any, tmp_path: Path) -> None:
    read = json.loads(schema.TARGET.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(read)
    jsonschema.validate(stored(case(), tmp_path), read)


def test_the_schema_refuses_a_report_that_lacks_a_field_or_says_another_status(tmp_path: Path) -> None:
    read = json.loads(schema.TARGET.read_text(encoding="utf-8"))
    for change in ({"status": "fine"}, {"schema_version": 2}, {"artifacts": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(stored(facts.succeeded(), tmp_path) | change, read)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({key: value for key, value in stored(facts.succeeded(), tmp_path).items() if key != "not_verified"}, read)


# R2.3
def test_sizes_before_and_after_stand_beside_each_other(tmp_path: Path) -> None:
    report = report_of(facts.succeeded(), tmp_path)
    assert report.base.size_bytes == facts.BASE_BYTES
    sizes = {artifact.variant: artifact.size_bytes for artifact in report.artifacts}
    assert sizes["onnx-int8"] == 604_000_000 + 11_422_654 + 726
    ratios = {artifact.variant: artifact.size_ratio for artifact in report.artifacts}
    assert ratios["onnx-int8"] == round(sizes["onnx-int8"] / facts.BASE_BYTES, 4)
    assert [len(file.sha256) for file in report.artifacts[0].files] == [64, 64, 64]


def test_without_the_bases_size_there_is_no_ratio_rather_than_a_wrong_one(tmp_path: Path) -> None:
    job = facts.job(
        facts.done("merge", 0, 1), facts.done("pytorch", 1, 1, sizes=(10,)), facts.done("merged", 2, 1, checks=(facts.check("pytorch"),))
    )
    report = report_of(job, tmp_path)
    assert report.base.size_bytes is None
    assert report.artifacts[0].size_bytes == 10 and report.artifacts[0].size_ratio is None


def test_stages_carry_their_times_memory_attempts_and_fallbacks(tmp_path: Path) -> None:
    report = report_of(facts.succeeded(), tmp_path)
    assert [stage.name for stage in report.stages] == [
        "merge", "pytorch", "onnx", "onnx-int8", "reference", "merged", "check-onnx", "check-onnx-int8",
    ]  # fmt: skip
    onnx = report.stages[2]
    assert [(attempt.outcome, attempt.seconds) for attempt in onnx.attempts] == [("retryable", 9.0), ("succeeded", 30.0)]
    assert onnx.attempts[0].fault == facts.OUT_OF_MEMORY and onnx.fault is None
    assert (onnx.seconds, onnx.peak_rss_bytes, onnx.estimated_bytes) == (30.0, 1_600_000_000, 2_100_000_000)
    assert report.fallbacks == (("onnx", facts.FALLBACK),)
    assert report.wall_seconds == 96.0
    assert onnx.cpu_seconds == 60.0
    spent = {stage.name: stage.cpu_seconds for stage in report.stages}
    assert report.cpu_seconds == sum(spent.values())
    checks = [spent[name] for name in ("reference", "merged", "check-onnx", "check-onnx-int8")]
    assert report.checking_share == round(sum(checks) / sum(spent.values()), 4)
    assert [(warning.source, warning.text) for warning in report.warnings] == [("onnx-int8", "1 MatMul has no constant weight")]


def test_each_report_names_how_often_its_checks_are_wrong(tmp_path: Path) -> None:
    report = report_of(facts.succeeded(), tmp_path)
    assert report.gate == gate.measured() and stored(facts.succeeded(), tmp_path)["gate"]["artifacts"] == report.gate.artifacts
    rates = [report.gate.false_accept, report.gate.false_reject]
    shown = [units.percent(share) for rate in rates for share in (rate.share, rate.interval[1])]
    for text in (html.render(report), readme.render(report)):
        line = next(line for line in text.splitlines() if "How often these checks are wrong" in line)
        assert f"tried on {report.gate.artifacts} artifacts" in line
        assert [line.index(share) for share in shown] and line.index(shown[0]) < line.index("faulty") < line.index("sound")
    earlier = report.model_copy(update={"gate": None})
    assert all("How often these checks are wrong" not in text for text in (html.render(earlier), readme.render(earlier)))


def test_processor_time_that_was_not_measured_is_not_stated(tmp_path: Path) -> None:
    job = facts.succeeded()
    stages = [
        stage.model_copy(update={"result": stage.result and stage.result.model_copy(update={"cpu_seconds": 0.0})}) for stage in job.stages
    ]
    report = report_of(job.model_copy(update={"stages": tuple(stages)}), tmp_path)
    assert (report.cpu_seconds, report.checking_share, report.stages[0].cpu_seconds) == (None, None, None)
    assert "of it for the checks" not in html.render(report)
    assert "of it for the checks" in html.render(report_of(facts.succeeded(), tmp_path))


def test_a_stage_that_succeeded_at_its_second_attempt_is_no_failure(tmp_path: Path) -> None:
    assert report_of(facts.succeeded(), tmp_path).failures == ()


# R4.5
def test_a_rejected_artifact_is_not_published_and_says_why_and_what_to_do(tmp_path: Path) -> None:
    report = report_of(facts.rejected_int8(), tmp_path)
    rejected = report.artifacts[2]
    assert report.status == "partial"
    assert (rejected.verdict, rejected.published, rejected.folder) == (Verdict.FAILED, False, None)
    (failure,) = report.failures
    assert failure.variant == "onnx-int8" and facts.REJECTION_REASON in failure.sentence and failure.remedy == facts.REJECTION_REMEDY
    assert report.verdict == "Partial: 2 of 3 artifacts passed; onnx-int8 failed and is not published."


# R3.5
def test_a_failed_stage_gives_one_failure_with_its_cause_remedy_and_log(tmp_path: Path) -> None:
    report = report_of(facts.failed_int8(), tmp_path)
    (failure,) = report.failures
    assert (failure.source, failure.code, failure.log) == ("onnx-int8", "out-of-memory", "/var/log/ckptd/onnx-int8.log")
    assert failure.remedy == facts.OUT_OF_MEMORY.remedy
    assert failure.sentence == "Could not quantize the graph: the kernel ended the child at 6.1 GB."


def test_a_failed_merge_gives_one_failure_and_not_one_for_each_artifact(tmp_path: Path) -> None:
    report = report_of(facts.failed_merge(), tmp_path)
    assert report.status == "failed" and report.published == ()
    assert [failure.source for failure in report.failures] == ["merge"]
    assert facts.BASE_MISSING.cause in report.verdict


def test_an_artifact_lost_without_any_fault_is_a_failure_of_its_own(tmp_path: Path) -> None:
    job = facts.failed_int8()
    stages = tuple(facts.lost("onnx-int8", None, state="cancelled", start=None) if s.name == "onnx-int8" else s for s in job.stages)
    (failure,) = report_of(job.model_copy(update={"stages": stages}), tmp_path).failures
    assert failure.variant == "onnx-int8" and "cancelled" in failure.sentence and failure.remedy


def test_unverified_artifacts_are_published_and_called_so(tmp_path: Path) -> None:
    report = report_of(facts.unverified(), tmp_path)
    assert report.status == "partial" and all(artifact.published for artifact in report.artifacts)
    assert [(gap.what, gap.why) for gap in report.not_verified] == [
        (f"{variant}: everything", "it could not be checked: no memory") for variant in ("pytorch", "onnx", "onnx-int8")
    ]


def test_what_nobody_verified_is_not_published_unless_the_configuration_says_so(tmp_path: Path) -> None:  # R4.5
    report = report_of(facts.withheld(), tmp_path / "none")
    assert report.status == "failed" and not any(artifact.published for artifact in report.artifacts)
    assert [(one.source, one.remedy) for one in report.failures] == [("reference", "free memory and retry")]
    one = report_of(facts.unverified(("onnx",)), tmp_path / "one")
    assert [artifact.variant for artifact in one.artifacts if artifact.published] == ["onnx"]
    assert one.verdict == (
        "Partial: 0 of 3 artifacts passed; onnx is published unverified; pytorch, onnx-int8 are not published, because no check could run."
    )
    bare = ArtifactCheck(variant="onnx", verdict=Verdict.UNVERIFIED, reasons=("no engine here can run it",))
    job = facts.made_all(facts.check("pytorch"), bare, facts.check("onnx-int8"))
    (failure,) = report_of(job, tmp_path / "engine").failures
    assert failure.sentence == "The artifact onnx was made and is not published: no engine here can run it."
    assert "validate.publish_unverified" in failure.remedy


# R4.3
def test_a_check_that_was_left_out_is_listed_as_not_verified(tmp_path: Path) -> None:
    assert report_of(facts.succeeded(), tmp_path / "all").not_verified == ()
    check = facts.check("onnx")
    figures = {name: value for name, value in check.figures.items() if name not in ("tokens_per_second", "cache_error_max_absolute")}
    silent = Work(export=ExportOptions(variants=("onnx",)), validation=ValidateOptions(speed_tokens=0))
    job = facts.made_all(check.model_copy(update={"figures": figures}), work=silent)
    assert [(gap.what, gap.why) for gap in report_of(job, tmp_path / "some").not_verified] == [
        ("onnx: speed", "validate.speed_tokens is 0"),
        ("onnx: decoding with the KV cache", "validation reports no figure for it"),
    ]


# R4.4
def test_the_figures_of_the_comparison_stand_beside_their_limits(tmp_path: Path) -> None:
    artifact = report_of(facts.rejected_int8(), tmp_path).artifacts[2]
    assert (artifact.figures["agreement"], artifact.limits["agreement"]) == (0.71, 0.85)
    assert artifact.figures["sample"]["text"] != artifact.figures["sample"]["reference"]


def test_figures_that_are_not_finite_become_null_and_are_named(tmp_path: Path) -> None:
    limits = ValidateOptions().thresholds
    unlimited = limits | {"onnx": limits["onnx"].model_copy(update={"kl": math.inf})}
    work = Work(export=ExportOptions(variants=("onnx",)), validation=ValidateOptions(thresholds=unlimited))
    job = facts.made_all(facts.check("onnx", kl=math.nan, error_max=math.inf), work=work)
    read = stored(job, tmp_path)
    assert read["artifacts"][0]["figures"]["kl"] is None and read["artifacts"][0]["limits"]["kl"] is None
    told = [warning["text"] for warning in read["warnings"] if warning["source"] == "report"]
    assert "artifacts.onnx.figures.kl was nan, which JSON cannot hold: stored as null" in told
    assert "artifacts.onnx.figures.error_max was inf, which JSON cannot hold: stored as null" in told


def test_texts_that_utf8_cannot_hold_or_that_reorder_a_line_are_shown_as_escapes(tmp_path: Path) -> None:
    job = facts.succeeded(checkpoint=facts.checkpoint(metadata={"note": "bad\udcffname"}), warnings=("\x1b[31mred", "a\u202eb"))
    read = stored(job, tmp_path)
    assert read["checkpoint"]["metadata"]["note"] == "bad\\udcffname"
    assert [warning["text"] for warning in read["warnings"][:2]] == ["\\u001b[31mred", "a\\u202eb"]


def test_versions_and_machine_are_told_and_two_versions_of_a_library_are_both_named(tmp_path: Path) -> None:
    job = facts.succeeded()
    newer = job.stages[2].result.model_copy(update={"versions": {"torch": "2.14.0"}})
    stages = tuple(stage.model_copy(update={"result": newer}) if stage.name == "onnx" else stage for stage in job.stages)
    report = report_of(job.model_copy(update={"stages": stages}), tmp_path)
    assert report.versions["torch"] == "2.13.0 and 2.14.0"
    assert report.versions["ckptd"] == importlib.metadata.version("ckptd")
    assert report.machine.memory_bytes > 0 and report.machine.python.startswith("3.")


def test_the_checks_processor_and_what_each_artifact_needs_are_told(tmp_path: Path) -> None:  # R4.4
    report = report_of(facts.succeeded(), tmp_path)
    assert report.checked_on == facts.CHECKED_ON
    assert {one.variant: one.needs for one in report.artifacts} == {"pytorch": None, "onnx": facts.NEEDS, "onnx-int8": facts.NEEDS}
    text = readme.render(report)
    assert "| Checked on | Xeon \\| Gold x86_64 avx2 avx512_vnni |\n" in text
    assert "\nonnx, onnx-int8: for any x86-64 or ARM64 processor.\n" in text
    page = html.render(report)
    assert "Checked on Xeon | Gold (x86_64 avx2 avx512_vnni). onnx, onnx-int8: for any x86-64 or ARM64 processor." in page
    silent = report.model_copy(update={"checked_on": {}, "artifacts": ()})
    assert "Checked on" not in readme.render(silent) and ": for " not in readme.render(silent)


def test_unreadable_times_give_no_duration_rather_than_an_error(tmp_path: Path) -> None:
    report = report_of(facts.succeeded(started="yesterday"), tmp_path)
    assert report.wall_seconds is None


def test_the_hours_before_an_export_was_tried_again_are_no_time_that_it_took(tmp_path: Path) -> None:
    job = facts.succeeded(started=facts.at(-7200))
    merge, *others = job.stages
    failed = AttemptFacts(number=1, strategy="default", outcome="permanent", started=facts.at(-7200), ended=facts.at(-7195))
    again = merge.model_copy(update={"attempts": (failed, *merge.attempts)})
    report = report_of(job.model_copy(update={"stages": (again, *others)}), tmp_path)
    assert report.wall_seconds == 96.0 + 5.0


def test_what_it_waited_for_before_its_first_attempt_is_no_time_that_it_took(tmp_path: Path) -> None:
    """A base that was not there, for example: the export began, and no stage could."""
    assert report_of(facts.succeeded(started=facts.at(-300)), tmp_path).wall_seconds == report_of(facts.succeeded(), tmp_path).wall_seconds


def test_a_job_file_without_facts_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match=r"Could not write the report: .* Fix: .*") as refusal:
        build(facts.context(None, tmp_path))
    assert refusal.value.fault.code == "no-job-facts"


# R2.6
def test_the_report_says_what_was_compared_on_and_calibrated_with(tmp_path: Path) -> None:
    comparison = {"sources": {"/data/train (validate.data)": 6}, "texts": 6, "tokens": 700, "shortest": 8, "median": 90, "p95": 300,
                  "longest": 301, "cut": 2, "scripts": {"Latin": 0.93, "Han": 0.07}, "unknown_share": 0.004, "byte_share": None,
                  "different_tokens": 210, "vocabulary_share": 0.0014, "digest": "ab" * 32}  # fmt: skip
    calibration = comparison | {"sources": {"/data/train (validate.data)": 30, "built-in texts": 2}, "texts": 32, "cut": 0}
    stages = list(facts.succeeded().stages)
    stages.append(facts.done("onnx-int8-static", 90, 3, figures={"calibration": calibration, "nodes": 3}))
    place = next(number for number, stage in enumerate(stages) if stage.name == "reference")
    assert stages[place].result is not None
    told = stages[place].result.model_copy(update={"figures": {**stages[place].result.figures, "texts": comparison}})
    stages[place] = stages[place].model_copy(update={"result": told})
    job = facts.succeeded().model_copy(update={"stages": tuple(stages)})
    report = report_of(job, tmp_path)
    assert report.texts == {"comparison": comparison, "calibration": {"onnx-int8-static": calibration}}
    jsonschema.validate(stored(job, tmp_path), json.loads(schema.TARGET.read_text(encoding="utf-8")))
    page = html.render(report)
    for shown in ("6 of …/train (validate.data)", "30 of …/train (validate.data); 2 of built-in texts", "Latin 93 %, Han 7 %",
                  "8 / 90 / 300 / 301", "0.4 %", "2 cut", "calibration of onnx-int8-static"):  # fmt: skip
        assert shown in page, shown
    for part in ("comparison", "calibration"):
        page = html.render(report.model_copy(update={"texts": {part: report.texts[part]}}))
        assert ("6 of …/train" in page, "30 of …/train" in page) == (part == "comparison", part == "calibration")
    assert report_of(facts.succeeded(), tmp_path).texts == {}


def test_scores_of_base_live_model_and_artifacts_stand_beside_each_other(tmp_path: Path) -> None:
    stages = []
    for stage in facts.succeeded().stages:
        result = stage.result
        if result is not None and stage.name == "reference":
            told = {"scores": {"texts": 40, "accuracy": 0.91, "macro_f1": 0.9}, "base_scores": {"texts": 40, "accuracy": 0.33}}
            result = result.model_copy(update={"figures": {**result.figures, "reference": {**result.figures["reference"], **told}}})
        if result is not None and stage.name == "check-onnx-int8":
            figures = {"scores": {"texts": 40, "accuracy": 0.87, "macro_f1": 0.86}, "completion": {"agreement": 0.975, "kl": 0.004}}
            result = result.model_copy(update={"checks": (facts.check("onnx-int8", **figures),)})
        stages.append(stage.model_copy(update={"result": result}))
    job = facts.succeeded().model_copy(update={"stages": tuple(stages)})
    report = report_of(job, tmp_path)
    assert [name for name, _, _ in report.scored] == ["base", "live", "onnx-int8"]
    page = html.render(report)
    rows = [row for row in page.split("<tr>") if row.startswith('<th scope="row">onnx-int8</th><td class="right">40</td>')]
    assert len(rows) == 1 and "0.87" in rows[0] and "97.5 %" in rows[0]
    assert "Against the data" in page and "0.91" in page and "0.33" in page
    assert "Macro F1</th>" in page and "chrF</th>" not in page and "From 40 texts, scores are rough" in page
    assert "Against the data" not in html.render(report_of(facts.succeeded(), tmp_path / "none"))


def test_the_divergence_of_a_model_with_one_answer_is_not_told_by_token(tmp_path: Path) -> None:
    plain = report_of(facts.succeeded(), tmp_path)
    for task, unit in ((None, "nats/token"), ("text-generation", "nats/token"), ("text-classification", "nats")):
        report = plain.model_copy(update={"task": task})
        assert f"KL ({unit})" in readme.render(report) and f">KL, {unit}</th>" in html.render(report), task
