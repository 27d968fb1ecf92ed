"""What an export holds in memory: the weights once, and not at all where nobody needs them any more."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from handlers.onnx.graphs import graphset
from handlers.onnx.graphs.sessions import MappedWeights, open_session
from handlers.onnx.optimize.random_inputs import InputShape, Maker
from tests.onnx.conftest import SMALL, Exported, make_model

WIDTH = 80
"""A hidden size that no other test's model has."""


# R6.2
@pytest.mark.slow
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


@pytest.fixture
def feeds(qwen3: Exported) -> dict[str, np.ndarray]:
    """Inputs of two rows of five tokens."""
    return Maker(graphset.read(qwen3.folder).graphs[0], {"vocab_size": 320}).make(InputShape(2, 5), 3).feeds


def times_mapped(path: Path) -> int:
    """How many of this process's mappings show the file; onnxruntime, and each tensor by itself, would make another."""
    return sum(line.rstrip().endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def test_sessions_that_share_weights_map_their_file_once_and_answer_alike(apart: Path, feeds: dict[str, np.ndarray]) -> None:
    weights = MappedWeights()
    sessions = [open_session(apart, 1, weights) for _ in range(3)]
    first, *others = [session.run(None, feeds) for session in sessions]
    assert times_mapped(apart.with_name("model.onnx.data")) == 1
    wanted = open_session(apart, 1).run(None, feeds)
    assert np.abs(first[0] - wanted[0]).max() <= 1e-5
    for other in others:
        assert all(np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_a_session_keeps_its_weights_itself_and_lets_them_go_with_it(apart: Path, feeds: dict[str, np.ndarray]) -> None:
    session = open_session(apart, 1, MappedWeights())
    gc.collect()
    wanted = open_session(apart, 1).run(None, feeds)[0]
    assert np.abs(session.run(None, feeds)[0] - wanted).max() <= 1e-5
    del session
    assert times_mapped(apart.with_name("model.onnx.data")) == 0
