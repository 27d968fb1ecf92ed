"""Adding a delta to the base in the pass that computes it gives the bits that two passes give; where it would not, two are made."""

from __future__ import annotations

import pytest
import torch

from handlers.merge.engine.arithmetic import prepare
from handlers.merge.plan.operations import LowRank

SHAPES = [
    (256, 1024, 16),
    (85, 3072, 8),
    (1, 1024, 16),
    (3, 5, 2),
    (13, 100, 1),
    (7, 33, 4),
    (50, 640, 128),
    (300, 800, 256),
    (50, 640, 512),
]


# R1.2
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "columns", "rank"), SHAPES)
def test_a_sum_is_the_same_to_the_bit_as_product_and_addition_apart(rows: int, columns: int, rank: int, dtype: torch.dtype) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the engine does; more would divide the work in other places
    try:
        generator = torch.Generator().manual_seed(7)
        factors = {"a": torch.randn(rank, columns, generator=generator), "b": torch.randn(2 * rows, rank, generator=generator)}
        weights = torch.randn(rows, columns, generator=generator).to(dtype)
        prepared = prepare(LowRank("a", "b", 2.0), factors.__getitem__)
        found = torch.empty(rows, columns)
        prepared.fill(rows, weights, found)
        wanted = torch.mm(factors["b"][rows:] * 2.0, factors["a"]).add_(weights)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found, wanted)
