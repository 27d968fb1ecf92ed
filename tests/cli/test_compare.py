"""`ckptd compare A B`: two exports side by side."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from daemon.cli.views.comparison import comparison_lines
from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from daemon.operating.monitoring.comparison import compare
from tests.cli.test_bad_input import ckptd, one_sentence

FIGURES = {
    "agreement": 0.9946, "kl": 0.00025, "error_max": 0.0321, "greedy_identical": 5, "greedy_prompts": 6, "tokens_per_second": 100.0,
    "prefill_seconds": 0.004, "load_seconds": 0.5, "peak_rss_bytes": 1 << 30, "speed_over_pytorch": 2.0,
    "scores": {"accuracy": 0.87},
    "sample": {"prompt": "def f(", "reference": "x):\n    return x", "text": "y):\n    return y"},
}  # fmt: skip
REPORT: dict[str, Any] = {
    "export_id": "run-4-aaaa", "status": "succeeded", "wall_seconds": 60.0, "created": "2026-01-01T00:00:00+00:00",
    "checkpoint": {"run": "run", "step": 4, "ending": False, "metadata": {"loss": 2.5, "epoch": 1.0}},
    "base": {"name": "acme/base", "digest": "d"}, "machine": {"cpu": "A CPU"},
    "reference": {"adapter": {"kl": 0.5, "agreement": 0.4}},
    "artifacts": [{"variant": "onnx", "verdict": "passed", "size_bytes": 4 << 20, "size_ratio": 1.0, "reasons": [], "figures": FIGURES}],
}  # fmt: skip


def export(folder: Path, **changes: Any) -> Path:
    """An export's folder with a report in which some values are others; a key names the way with dots."""
    report = deepcopy(REPORT)
    for key, value in changes.items():
        place: Any = report
        *way, last = key.split("__")
        for name in way:
            place = place[int(name) if isinstance(place, list) else name]
        place[last] = value
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(report))
    return folder


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    faster = {**FIGURES, "tokens_per_second": 150.0, "sample": {**FIGURES["sample"], "text": ""}, "perplexity": 9.25}  # type: ignore[dict-item]
    later = {
        "checkpoint__step": 8,
        "checkpoint__metadata__loss": 1.25,
        "artifacts__0__size_bytes": 1 << 20,
        "artifacts__0__figures": faster,
    }
    return export(tmp_path / "a"), export(tmp_path / "b", **later)


def lines_of(state: Path, a: Path, b: Path, width: int | None) -> list[str]:
    return [line.plain for line in comparison_lines(compare(state, str(a), str(b)), width)]


def test_quality_size_speed_and_texts_stand_side_by_side(tmp_path: Path, two: tuple[Path, Path]) -> None:
    lines = [" ".join(line.split()) for line in lines_of(tmp_path, *two, None)]
    assert lines[0] == f"A run step 4: {two[0]}" and lines[1] == f"B run step 8: {two[1]}"
    for row in ("loss 2.5 1.25", "verdict passed passed", "agreement 99.5 % 99.5 %", "size 4.00 MiB 1.00 MiB 0.25 ×",
                "tokens a second 100 150", "same answers 5 of 6 5 of 6", r"A live: x):\n return x", r"A onnx: y):\n return y",
                "perplexity – 9.25", "accuracy 87 % 87 %", "B onnx: (nothing)"):  # fmt: skip
        assert row in lines, (row, lines)
    notes = [line for line in lines if line.startswith("note")]
    assert len(notes) == 1 and "Whether their quality differs can't be said" in notes[0], "such reports have no figures for each text"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_comparison_fits_the_terminal(tmp_path: Path, two: tuple[Path, Path], width: int) -> None:
    assert [line for line in lines_of(tmp_path, *two, width) if cell_len(line) > width] == []


def test_what_keeps_figures_from_being_compared_is_said(tmp_path: Path) -> None:
    other = {"base__digest": "e", "machine__cpu": "Another CPU", "artifacts__0__figures": {**FIGURES, "sample": {"prompt": "import "}}}
    notes = compare(tmp_path, str(export(tmp_path / "a")), str(export(tmp_path / "b", **other))).notes
    assert [note.split(":")[0] for note in notes] == [
        "They have different bases", "They were measured on different processors (A CPU; Another CPU)",
        "They were checked with different prompts",
    ]  # fmt: skip
    assert compare(tmp_path, str(tmp_path / "a"), str(tmp_path / "a")).notes == ("Both are the same export.",)


def test_speeds_that_two_machines_measured_are_no_difference_whatever_machine_made_the_reports(tmp_path: Path) -> None:
    turns = {"speed_over_pytorch": 2.0, "speed_over_pytorch_range": [1.9, 2.1]}
    slower, faster = ({**FIGURES, **turns}, {**FIGURES, "speed_over_pytorch": 4.0, "speed_over_pytorch_range": [3.9, 4.1]})
    a = export(tmp_path / "a", artifacts__0__figures=slower, measured_on={"model": "A node's CPU"})
    same = export(tmp_path / "same", artifacts__0__figures=faster, measured_on={"model": "A node's CPU"})
    other = export(tmp_path / "other", artifacts__0__figures=faster, measured_on={"model": "Another node's CPU"})
    assert compare(tmp_path, str(a), str(same)).differences["onnx"]["speed_over_pytorch"].better == "b"
    comparison = compare(tmp_path, str(a), str(other))
    assert "speed_over_pytorch" not in comparison.differences["onnx"]
    assert "They were measured on different processors (A node's CPU; Another node's CPU): speeds can't be compared." in comparison.notes


def test_a_variant_of_one_alone_is_shown_beside_a_dash(tmp_path: Path) -> None:
    only = export(tmp_path / "b", artifacts=[])
    assert "verdict passed –" in [" ".join(line.split()) for line in lines_of(tmp_path, export(tmp_path / "a"), only, 60)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from(["status", "wall_seconds", "checkpoint__run", "checkpoint__step", "checkpoint__metadata", "base",
                         "machine", "reference", "artifacts__0__figures", "artifacts__0__size_bytes", "artifacts__0__reasons",
                         "artifacts__0__variant"]),
    value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
                       lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2), max_leaves=4),
)  # fmt: skip
def test_a_report_with_odd_values_is_compared_as_far_as_it_goes(tmp_path_factory: pytest.TempPathFactory, key: str, value: object) -> None:
    folder = tmp_path_factory.mktemp("two")
    a, b = export(folder / "a"), export(folder / "b", **{key: value})
    for width in (60, None):
        assert all(width is None or cell_len(line) <= width for line in lines_of(folder, a, b, width))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"artifacts": 3}', "\0", "[" * 100_000])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    export(tmp_path / "a")
    (tmp_path / "a" / "report.json").write_text(text)
    with pytest.raises(UsageError) as refused:
        compare(tmp_path, str(tmp_path / "a"), str(tmp_path / "a"))
    assert refused.value.fault.code == FaultCode.NO_REPORT


def test_the_verb_answers_in_json_and_names_what_is_wrong(tmp_path: Path, two: tuple[Path, Path]) -> None:
    value = json.loads(ckptd(tmp_path, "compare", *two, "--json").stdout)
    assert value["a"]["step"] == 4 and value["b"]["artifacts"]["onnx"]["tokens_per_second"] == 150
    lost = ckptd(tmp_path, "compare", two[0], "gone-4-1234")
    assert lost.returncode == 2 and "'gone-4-1234': there is no such folder, and no job id begins with this" in one_sentence(lost)
    empty = ckptd(tmp_path, "compare", two[0], tmp_path)
    assert empty.returncode == 2 and "it has no report.json" in one_sentence(empty)
