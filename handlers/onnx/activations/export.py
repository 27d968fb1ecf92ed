"""An export of a model together with its activations, for graphs in which they can't be found any more.

Called by the onnx-activations stage alone. It tries the same strategies as the onnx stage, with a family that wraps the model's own: hooks
return the activations while the exporter runs the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch

from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json
from handlers.child.progress import Reporter
from handlers.families.base import Family, Form, Graphs, NotApplicableError, Part, Tracing
from handlers.families.choice import choose
from handlers.graphs.comparison import Opener, open_graph
from handlers.graphs.graph_file import MODEL_FILE
from handlers.graphs.graphset import GraphSet
from handlers.graphs.signature import Ports, Signature
from handlers.onnx.activations.capture import take_attentions, watching
from handlers.onnx.activations.contract import ActivationOutput
from handlers.onnx.activations.reference import Torchs, compare
from handlers.onnx.export.building import build
from handlers.onnx.export.failures.attempts import try_strategies
from handlers.onnx.tracing.strategies import STRATEGIES


def extended(plain: Signature, extra: Sequence[ActivationOutput]) -> Ports:
    """A signature with further outputs."""
    named = {output.name: {axis: name for axis, name in enumerate(output.shape) if isinstance(name, str)} for output in extra}
    return Ports(plain.inputs, (*plain.outputs, *named), {**plain.axes, **named})


class Handing(torch.nn.Module):
    """A part's module that also gives the activations of the model inside it."""

    def __init__(self, part: torch.nn.Module, torchs: Torchs, folder: Path) -> None:
        super().__init__()
        self.part, self.torchs, self.folder = part, torchs, folder

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What the part gives, then each site's value."""
        model: Any = self.part.model
        outputs: list[Any] = []
        with watching(model, self.torchs.sites) as watched:
            handle = model.register_forward_hook(lambda _module, _arguments, output: outputs.append(output))
            try:
                given = self.part(*tensors)
            finally:
                handle.remove()
        take_attentions(watched, outputs[0], self.torchs.sites, self.folder)
        rows, tokens = tensors[0].shape
        extra = (watched.seen[name] for name in self.torchs.names)
        return (*given, *(value.reshape(rows, tokens, -1) if value.ndim == 2 else value for value in extra))


def part_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Give each output a value and a name of its own.

    One value may be two outputs: an encoder's last hidden state is what its last layer gives. Exporters then name it twice.
    """
    outputs = model.graph.outputs
    for index, name in enumerate(names):
        value = outputs[index]
        assert value is not None
        if any(value is other for other in outputs[:index]):
            node = ir.node("Identity", [value], name=f"output.{name}")
            node.outputs[0].shape, node.outputs[0].type = value.shape, value.type
            model.graph.append(node)
            outputs[index] = node.outputs[0]
        outputs[index].name = name


class WithActivations(Family):
    """A family whose one graph gives activations too."""

    def __init__(self, plain: Family, torchs: Torchs, outputs: Sequence[ActivationOutput], folder: Path) -> None:
        super().__init__(plain.task)
        self.name, self.plain, self.torchs, self.folder = plain.name, plain, torchs, folder
        self._added = tuple(outputs)
        self._outputs: tuple[str, ...] = ()

    def shaped(self, form: Form) -> WithActivations:
        """The plain family's other form, with activations; NotApplicableError for fixed axes, which activations.json can't describe."""
        if form.axes != "all":
            raise NotApplicableError("activations need a graph in which all axes are dynamic")
        return WithActivations(self.plain.shaped(form), self.torchs, self._added, self.folder)

    def load(self, folder: Path, tracing: Tracing) -> Any:
        """See `Family.load`; only eager attention has weights to give."""
        model = self.plain.load(folder, replace(tracing, attention="eager"))
        model.config.output_attentions = any(site.kind == "attentions" for site in self.torchs.sites)
        return model

    def refer(self, model: Any, folder: Path) -> Any:
        return self.plain.refer(model, folder)

    def parts(self, model: Any, reference: Any) -> Sequence[Part]:
        (part,) = self.plain.parts(model, reference)
        signature = extended(part.signature, self._added)
        self._outputs = signature.outputs
        return [replace(part, module=Handing(part.module, self.torchs, self.folder).eval(), signature=signature)]

    def finish(self, graphs: Graphs) -> Graphs:
        for model in graphs.values():
            part_outputs(model, self._outputs)
        return self.plain.finish(graphs)

    def signatures(self, reference: Any) -> Mapping[str, tuple[str, Signature]]:
        return {role: (file, extended(plain, self._added)) for role, (file, plain) in self.plain.signatures(reference).items()}

    def extra(self, reference: Any) -> Json:
        """The plain family's further facts for graphs.json."""
        return self.plain.extra(reference)

    def verify(self, folder: Path, reference: Any, *, threads: int = 1, opened: Opener = open_graph) -> float:
        """See `Family.verify`; validation judges the outputs that the plain graph has too."""
        opened(folder / MODEL_FILE, self.signatures(reference)["model"][1], threads)
        return max(compare(folder / MODEL_FILE, self.torchs, threads).values())


def export(torchs: Torchs, outputs: Sequence[ActivationOutput], graphs: GraphSet, context: StageContext, reporter: Reporter) -> GraphSet:
    """Export into the staging folder by the first strategy that works; Permanent `export-failed` when none does."""
    folder = Path(context.inputs["merge"])
    family = WithActivations(choose(folder), torchs, outputs, folder)
    _, built, _ = try_strategies(
        STRATEGIES,
        lambda strategy: build(strategy, family, context, reporter),
        path=str(folder),
        on_failure=lambda failure: reporter.warn(f"{failure.strategy} failed: {failure.reason}"),
    )
    return built.graphs
