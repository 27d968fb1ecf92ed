"""Programs of fixed sizes as Core ML packages: a decoder keeps its cache as states, tokens come in one of a few sizes.

Called by the stage `coreml`. Runs inside the toolchain. Core ML keeps states in half precision, whatever the program computes in.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from handlers.coreml import library
from handlers.coreml.converting import operators, rewriting
from handlers.graphs.graphset import Graph, Port

SUFFIX = ".mlpackage"
PAST, PRESENT = "past_key_values.", "present."
TOKENS, SOURCE = "tokens", "source"
SHORTEST = 32
"""Tokens of the smallest size that an encoder takes."""
_LEFT_BEHIND = "executorch_debug_handle_mapping.json"
"""Put into a package by Core ML Tools, of which it is no part."""


@dataclass(frozen=True)
class Sizes:
    """What the free axes of a program may be. `free`: axis → sizes, ascending; `fixed`: axis → its one size."""

    free: Mapping[str, tuple[int, ...]]
    fixed: Mapping[str, int]

    def shapes(self, port: Port) -> list[tuple[int, ...]]:
        """The shapes of an input, one for each size of the free axis that it has."""
        axis = next((size for size in port.shape if size in self.free), None)
        choices = self.free[axis] if isinstance(axis, str) else (0,)
        return [tuple(choice if size == axis else self.size(size) for size in port.shape) for choice in choices]

    def size(self, size: int | str) -> int:
        """A fixed size as a number."""
        return size if isinstance(size, int) else self.fixed[size]


def sizes_of(role: str, length: int, bounds: tuple[int, int]) -> Sizes:
    """The sizes of a program with room for `length` tokens. A decoder takes one token or as many as it can at once; an encoder a text in
    the next larger of a few sizes; the encoder of an encoder-decoder has one, as the decoder attends to it."""
    if role == "encoder":
        return Sizes({}, {SOURCE: length})
    if role == "model" and bounds[0] > 1:
        doubled = [SHORTEST << power for power in range(20) if SHORTEST << power < length]
        return Sizes({TOKENS: (*doubled, length)}, {})
    return Sizes({TOKENS: tuple(sorted({1, bounds[1]}))}, {SOURCE: length})


def states_of(graph: Graph) -> list[str]:
    """The inputs that come back as outputs, in their order: what a decoder keeps."""
    given = {port.name.replace(PRESENT, PAST, 1) for port in graph.outputs if port.name.startswith(PRESENT)}
    return [port.name for port in graph.inputs if port.name in given]


def state_name(past: str) -> str:
    """A state's name, of letters, digits and underscores."""
    return past.replace(PAST, "cache_", 1).replace(".decoder.", "_").replace(".", "_")


def convert(source: Path, graph: Graph, length: int, sizes: Sizes, target: Path, *, half: bool) -> dict[str, int]:
    """Write the package of a program; which patterns were rewritten. Raises what torch or Core ML Tools raise."""
    ct = library.coremltools()
    operators.register()
    exported, rewritten = _stateful(source, graph, length, sizes)
    kept = set(states_of(graph))
    outputs = [port.name for port in graph.outputs if port.name.replace(PRESENT, PAST, 1) not in kept]
    with quiet():
        model = ct.convert(
            exported, inputs=[_input(ct, port, sizes, half=half) for port in graph.inputs if port.name not in kept],
            outputs=[ct.TensorType(name=legal(name)) for name in outputs], minimum_deployment_target=ct.target.iOS18,
            compute_precision=ct.precision.FLOAT16 if half else ct.precision.FLOAT32, skip_model_load=True,
        )  # fmt: skip
    save(model, target)
    return rewritten


def save(model: Any, target: Path) -> None:
    """Write a package, and nothing else into it."""
    shutil.rmtree(target, ignore_errors=True)
    with quiet():
        model.save(str(target))
    (target / _LEFT_BEHIND).unlink(missing_ok=True)


def described(graph: Graph, file: str) -> Graph:
    """How graphs.json describes the package that was made of a program: names as the package has them, its states left out."""
    kept = set(states_of(graph))
    inputs = tuple(port.model_copy(update={"name": legal(port.name)}) for port in graph.inputs if port.name not in kept)
    outputs = tuple(
        port.model_copy(update={"name": legal(port.name)}) for port in graph.outputs if port.name.replace(PRESENT, PAST, 1) not in kept
    )  # fmt: skip
    return graph.model_copy(update={"file": file, "data": (), "nodes": 0, "inputs": inputs, "outputs": outputs})


def legal(name: str) -> str:
    """A name as Core ML takes it."""
    return name.replace(".", "_")


class _Stateful(torch.nn.Module):
    """A program whose cache is in buffers, which it writes anew."""

    def __init__(self, program: torch.nn.Module, graph: Graph) -> None:
        super().__init__()
        self.program, self._graph, self._kept = program, graph, states_of(graph)
        for port in graph.inputs:
            if port.name in self._kept:
                self.register_buffer(state_name(port.name), torch.zeros([int(size) for size in port.shape]))

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """All inputs but the cache, in the program's order → all outputs but the cache."""
        left = iter(given)
        states = {name: getattr(self, state_name(name)) for name in self._kept}
        results = self.program(*(states[port.name] if port.name in states else next(left) for port in self._graph.inputs))
        outputs = []
        for port, tensor in zip(self._graph.outputs, results if isinstance(results, tuple | list) else (results,), strict=True):
            past = port.name.replace(PRESENT, PAST, 1)
            if past in states:
                states[past].copy_(tensor)
            else:
                outputs.append(tensor)
        return tuple(outputs)


def _stateful(source: Path, graph: Graph, length: int, sizes: Sizes) -> tuple[Any, dict[str, int]]:
    program = torch.export.load(source)
    module = program.module(check_guards=False)
    rewritten = rewriting.rewrite(module, graph, {**sizes.fixed, **{name: choices[-1] for name, choices in sizes.free.items()}}, length)
    whole = _Stateful(module, graph)
    kept = set(whole._kept)
    given, dynamic = [], []
    axes = {name: torch.export.Dim(name, min=choices[0], max=choices[-1]) for name, choices in sizes.free.items() if len(choices) > 1}
    for port in graph.inputs:
        if port.name in kept:
            continue
        # Not the largest and not one token: an example of a bound would be taken for all there is.
        shape = [_example(size, sizes) for size in port.shape]
        given.append(torch.zeros(shape, dtype=getattr(torch, port.dtype)))
        dynamic.append({place: axes[size] for place, size in enumerate(port.shape) if size in axes} or None)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(whole, tuple(given), dynamic_shapes=(tuple(dynamic),), strict=False)
        return exported.run_decompositions({}), rewritten


def _example(size: int | str, sizes: Sizes) -> int:
    if isinstance(size, int) or size in sizes.fixed:
        return sizes.size(size)
    choices = sizes.free[size]
    return choices[-1] if len(choices) == 1 else max(3, choices[-1] - 1)


def _input(ct: Any, port: Port, sizes: Sizes, *, half: bool) -> Any:
    shapes = sizes.shapes(port)
    shape = ct.EnumeratedShapes(shapes=shapes, default=shapes[-1]) if len(shapes) > 1 else shapes[0]
    dtype = np.int32 if port.dtype.startswith("int") else np.float16 if half else np.float32
    return ct.TensorType(name=legal(port.name), shape=shape, dtype=dtype)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Core ML Tools from telling of its progress and of states in half precision, which is all that there is."""
    logger = logging.getLogger("coremltools")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
