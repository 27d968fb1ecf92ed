"""Programs of fixed sizes as ExecuTorch's: the cache becomes memory of the program, and XNNPACK takes what it can.

Called by the stage. Runs inside the toolchain. A decoder takes tokens and the position of the first one, as ExecuTorch's own runner for
language models gives them; what that runner asks of a program besides is answered by constant methods.
"""

from __future__ import annotations

import importlib
import logging
import operator
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export.exported_program import ExportedProgram
from torch.fx import GraphModule, Node

from handlers.child.variants import NotPossible
from handlers.executorch.session import bindings
from handlers.graphs.graphset import Graph, Port

IDS, START, POSITIONS = "input_ids", "start_pos", "position_ids"
_aten = torch.ops.aten


class Cached(torch.nn.Module):
    """A program whose cache is its own: tokens, the first one's position and what else it reads → its outputs but the cache."""

    def __init__(self, program: torch.nn.Module, caches: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.program, self._names = program, tuple(caches)
        for name, shape in caches.items():
            self.register_buffer(name, torch.zeros(shape))

    def forward(self, ids: torch.Tensor, start: torch.Tensor, *others: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """ids (1, tokens) and start (1), both int64."""
        positions = (start + torch.arange(ids.shape[1]))[None]
        caches = [getattr(self, name) for name in self._names]
        results = self.program(ids.to(torch.int32), positions.to(torch.int32), *others, *caches)
        for cache, new in zip(caches, results[len(results) - len(caches) :], strict=True):
            cache.copy_(new)
        return tuple(results[: len(results) - len(caches)])


@dataclass(frozen=True)
class Opened:
    """A program of `static-programs`, and how its inputs and outputs are divided."""

    graph: Graph
    module: GraphModule
    own: tuple[str, ...]
    """Inputs that are its cache: it gives them back."""

    @property
    def others(self) -> tuple[Port, ...]:
        """What a decoder reads besides tokens, positions and its cache; all that another program reads."""
        return tuple(port for port in self.graph.inputs if port.name not in self.own and not (self.own and port.name in (IDS, POSITIONS)))

    @property
    def caches(self) -> dict[str, tuple[int, ...]]:
        """Name of each buffer → shape, in the program's order."""
        shapes = {port.name: tuple(int(size) for size in port.shape) for port in self.graph.inputs if port.name in self.own}
        return {name.replace(".", "_"): shape for name, shape in shapes.items()}

    @property
    def described(self) -> Graph:
        """What graphs.json says of the program that is made of it."""
        inputs = self.graph.inputs
        if self.own:
            tokens = next(port for port in inputs if port.name == IDS)
            inputs = (tokens.model_copy(update={"dtype": "int64"}), Port(name=START, dtype="int64", shape=(1,)), *self.others)
        given = tuple(port for port in self.graph.outputs if _past(port.name) not in self.own)
        return self.graph.model_copy(update={"file": f"{Path(self.graph.file).stem}.pte", "inputs": inputs, "outputs": given})


@dataclass(frozen=True)
class Lowered:
    """A program in ExecuTorch's form, and what was counted in it."""

    manager: Any
    delegates: int
    """Parts that XNNPACK runs."""
    delegated: Mapping[str, int]
    """Operator → how often it is in those parts."""
    portable: Mapping[str, int]
    """Operator → how often ExecuTorch's own kernels run it."""


def opened(path: Path, graph: Graph) -> Opened:
    """The program in a file. Its guards are those of the example's sizes, which the stage that made it went beyond."""
    module: Any = torch.export.load(path).module(check_guards=False)
    given = {_past(port.name) for port in graph.outputs}
    program = Opened(graph, module, tuple(port.name for port in graph.inputs if port.name in given))
    if program.own:
        names = [port.name for port in graph.inputs]
        if names[:2] != [IDS, POSITIONS] or tuple(names[-len(program.own) :]) != program.own:
            raise AssertionError(f"inputs in another order than a decoder's: {names}")
    return program


def write_in_place(program: Opened) -> int:
    """Let new keys and values be written where they belong, in place of whole caches being computed anew; how many caches are.

    A cache is a choice between the product of ones and zeros with the new rows, and what was there. That is left as it is wherever it is
    written in another way.
    """
    module, graph = program.module, program.module.graph
    given = [node for node in graph.nodes if node.op == "placeholder"]
    by_name = dict(zip((port.name for port in program.graph.inputs), given, strict=True))
    (output,) = (node for node in graph.nodes if node.op == "output")
    results = dict(zip((port.name for port in program.graph.outputs), output.args[0], strict=True))
    changed = 0
    for name in program.own:
        chosen, past = results[name.replace("past_key_values.", "present.", 1)], by_name[name]
        if chosen.target is not _aten.where.self or chosen.args[2] is not past or list(past.users) != [chosen]:
            continue
        product = chosen.args[1]
        if product.target is not _aten.matmul.default or product.args[1].meta["val"].shape[1] != past.meta["val"].shape[1]:
            continue
        with graph.inserting_before(chosen):
            rows = graph.call_function(_aten.select.int, (by_name[POSITIONS], 0, 0))
            written = graph.call_function(_aten.index_put.default, (past, [None, None, rows], product.args[1]))
        written.meta = dict(chosen.meta)
        chosen.replace_all_uses_with(written)
        changed += 1
    graph.eliminate_dead_code()
    module.recompile()
    return changed


def exported(program: Opened, bounds: Mapping[str, tuple[int, int]]) -> ExportedProgram:
    """The program with its cache inside, by torch.export. `bounds`: free axis → fewest and most."""
    axes = {name: torch.export.Dim(name, min=least, max=most) for name, (least, most) in bounds.items()}
    ports = program.described.inputs
    sizes = {name: min(most, least + 2 + place) for place, (name, (least, most)) in enumerate(bounds.items())}
    example = tuple(
        torch.zeros([sizes[size] if isinstance(size, str) else size for size in port.shape], dtype=getattr(torch, port.dtype))
        for port in ports
    )
    shapes = tuple({place: axes[size] for place, size in enumerate(port.shape) if isinstance(size, str)} or None for port in ports)
    if not program.own:
        return torch.export.export(program.module, example, dynamic_shapes=shapes, strict=False)
    wrapped = Cached(program.module, program.caches)
    dynamic = (*shapes[:2], shapes[2:]) if shapes[2:] else shapes  # what is taken as *others is one argument
    return torch.export.export(wrapped, example, dynamic_shapes=dynamic, strict=False)


def lowered(program: ExportedProgram, constants: Mapping[str, Any]) -> Lowered:
    """The program in ExecuTorch's form. `constants`: method → what it answers. Raises NotPossible, and what ExecuTorch raises."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # that it is experimental; that a cache has no first state: its rows are written before they are read
        exir, xnnpack = _compiler()
        edge = exir.to_edge_transform_and_lower(
            program, partitioner=[xnnpack.XnnpackPartitioner()], constant_methods=dict(constants),
            compile_config=exir.EdgeCompileConfig(_check_ir_validity=False),
        )  # fmt: skip
        manager = edge.to_executorch(
            exir.ExecutorchBackendConfig(emit_mutable_buffer_names=True, do_quant_fusion_and_const_prop=True, run_reinplace_pass=True)
        )
    module = manager.exported_program().graph_module
    inner = [part.original_module.graph_module for part in module.children() if hasattr(part, "original_module")]
    outcome = Lowered(manager, len(inner), _counts(*inner), _counts(module))
    missing = sorted(set(outcome.portable) - _known())
    if missing:
        raise NotPossible(f"ExecuTorch's runtime has no kernel for {', '.join(missing)}")
    return outcome


def _compiler() -> tuple[Any, Any]:
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    bindings()  # whose operators the compiler must know too
    exir = importlib.import_module("executorch.exir")
    return exir, importlib.import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")


def _counts(*modules: GraphModule) -> dict[str, int]:
    """Operator → how often it is called, without what the compiler adds for memory and delegates."""
    nodes = [node for module in modules for node in module.graph.nodes if node.op == "call_function"]
    names = [name for node in nodes if (name := _name(node)) is not None]
    return dict(sorted(Counter(names).items()))


def _name(node: Node) -> str | None:
    target: Any = node.target
    schema = getattr(target, "_schema", None)
    if node.target is operator.getitem or schema is None or "executorch_call_delegate" in str(target):
        return None
    return f"{schema.name}.{schema.overload_name}" if schema.overload_name else str(schema.name)


def _known() -> set[str]:
    return set(bindings().Runtime.get().operator_registry.operator_names)


def _past(name: str) -> str:
    return name.replace("present.", "past_key_values.", 1)
