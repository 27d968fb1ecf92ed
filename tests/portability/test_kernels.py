"""The quantized products are right in every kernel that onnxruntime has for x86-64: run here, whichever this processor would take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from daemon.contract import cpu
from handlers.graphs.integer_products import examine
from handlers.onnx.quantize.rewriters import int8_rewriter
from handlers.onnx.quantize.rewriters.block_quantization import Scheme
from tests.portability import graphs
from tests.portability.arithmetic import rounded_to_blocks
from tests.portability.conftest import Answers
from tests.portability.masking import LEVELS

RunAs = Callable[[str, Path], Answers]
SATURATING = ("avx2", "avx512")
VNNI = {"avx_vnni", "avx512_vnni", "amx_int8"}
SCHEMES = [Scheme(bits, 32, symmetric) for bits in (4, 8) for symmetric in (True, False)]
WIDEST = 20.0
"""Largest value that the static graph's range has room for."""


def wrong(found: np.ndarray, wanted: np.ndarray) -> float:
    """Largest difference in standard deviations of what is right."""
    return float(np.abs(found - wanted).max() / wanted.std())


@pytest.mark.parametrize("level", LEVELS)
def test_integer_products_are_exact_in_every_kernel(run_as: RunAs, tmp_path: Path, level: str) -> None:
    weights, calls, folder = graphs.hostile_weights(), graphs.activations(), tmp_path / "int8"
    made = {"dynamic": graphs.dynamic(weights), "static": graphs.static(weights, -2.0, WIDEST)}
    for name, model in made.items():
        graphs.store(model, folder, name, calls)
    answers = run_as(level, folder)
    for number, call in enumerate(calls):
        assert wrong(answers[f"dynamic.{number}"]["y"], graphs.right_answer(made["dynamic"], call)) < 1e-5
        assert wrong(answers[f"static.{number}"]["y"], graphs.right_answer(made["static"], call, -2.0, WIDEST)) < 1e-5


@pytest.mark.parametrize("level", LEVELS)
def test_products_of_blocks_are_right_at_each_accuracy_level_in_every_kernel(run_as: RunAs, tmp_path: Path, level: str) -> None:
    """At level 4 activations are rounded by blocks where there is a kernel for it, else computed in fp32: nothing between is right."""
    weights, calls, folder = graphs.hostile_weights(), graphs.activations(), tmp_path / "blocks"
    for number, scheme in enumerate(SCHEMES):
        for accuracy in (0, 1, 4):
            graphs.store(graphs.blocks(weights, scheme, accuracy), folder, f"{number}-{accuracy}", calls)
    answers = run_as(level, folder)
    for number, scheme in enumerate(SCHEMES):
        meant = graphs.dequantized(weights, scheme)
        for place, call in enumerate(calls):
            exact, rounded = call @ meant, rounded_to_blocks(call, scheme.block_size) @ meant
            for accuracy in (0, 1, 4):
                found = answers[f"{number}-{accuracy}.{place}"]["y"]
                assert min(wrong(found, exact), wrong(found, rounded) if accuracy == 4 else np.inf) < 1e-4, (scheme, accuracy, place)


@pytest.mark.parametrize("level", LEVELS)
def test_weights_of_the_whole_range_are_wrong_just_where_sums_end_at_16_bits(
    run_as: RunAs, tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: these kernels really run, and nothing but the room that the weights leave makes them right."""
    monkeypatch.setattr(int8_rewriter, "_largest_pairs", lambda block: np.zeros(block.shape[1], np.float32))
    model, calls = graphs.dynamic(graphs.hostile_weights()), graphs.activations()
    assert examine([model]).fault is not None
    graphs.store(model, tmp_path / "whole", "dynamic", calls)
    answers = run_as(level, tmp_path / "whole")
    errors = [wrong(answers[f"dynamic.{number}"]["y"], graphs.right_answer(model, call)) for number, call in enumerate(calls)]
    saturates = not VNNI & set(cpu.here().features) if level == "own" else level in SATURATING
    assert min(errors) > 0.1 if saturates else max(errors) < 1e-5, errors
