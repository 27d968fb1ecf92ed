"""A cache that is written in place says the same as one that is computed anew. Needs no toolchain: these are PyTorch's programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from handlers.executorch import lowering
from handlers.graphs import graphset
from tests.static_programs.forms import tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs of a language model."""
    return tiny(tmp_path_factory)[1]


def opened(folder: Path) -> lowering.Opened:
    graph = graphset.read(folder).graphs[0]
    return lowering.opened(folder / graph.file, graph)


def fed(program: lowering.Opened) -> list[Any]:
    """Logits and caches after a text in three pieces, over memory that another text has left."""
    caches = [torch.randn(shape, generator=torch.manual_seed(1)) for shape in program.caches.values()]
    found, start = [], 0
    for count in (5, 1, 18):
        places = torch.arange(start, start + count, dtype=torch.int32)[None]
        logits, *caches = program.module(places + 7, places, *caches)
        found.append(logits)
        start += count
    return [*found, *caches]


def test_all_caches_are_written_in_place_and_nothing_else_changes(made: Path) -> None:
    plain, changed = opened(made), opened(made)
    assert lowering.write_in_place(changed) == len(changed.own) == 4
    targets = [node.target for node in changed.module.graph.nodes]
    assert targets.count(torch.ops.aten.index_put.default) == 4
    with torch.no_grad():
        for one, other in zip(fed(changed), fed(plain), strict=True):
            assert torch.allclose(one, other, atol=1e-5)


def test_what_reads_the_cache_besides_keeps_it_as_it_was(made: Path) -> None:
    program = opened(made)
    graph = program.module.graph
    past = [node for node in graph.nodes if node.op == "placeholder"][2]
    (output,) = (node for node in graph.nodes if node.op == "output")
    with graph.inserting_before(output):
        doubled = graph.call_function(torch.ops.aten.add.Tensor, (past, past))
        summed = graph.call_function(
            torch.ops.aten.add.Tensor, (output.args[0][0], graph.call_function(torch.ops.aten.sum.default, (doubled,)))
        )
    output.args = ((summed, *output.args[0][1:]),)
    assert lowering.write_in_place(program) == 3


def test_a_program_is_described_as_apps_feed_it(made: Path) -> None:
    described = opened(made).described
    assert described.file == "model.pte" and [port.name for port in described.outputs] == ["logits"]
    assert [(port.name, port.dtype, port.shape) for port in described.inputs] == [
        ("input_ids", "int64", (1, "tokens")), ("start_pos", "int64", (1,)),
    ]  # fmt: skip
