"""Programs of fixed sizes as LiteRT's models: one file with a signature for each number of tokens, which share their weights.

Called by the stage. Runs inside the toolchain, without transformers.
"""

from __future__ import annotations

import gc
import importlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from handlers.graphs.graphset import Graph
from handlers.litert import rewriting
from handlers.litert.session import in_file

PREFILL, DECODE, ENCODE = "prefill", "decode", "encode"
SHORT = 64
"""Tokens of an encoder's second signature, so that a short text does not take as long as the longest."""


@dataclass(frozen=True)
class Signature:
    """One way to run a model: all of its axes have a size."""

    name: str
    axes: Mapping[str, int]
    """Free axis of the program → size."""


class Named(torch.nn.Module):
    """A program whose inputs and outputs have names."""

    def __init__(self, program: torch.nn.Module, graph: Graph) -> None:
        super().__init__()
        self.program = program
        self._inputs, self._outputs = ([in_file(port.name) for port in side] for side in (graph.inputs, graph.outputs))

    def forward(self, **given: torch.Tensor) -> dict[str, torch.Tensor]:
        """By the names that the file has."""
        return dict(zip(self._outputs, self.program(*(given[name] for name in self._inputs)), strict=True))


def signatures(graph: Graph, bounds: tuple[int, int], length: int) -> tuple[Signature, ...]:
    """The signatures of a program. `bounds`: fewest and most of its first free axis; `length`: tokens that there is room for."""
    first, *others = dict.fromkeys(size for port in graph.inputs for size in port.shape if isinstance(size, str))
    rest = dict.fromkeys(others, length)
    if any(port.name == "position_ids" for port in graph.inputs):
        sizes = {PREFILL: bounds[1], DECODE: 1} if bounds[1] > 1 else {DECODE: 1}
    elif graph.role == "encoder" or length <= SHORT:
        sizes = {ENCODE: length}
    else:
        sizes = {f"{ENCODE}_{SHORT}": SHORT, ENCODE: length}
    return tuple(Signature(name, {first: size, **rest}) for name, size in sizes.items())


def convert(source: Path, graph: Graph, wanted: tuple[Signature, ...], target: Path) -> int:
    """Write the program in `source` as a LiteRT model with the signatures `wanted`; products of heads that were changed for it.

    Raises what torch and litert-torch raise.
    """
    litert_torch = library()
    # The guards are those of the sizes that the program was made with, and it was compared with the model at others.
    program: Any = torch.export.load(source).module(check_guards=False)
    shared = rewriting.share_heads(program)
    module = Named(program, graph)
    converter = litert_torch.Converter()
    for signature in wanted:
        converter.add_signature(signature.name, module, sample_kwargs=_example(graph, signature))
    with torch.no_grad():
        converter.convert().export(str(target))
    del converter, module, program
    gc.collect()
    return shared


def library() -> Any:
    """litert-torch, which says no more than what is wrong."""
    for name in ("torch.utils._pytree", "torchao"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return importlib.import_module("litert_torch")


def _example(graph: Graph, signature: Signature) -> dict[str, torch.Tensor]:
    return {
        in_file(port.name): torch.zeros(
            [signature.axes[size] if isinstance(size, str) else size for size in port.shape], dtype=getattr(torch, port.dtype)
        )
        for port in graph.inputs
    }
