"""The gate's error rates: what counts as sound and bad, the intervals, what reports and pages show of them, and a small run."""

from __future__ import annotations

import ast
import itertools
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks._gate import curve, drawing, faults, forms, publishing, truth
from benchmarks._gate.curve import BAD, GRAY, SOUND, Record
from daemon.contract.formats.catalog import catalog
from handlers.report.content import gate

LIMIT = catalog().thresholds["pytorch"].kl


def record(fault: str | None = None, *, beyond: float = 0.0, kl: float | None = 0.0, sure: float = 0.0, **values: Any) -> Record:
    measured = {"flips": [beyond, sure], "beyond": [beyond, sure], "kl": None if kl is None else [kl, sure]}
    return {
        "fault": fault, "strength": 1.0, "variant": "pytorch", "form": "as merged", "kind": "qwen3", "family": "trained decoders",
        "adapter": "usual", "truth": measured,
        "verdict": "passed", "undecided": False, "prompts": 6, "seconds": 1.0, **values,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("judged", "label"),
    [
        (record(), SOUND),
        (record(kl=None), SOUND),
        (record(kl=2 * LIMIT), BAD),
        (record(kl=LIMIT, sure=LIMIT / 2), GRAY),
        (record(beyond=0.02), SOUND),
        (record(truth={"kl": [0.0, 0.0], "flips": [0.06, 0.0]}), SOUND),
        (record(truth={"kl": [0.0, 0.0], "flips": [0.08, 0.01]}), SOUND),
        (record(truth={"kl": [0.0, 0.0], "flips": [0.09, 0.01]}), GRAY),
        (record(truth={"kl": [0.6 * LIMIT, 0.0], "flips": [0.06, 0.0]}), GRAY),
        (record(truth={"kl": [0.0, 0.0], "tuned": 0.8}), SOUND),
        (record(truth={"kl": [0.0, 0.0], "tuned": 0.7}), GRAY),
        (record("noise", beyond=0.02), BAD),
        (record("noise", beyond=0.02, sure=0.011), GRAY),
        (record("noise", beyond=0.009), GRAY),
        (record("noise", kl=2 * LIMIT), BAD),
        (record("template", truth={"reads_otherwise": True}), BAD),
        (record("template", truth={"reads_otherwise": False}), GRAY),
    ],
)
def test_only_what_is_certain_counts_as_sound_or_bad(judged: Record, label: str) -> None:
    assert curve.label(judged) == label


@pytest.mark.parametrize(
    ("hits", "of", "low", "high"),
    [(0, 10, 0.0, 0.3085), (5, 10, 0.1871, 0.8129), (10, 10, 0.6915, 1.0), (3, 300, 0.00207, 0.02895), (0, 1000, 0.0, 0.003682),
     (2500, 5000, 0.48604, 0.51396)],
)  # fmt: skip
def test_intervals_are_those_of_published_tables(hits: int, of: int, low: float, high: float) -> None:
    assert curve.clopper_pearson(hits, of) == pytest.approx((low, high), rel=2e-3, abs=2e-4)


@given(st.integers(1, 3000).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_an_interval_holds_its_share(counted: tuple[int, int]) -> None:
    hits, of = counted
    low, high = curve.clopper_pearson(hits, of)
    assert 0 <= low <= hits / of <= high <= 1


def test_rates_are_of_what_they_are_about() -> None:
    records = [
        record(), record(verdict="failed"), record("noise", beyond=0.5, verdict="failed", prompts=12), record("bits", beyond=0.5),
        record("noise", beyond=0.001, undecided=True),
    ]  # fmt: skip
    figures = curve.figures(records)
    assert (figures["false_accept_percent"], figures["false_reject_percent"], figures["undecided_percent"]) == (50.0, 50.0, 20.0)
    assert (figures["median_prompts"], figures["whole"]["most_prompts"], figures["whole"]["gray"]) == (6, 12, 1)
    assert figures["by_fault"]["bits"]["false_accept"]["share"] == 1.0 and figures["by_fault"]["noise"]["false_accept"]["share"] == 0.0
    assert curve.wrong(records) == [records[1], records[3]]
    points = {point["from"]: point["share"] for point in figures["operating_curve"]["exact"]}
    assert points == {0.001: 1.0, 0.3: 0.5}


def test_tighter_limits_are_judged_by_what_the_gate_saw() -> None:
    sound, bad = record(kl=0.1 * LIMIT), record("noise", beyond=0.5)
    sound["kl"], bad["kl"] = 0.15 * LIMIT, 0.3 * LIMIT
    rows = {row["part"]: (row["false_accept"]["share"], row["false_reject"]["share"]) for row in curve.tightened([sound, bad])["exact"]}
    assert rows == {1.0: (1.0, 0.0), 0.5: (1.0, 0.0), 0.2: (0.0, 0.0), 0.1: (0.0, 1.0)}


def test_an_error_rate_of_nothing_is_none() -> None:
    figures = curve.figures([record("noise", beyond=0.001)])
    assert figures["false_accept_percent"] is None and figures["false_reject_percent"] is None


def test_what_reports_show_is_what_the_page_and_its_figure_show() -> None:
    measured, page = gate.measured(), publishing.PAGE.read_text()
    assert measured.artifacts >= 1000
    for rate in (measured.false_accept, measured.false_reject, measured.undecided):
        assert rate.share == pytest.approx(rate.hits / rate.of, abs=1e-5)
        assert rate.interval == pytest.approx(curve.clopper_pearson(rate.hits, rate.of), abs=1e-4)
    row = next(line for line in page.split(publishing.BEGIN)[1].splitlines() if line.startswith("| all |"))
    cells = [f"{rate.hits} of {rate.of} (" for rate in (measured.false_accept, measured.false_reject, measured.undecided)]
    assert row.startswith(f"| all | {measured.artifacts} |") and all(cell in row for cell in cells)
    drawn = ET.parse(publishing.FIGURE).getroot()
    classes = {title.text.split(":")[0] for title in drawn.iter("{http://www.w3.org/2000/svg}title") if ":" in (title.text or "")}
    assert classes == set(curve.CLASSES)


def test_the_figure_has_a_mark_for_each_class_of_mutants() -> None:
    records = [record("noise", beyond=share, variant=name) for share in (0.0, 0.02) for name in ("pytorch", "onnx-int8", "onnx-int4")]
    drawn = ET.fromstring(drawing.drawn(curve.operating_curve(records)))
    marks = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")][1:]
    assert marks == [f"{name}: 1 of 1 pass" for name in curve.CLASSES for _ in range(2)]


@pytest.mark.parametrize("module", [truth, faults])
def test_the_truth_and_what_it_is_about_share_no_code_with_the_gate(module: Any) -> None:
    tree = ast.parse(Path(module.__file__).read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in imported if name.split(".")[0] in ("handlers", "daemon", "tests")]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_small_run_fails_whole_faults_and_passes_what_is_sound(tmp_path: Path) -> None:
    path, program = tmp_path / "gate.jsonl", publishing.PAGE.parent.parent / "benchmarks" / "gate.py"
    command = [sys.executable, str(program), "--quick", "--records", str(path), "--json", str(tmp_path / "gate.json")]
    subprocess.run(command, check=True, capture_output=True)
    records = [json.loads(line) for line in path.read_text().splitlines()]
    figures = json.loads((tmp_path / "gate.json").read_text())["figures"]
    assert len(records) >= 60 and figures["whole"]["sound"] >= 15 and figures["whole"]["bad"] >= 10
    assert not [each for each in records if each["fault"] is None and each["form"] == "as merged" and each["verdict"] != "passed"]
    large = [each for each in records if "beyond" in each["truth"] and each["truth"]["beyond"][0] > 0.3]
    assert large and not [each for each in large if each["verdict"] == "passed"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_form_whose_answers_hide_its_fault_fails_by_what_is_stored_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import gate as benchmark
    from benchmarks._gate import judging, subjects

    kind = next(kind for kind in subjects.kinds() if kind.name == "one layer, trained")
    subject = subjects.make(kind, 2, tmp_path / "subject", kind.name)
    gate = judging.Gate(subject, tmp_path / "gate", list(itertools.islice(subject.texts, benchmark.READ)))
    for form, variant in forms.FORMS.items():
        for fault, strength in ((None, 0.0), ("noise in one matrix", 0.3)):
            folder = benchmark.made(subject, benchmark.Artifact(form, fault, strength), tmp_path / "artifact")
            assert folder is not None
            with capsys.disabled():  # what begins as a copy of this process answers by its standard output
                told = gate.judged(variant, folder).check
            assert told.verdict == ("failed" if fault else "passed"), (form, fault, told.reasons)
            if fault and form != forms.PLAIN:
                assert "its weights" in told.reasons[0], (form, told.reasons)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_artifact_gets_the_same_verdict_in_a_process_of_its_own(tmp_path: Path) -> None:
    from benchmarks import gate as benchmark
    from benchmarks._gate import judging, subjects

    kind = next(kind for kind in subjects.kinds() if kind.name == "one layer, random")
    subject = subjects.make(kind, 0, tmp_path / "subject", kind.name)
    texts = list(itertools.islice(subject.texts, benchmark.READ))
    here, apart = (judging.Gate(subject, tmp_path / f"gate{way}", texts, apart=bool(way)) for way in range(2))
    for artifact in (benchmark.Artifact("as merged"), benchmark.Artifact("as merged", "noise", 0.1)):
        folder = benchmark.made(subject, artifact, tmp_path / "artifact")
        assert folder is not None
        mine, theirs = (judging.shown(way.judged("pytorch", folder).check) for way in (here, apart))
        assert mine["verdict"] == theirs["verdict"] == ("failed" if artifact.fault else "passed")
        assert mine["decisions"] == theirs["decisions"]
        assert mine["kl"] == pytest.approx(theirs["kl"], rel=0.01, abs=1e-9)
