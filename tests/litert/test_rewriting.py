"""What is decided and changed before LiteRT is asked: signatures and their names, and heads that share keys and values. No toolchain."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.graphs.graphset import Graph, Port
from handlers.litert import conversion, rewriting
from handlers.litert.session import in_file, outside


def port(name: str, *shape: int | str) -> Port:
    return Port(name=name, dtype="int32", shape=shape)


TOKENS = (port("input_ids", 1, "tokens"), port("position_ids", 1, "tokens"))
DECODER = Graph(role="decoder", file="d.pt2", inputs=(*TOKENS, port("encoder_attention_mask", 1, "source")))
ENCODER = Graph(role="model", file="m.pt2", inputs=(port("input_ids", 1, "tokens"), port("attention_mask", 1, "tokens")))
SOURCE = Graph(role="encoder", file="e.pt2", inputs=(port("input_ids", 1, "source"), port("attention_mask", 1, "source")))


@pytest.mark.parametrize(
    ("graph", "bounds", "length", "wanted"),
    [
        (DECODER, (1, 32), 512, {"prefill": {"tokens": 32, "source": 512}, "decode": {"tokens": 1, "source": 512}}),
        (DECODER, (1, 1), 512, {"decode": {"tokens": 1, "source": 512}}),
        (ENCODER, (2, 512), 512, {"encode_64": {"tokens": 64}, "encode": {"tokens": 512}}),
        (ENCODER, (2, 64), 64, {"encode": {"tokens": 64}}),
        # The decoder attends to as many places as its encoder gives.
        (SOURCE, (2, 512), 512, {"encode": {"source": 512}}),
    ],
)
def test_every_program_has_the_signatures_that_its_kind_needs(
    graph: Graph, bounds: tuple[int, int], length: int, wanted: dict[str, Any]
) -> None:
    assert {one.name: dict(one.axes) for one in conversion.signatures(graph, bounds, length)} == wanted


@pytest.mark.parametrize(
    "name", ["input_ids", "encoder_attention_mask", "present.0.key", "past_key_values.11.value", "present.3.encoder.key", "start_logits"]
)
def test_a_name_without_dots_leads_back_to_the_one_with_them(name: str) -> None:
    assert "." not in in_file(name) and outside(in_file(name)) == name


def grouped(axis: int) -> tuple[Any, tuple[Any, ...]]:
    """Attention of four heads over two groups of keys and values, which are repeated along a new axis; and its inputs."""
    import torch

    class Attention(torch.nn.Module):
        def forward(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            wide = [one.unsqueeze(axis).expand(1, 2, 2, 8, 16).reshape(1, 4, 8, 16) for one in (keys, values)]
            found: torch.Tensor = torch.softmax(queries @ wide[0].transpose(2, 3), -1) @ wide[1]
            return found

    random = torch.Generator().manual_seed(0)
    given = (torch.randn(1, 4, 3, 16, generator=random), *(torch.randn(1, 2, 8, 16, generator=random) for _ in range(2)))
    return torch.export.export(Attention(), given).module(), given


@pytest.mark.parametrize("axis", [2, 1])
def test_heads_share_keys_and_values_with_the_same_result_and_in_another_order_they_are_left_alone(axis: int) -> None:
    import torch

    module, given = grouped(axis)
    wanted = module(*given)
    changed = rewriting.share_heads(module)
    repeats = [node for node in module.graph.nodes if node.target is torch.ops.aten.expand.default and len(node.args[1]) == 5]
    # Where the heads of a group do not lie next to each other, the second axis is repeated.
    assert (changed, len(repeats)) == ((2, 0) if axis == 2 else (0, 2))
    assert torch.allclose(module(*given), wanted, atol=1e-6)
