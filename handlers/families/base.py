"""What the ONNX stage asks of a family of models, and what all families share.

A family knows how its models are loaded, split into graphs, run for reference and checked; the exporters, the strategies and `graph_file`
know nothing of that. `handlers.families.choice.choose` gives the family of a folder.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
import transformers

from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.child import foreign
from handlers.graphs.comparison import Opener, open_graph
from handlers.graphs.signature import Signature
from handlers.models.files import read_json, setting
from handlers.models.tasks import Task

if TYPE_CHECKING:
    import onnx_ir as ir

OPERATION = "export the model to ONNX"
Graphs: TypeAlias = "Mapping[str, ir.Model]"
"""Role → graph."""

Axes = Literal["all", "lengths", "batch", "none"]
"""Which axes stay dynamic: all; all but the batch, which is 1; the batch alone; none."""


class NotApplicableError(Exception):
    """The strategy is for another kind of model; skipping it is not a failure."""


@dataclass(frozen=True)
class Form:
    """Which graphs a family makes of a model; every form but the default gives something up."""

    axes: Axes = "all"
    cache: bool = True
    """Whether a decoder has a KV cache."""


@dataclass(frozen=True)
class Tracing:
    """How a model is prepared for an exporter."""

    attention: str = "eager"
    """transformers' attention implementation."""
    experts: str | None = None
    """transformers' implementation of mixtures of experts; None leaves it to transformers."""


@dataclass(frozen=True)
class Part:
    """One graph to be exported: a module that takes the signature's inputs in order and gives its outputs in order."""

    role: str
    file: str
    signature: Signature
    module: torch.nn.Module
    example: tuple[torch.Tensor, ...]
    """Contiguous inputs to trace with: dynamic axes above 1 and unlike each other, masks with a hole."""


class Family(ABC):
    """One kind of models. Stateless but for its task."""

    name: str

    def __init__(self, task: Task) -> None:
        self.task = task

    def shaped(self, form: Form) -> Family:
        """Return the family that makes graphs of `form`; NotApplicableError where it has only the usual one."""
        if form != Form():
            raise NotApplicableError(f"the family {self.name} has no other form of its graphs")
        return self

    def load(self, folder: Path, tracing: Tracing) -> Any:
        """Return the model of `folder` in fp32 on the CPU, in evaluation mode."""
        return load_model(folder, self.task, tracing)

    @abstractmethod
    def refer(self, model: Any, folder: Path) -> Any:
        """torch's outputs for a few inputs, as arrays that stay when the model is released."""

    @abstractmethod
    def parts(self, model: Any, reference: Any) -> Sequence[Part]:
        """Return the graphs to export."""

    def finish(self, graphs: Graphs) -> Graphs:
        """Return the graphs that are written, made of those that were exported."""
        return graphs

    @abstractmethod
    def signatures(self, reference: Any) -> Mapping[str, tuple[str, Signature]]:
        """Role → (file, signature) of the graphs that are written."""

    def extra(self, reference: Any) -> Json:
        """Return what graphs.json should say beyond names and shapes."""
        return {}

    def tested(self, reference: Any) -> str:
        """Return what `verify` feeds, in words."""
        return "the shapes of this family's own check"

    @abstractmethod
    def verify(self, folder: Path, reference: Any, *, threads: int = 1, opened: Opener = open_graph) -> float:
        """Run the written graphs against the reference; the largest error relative to the largest value of the reference.

        `opened` opens a graph, or the file of another runtime that stands for it. Raises `handlers.graphs.comparison.GraphMismatchError`.
        """


def unsupported(folder: Path, cause: str) -> Permanent:
    """Return the error for a model that can't be made into graphs."""
    remedy = (
        "leave the variants that are made of graphs out of export.variants; report it, since ckptd should have said so before the merge"
    )
    return Permanent(FaultCode.UNSUPPORTED_ARCHITECTURE, OPERATION, cause, remedy, path=folder)


def architecture(folder: Path) -> str:
    """Return the name of the model's class; Permanent where config.json names none."""
    names = read_json(folder / "config.json", OPERATION).get("architectures") or []
    if not names:
        raise unsupported(folder, "config.json names no architecture")
    return str(names[0])


def has_experts(folder: Path) -> bool:
    """Return whether the model is a mixture of experts."""
    config = read_json(folder / "config.json", OPERATION)
    return any(setting(config, key) for key in ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"))


_ATTENTION = re.compile(r"attention implementation|attn_implementation|scaled_dot_product|flash")
"""In transformers' errors about an implementation of attention that an architecture does not have."""
_NO_CLASS = "Unrecognized configuration class"
"""In transformers' error about a model that its loader for the task has no class for."""
UNREAD = "_ckptd_unread_weights"
"""Attribute of a model that `load_model` gives: names of tensors in its files that it does not read."""


def load_model(folder: Path, task: Task, tracing: Tracing, *, unused: str = "") -> Any:
    """Return the model of `folder` in fp32 on the CPU, in evaluation mode, every weight taken from its files.

    A module `unused` whose weights are not there is left out. Permanent when it can't be loaded or lacks other weights.
    """
    loader: Any = getattr(transformers, task.auto)
    try:
        model, info = loader.from_pretrained(
            folder, dtype=torch.float32, attn_implementation=tracing.attention, local_files_only=True, output_loading_info=True
        )
    except Exception as error:
        unknown = isinstance(error, KeyError | ImportError) or _NO_CLASS in str(error)
        if unknown and not foreign.of_machine(error):
            raise unsupported(folder, f"transformers can't load it: {foreign.in_words(error)}") from error
        # Another strategy may ask for another implementation of attention; what is wrong with the files is wrong for all.
        if isinstance(error, CkptdError) or foreign.of_machine(error) or _ATTENTION.search(str(error)):
            raise
        raise foreign.refusal(error, OPERATION, folder, reader="transformers") from error
    lost = sorted(info["missing_keys"]) + sorted(map(str, info["mismatched_keys"]))
    if unused and lost and all(name.startswith(f"{unused}.") for name in lost):
        setattr(model, unused, None)
        lost = []
    if lost:
        raise Permanent(
            FaultCode.MISSING_WEIGHTS,
            OPERATION,
            f"{len(lost)} weights are not in the files, for example {lost[0]}",
            "check the merge stage's output; random weights are never exported",
            path=folder,
        )
    setattr(model, UNREAD, frozenset(info["unexpected_keys"]))
    if tracing.experts is not None:
        model.set_experts_implementation(tracing.experts)
    return model.eval().requires_grad_(False)


def release(model: torch.nn.Module) -> None:
    """Give the weights' memory back now; the exporter keeps references to the model in caches of its own."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = torch.empty(0)
