"""An artifact that would be wrong on another processor fails on every one, and what the check ran on is told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from daemon.contract import cpu
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.figures import CheckFigures
from daemon.contract.jobs.messages import Verdict
from handlers.graphs import integer_products
from handlers.validate import findings
from handlers.validate.checks.examination import Examination
from handlers.validate.folders import portability
from handlers.validate.verdict import judge
from tests.portability import graphs
from tests.validate.test_verdicts import AT_THE_LIMITS, LIMITS


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose graph has int8 weights of the whole range."""
    from handlers.onnx.quantize.rewriters import int8_rewriter

    with monkeypatch.context() as patch:
        patch.setattr(int8_rewriter, "_largest_pairs", lambda block: np.zeros(block.shape[1], np.float32))
        graphs.store(graphs.dynamic(graphs.hostile_weights()), tmp_path / "whole", "model", [])
    return tmp_path / "whole"


def test_full_range_weights_fail_the_artifact_whatever_processor_the_check_runs_on(whole: Path) -> None:
    found = portability.check(whole)
    figures, fault = found.figures, found.fault
    assert fault is not None and "overflow on processors without VNNI" in fault
    assert figures.needs == "a processor with VNNI, or one that is not x86-64"
    assert figures.integer_products is not None and figures.integer_products.overflowing_products == 1
    examination = Examination(CheckFigures(**AT_THE_LIMITS).plus(**figures.given), findings=[findings.portability(fault, "onnx-int8")])
    check = judge("onnx-int8", catalog().variants["onnx-int8"].limits, examination, LIMITS)
    assert check.verdict is Verdict.FAILED and check.reasons == (fault,)
    assert check.remedy is not None and "export onnx-int8 again" in check.remedy and "session.x64quantprecision" in check.remedy


def test_what_the_stages_write_passes_and_says_what_it_needs(tmp_path: Path) -> None:
    graphs.store(graphs.dynamic(graphs.hostile_weights()), tmp_path / "int8", "model", [])
    found = portability.check(tmp_path / "int8")
    figures, fault = found.figures, found.fault
    assert fault is None and figures.needs == "any x86-64 or ARM64 processor"
    products = figures.integer_products
    assert products is not None and products.largest_pair_sum is not None and products.largest_pair_sum <= products.pair_sum_limit


def test_what_can_not_be_read_is_not_vouched_for(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    found = portability.check(tmp_path)
    figures, fault = found.figures, found.fault
    assert figures == CheckFigures() and fault is not None and "it is not known whether" in fault
    (tmp_path / "model.onnx").unlink()
    assert portability.check(tmp_path) == portability.Inspected()


def test_what_a_processor_may_do_otherwise_is_part_of_what_an_artifact_needs(tmp_path: Path) -> None:
    graphs.store(graphs.plain(graphs.hostile_weights()), tmp_path / "plain", "model", [])
    assert portability.check(tmp_path / "plain").figures == CheckFigures(needs="any x86-64 or ARM64 processor")
    blocks = portability.check(tmp_path / "plain", "blocks").figures
    assert blocks.needs.startswith("any x86-64 or ARM64 processor; its runtime may round activations")


def test_the_command_for_users_says_it_in_a_sentence(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert integer_products.main([str(whole)]) == 1
    assert "1 of 1 integer products overflow" in capsys.readouterr().out
    graphs.store(graphs.dynamic(graphs.hostile_weights()), tmp_path / "int8", "model", [])
    for path in (tmp_path / "int8", tmp_path / "int8" / "model.onnx"):
        assert integer_products.main([str(path)]) == 0
        assert capsys.readouterr().out == "1 integer products, none overflows 16 bits: right on any x86-64 or ARM64 processor\n"
    graphs.store(graphs.plain(graphs.hostile_weights()), tmp_path / "fp32", "model", [])
    assert integer_products.main([str(tmp_path / "fp32")]) == 0
    assert "no int8 products" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "is not there"),
        (b"", "empty or cut short"),
        (b"no graph", "can't be read as an ONNX graph"),
        ("folder", "name the folder of one"),
    ],
)
def test_what_is_no_graph_is_told_apart_from_what_overflows(
    tmp_path: Path, content: bytes | str | None, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    if content is not None:
        (folder / "onnx-int8").mkdir(parents=True)
        (folder / "onnx-int8" / "model.onnx").touch()
    if isinstance(content, bytes):
        (folder / "model.onnx").write_bytes(content)
    assert integer_products.main([str(folder), "--json"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and sentence in told.err and len(told.err.splitlines()) == 1


INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
model name\t: Intel(R) Core(TM) i7-4770
flags\t\t: fpu sse4_1 avx f16c fma avx2

processor\t: 1
vendor_id\t: GenuineIntel
model name\t: Intel(R) Core(TM) i7-4770
flags\t\t: fpu sse4_1 avx f16c fma avx2 avx512f
"""
ARM = "processor\t: 0\nFeatures\t: fp asimd asimdhp asimddp\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


def test_a_processor_is_what_all_of_its_cores_can() -> None:
    intel = cpu.described(INTEL, "x86_64")
    assert (intel.vendor, intel.model) == ("GenuineIntel", "Intel(R) Core(TM) i7-4770")
    assert intel.features == ("sse4_1", "avx", "f16c", "fma", "avx2")
    arm = cpu.described(ARM, "aarch64")
    assert (arm.vendor, arm.model, arm.features) == ("0x41", None, ("asimd", "asimdhp", "asimddp"))
    assert intel.key != arm.key and intel.key != cpu.described(INTEL.replace("Intel", "AMD"), "x86_64").key
    assert json.dumps(arm.facts)
    assert cpu.described("", "riscv64").features == ()


def test_what_a_processor_can_not_vouch_for_is_said_by_the_kind_of_arithmetic() -> None:
    intel, arm = cpu.described(INTEL, "x86_64"), cpu.described(ARM, "aarch64")
    assert cpu.doubt("float", intel) is cpu.doubt("integers", intel) is None
    assert "add up in fp16" in (cpu.doubt("half", intel) or "") and cpu.doubt("half", arm) is None
    assert "round activations" in (cpu.doubt("blocks", intel) or "")
