"""What an export holds in memory: the weights once, and not at all where nobody needs them any more."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from handlers.onnx.session import MappedWeights, open_session
from tests.onnx.conftest import SMALL, Exported, make_model

WIDTH = 80
"""A hidden size that no other test's model has."""


# R6.2
def test_no_weight_outlives_the_export(tmp_path: Path, export: Callable[..., Exported]) -> None:
    export(make_model(tmp_path / "model", "Llama", **{**SMALL, "hidden_size": WIDTH}), optimize="none")
    gc.collect()
    real = (torch.Tensor, torch.nn.Parameter)  # those that tracing leaves behind hold no bytes
    kept = [item for item in gc.get_objects() if type(item) in real and item.ndim == 2 and WIDTH in item.shape]
    assert [tuple(item.shape) for item in kept if item.untyped_storage().nbytes()] == []


@pytest.fixture
def apart(qwen3: Exported, tmp_path: Path) -> Path:
    """The folder's graph with its weights in a file."""
    model = ir.load(qwen3.folder / "model.onnx")
    ir.save(model, tmp_path / "model.onnx", external_data="model.onnx.data")
    return tmp_path / "model.onnx"


def feeds(session: onnxruntime.InferenceSession) -> dict[str, np.ndarray]:
    sizes = {"batch": 2, "sequence": 5, "past": 0, "total": 5}
    generator = np.random.default_rng(3)
    made = {}
    for value in session.get_inputs():
        shape = [sizes.get(size, size) for size in value.shape]
        made[value.name] = np.zeros(shape, np.float32) if "float" in value.type else np.ones(shape, np.int64)
    made["input_ids"] = generator.integers(0, 320, (2, 5))
    return made


def times_mapped(path: Path) -> int:
    """How many of this process's mappings show the file; onnxruntime, and each tensor by itself, would make another."""
    return sum(line.rstrip().endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def test_sessions_that_share_weights_map_their_file_once_and_answer_alike(apart: Path) -> None:
    weights = MappedWeights()
    sessions = [open_session(apart, 1, weights) for _ in range(3)]
    inputs = feeds(sessions[0])
    first, *others = [session.run(None, inputs) for session in sessions]
    assert times_mapped(apart.with_name("model.onnx.data")) == 1
    wanted = open_session(apart, 1).run(None, inputs)
    assert np.abs(first[0] - wanted[0]).max() <= 1e-5
    for other in others:
        assert all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_a_session_keeps_its_weights_itself_and_lets_them_go_with_it(apart: Path) -> None:
    session = open_session(apart, 1, MappedWeights())
    gc.collect()
    inputs = feeds(session)
    wanted = open_session(apart, 1).run(None, inputs)[0]
    assert np.abs(session.run(None, inputs)[0] - wanted).max() <= 1e-5
    del session
    assert times_mapped(apart.with_name("model.onnx.data")) == 0
