"""Programs are rewritten for half precision and for devices, and compute what they computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from handlers.coreml.converting import rewriting
from handlers.coreml.converting.folding import TABLE
from handlers.coreml.converting.rewriting import HIDDEN
from handlers.graphs.graphset import Graph, Port

aten = torch.ops.aten
LENGTH, WIDTH = 24, 8


class Norm(torch.nn.Module):
    def __init__(self, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon)


class Rotary(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 1.0 / (10000.0 ** (torch.arange(0, WIDTH, 2) / WIDTH)))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions[:, :, None].float() * self.frequencies
        return torch.cat([angles.cos(), angles.sin()], -1)[:, None]


class Distances(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16, 2))

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        far = (positions[0][:, None] - torch.arange(LENGTH)[None]).abs()
        buckets = torch.clamp((torch.log(far.float() + 1) * 4).long(), max=15)
        return torch.nn.functional.embedding(buckets, self.weight).permute(2, 0, 1)[None]


class Counted(torch.nn.Module):
    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1]) + positions[0, 0]
        mask = torch.arange(LENGTH)[None] <= places[:, None]
        return torch.where(mask, 0.0, torch.finfo(torch.float32).min)


class Window(torch.nn.Module):
    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1])
        near = (places[:, None] - places[None]).abs() < 3
        return torch.where(near[None] & mask.bool()[:, None], 0.0, torch.finfo(torch.float32).min)


def exported(module: torch.nn.Module, second: str, wide: bool = False) -> tuple[Any, Graph]:
    """A program of input_ids and another input, both with free tokens."""
    ports = [
        Port(name="input_ids", dtype="int32", shape=(1, "tokens")),
        Port(name=second, dtype="float32" if wide else "int32", shape=(1, "tokens", WIDTH) if wide else (1, "tokens")),
    ]
    graph = Graph(role="model", file="model.pt2", inputs=tuple(ports), outputs=(Port(name="logits", dtype="float32", shape=(1,)),))
    ids, free = torch.zeros(1, 5, dtype=torch.int32), {1: torch.export.Dim("tokens", min=1, max=LENGTH)}
    other = torch.randn(1, 5, WIDTH) if wide else torch.arange(5, dtype=torch.int32)[None]
    with torch.no_grad():
        program = torch.export.export(module, (ids, other), dynamic_shapes=(free, free), strict=False)
    return program.module(check_guards=False), graph


def rewritten(module: torch.nn.Module, second: str, wide: bool = False) -> tuple[Any, dict[str, int]]:
    found, graph = exported(module, second, wide)
    return found, rewriting.rewrite(found, graph, {"tokens": LENGTH}, LENGTH)


def targets(module: Any) -> set[Any]:
    return {node.target for node in module.graph.nodes if node.op == "call_function"}


@pytest.fixture(scope="module")
def norm() -> tuple[Any, dict[str, int]]:
    """A norm, rewritten, and how often what was."""
    return rewritten(Norm(), "x", wide=True)


@settings(max_examples=10, deadline=None)
@given(scale=st.sampled_from([1e-6, 1e-3, 1.0, 300.0, 3e4]), seed=st.integers(0, 99))
def test_a_norm_gives_the_same_and_does_not_overflow_in_half_precision(norm: tuple[Any, dict[str, int]], scale: float, seed: int) -> None:
    module, found = norm
    assert found["norms"] == 1 and aten.pow.Tensor_Scalar not in targets(module)
    x = torch.randn(1, 4, WIDTH, generator=torch.Generator().manual_seed(seed)) * scale
    x = x.clamp(-6e4, 6e4)
    ids, wanted = torch.zeros(1, 4, dtype=torch.int32), Norm()(None, x)
    assert torch.allclose(module(ids, x), wanted, rtol=1e-4, atol=1e-6)
    half = module(ids, x.half()).float()
    assert torch.isfinite(half).all()
    assert torch.allclose(half, Norm()(None, x.half().float()), rtol=1e-2, atol=2e-3)


def test_a_norm_of_zeros_is_zeros(norm: tuple[Any, dict[str, int]]) -> None:
    module, _ = norm
    assert not module(torch.zeros(1, 2, dtype=torch.int32), torch.zeros(1, 2, WIDTH)).any()


@pytest.mark.parametrize(("made", "curved"), [(Rotary, aten.cos.default), (Distances, aten.log.default)])
def test_what_follows_from_a_position_is_looked_up(made: Callable[[], torch.nn.Module], curved: Any) -> None:
    torch.manual_seed(0)
    plain = made()
    module, found = rewritten(plain, "position_ids")
    assert found["tables"] > 0 and curved not in targets(module)
    for start, size in ((0, 5), (7, 1), (LENGTH - 3, 3)):
        positions = torch.arange(start, start + size, dtype=torch.int32)[None]
        ids = torch.zeros_like(positions)
        assert torch.equal(module(ids, positions), plain(ids, positions))
    assert {name for name, _ in module.named_parameters()} <= {"weight"}, "weights stay what they are"


def test_positions_that_are_counted_and_the_smallest_number_are_replaced() -> None:
    module, found = rewritten(Counted(), "position_ids")
    assert found["positions"] == 1 and found["masks"] == 1
    assert aten.sym_size.int not in targets(module), "no size is read while it runs"
    positions = torch.arange(9, 12, dtype=torch.int32)[None]
    said = module(torch.zeros_like(positions), positions)
    assert said.min() == HIDDEN and np.isfinite(np.float16(2 * HIDDEN))
    assert torch.equal(said == 0, Counted()(torch.zeros_like(positions), positions) == 0)


def test_what_follows_from_sizes_is_a_constant_that_is_cut() -> None:
    module, found = rewritten(Window(), "attention_mask")
    assert found["constants"] > 0 and aten.arange.default not in targets(module)
    for size in (1, 4, LENGTH):
        mask = (torch.arange(size) % 4 > 0).int()[None]
        ids = torch.zeros_like(mask)
        assert torch.equal(module(ids, mask) == 0, Window()(ids, mask) == 0)
    assert all(name.startswith(TABLE) for name, _ in module.named_buffers())


def test_equal_weights_are_one() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = (torch.nn.Parameter(torch.arange(64.0).reshape(16, 4)) for _ in range(2))

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(torch.nn.functional.embedding(ids, self.table), self.head)

    module, found = rewritten(Tied(), "attention_mask")
    assert found["shared"] == 1
    assert len([node for node in module.graph.nodes if node.op == "get_attr"]) == 1
