"""The stage `static-programs`: the merged model as programs of fixed sizes, which the formats for phones and small devices are made of.

Run by `handlers/__main__.py`. Its output is read by stages in toolchains, with PyTorch but without transformers; it is not published. Each
program is what `torch.export` gives: one row, a cache of fixed length that is a function of its inputs, eager attention, so that there is
no operator that a device lacks. The programs on disk are compared with the model before they are kept.
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

import torch

from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json
from handlers.child import foreign
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import not_possible
from handlers.families.base import Tracing, architecture, has_experts, release
from handlers.families.choice import choose
from handlers.families.seq2seq.family import Seq2Seq
from handlers.families.warnings.library_warnings import LibraryWarnings, report_lines
from handlers.folder import companions
from handlers.graphs.graphset import Graph, GraphSet, Port
from handlers.models.files import read_json
from handlers.static_programs import comparison
from handlers.static_programs.description import LENGTH, Described
from handlers.static_programs.options import StaticOptions
from handlers.static_programs.session import ProgramSession
from handlers.static_programs.tracing import parts
from handlers.static_programs.tracing.parts import FixedPart
from handlers.validate.engines.task_profile import context_length

_PARTS: dict[str, Any] = {"causal": parts.causal, "encoder": parts.encoder, "seq2seq": parts.seq2seq}


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """See the module. Permanent `form-not-possible`."""
    source, staging = Path(context.inputs["merge"]), Path(context.staging)
    torch.set_num_threads(context.limits.threads)
    family = choose(source)
    if isinstance(family, Seq2Seq):
        family = Seq2Seq(family.task, merges=False)
    if family.name not in _PARTS:
        raise _not_possible(context, source, f"a model of the family {family.name} has no programs of fixed sizes")
    config = read_json(source / "config.json", f"make the stage {context.stage}")
    length = min(context.work.options(StaticOptions).context_length, context_length(config) or 1 << 30)
    reporter.progress(0.05, "loading the model")
    model = family.load(source, Tracing("eager", "batched_mm" if has_experts(source) else None))
    reference = family.refer(model, source)
    parts.linear(model)
    try:
        with LibraryWarnings() as chatter:
            figures = _written(context, reporter, family, model, reference, length, config)
        warnings = report_lines(chatter, family, reference)  # raises where a branch was fixed that no comparison could try
    except (CkptdError, OSError, MemoryError):
        raise
    except Exception as error:  # torch.export fails in many ways, and so does what it made
        if foreign.of_machine(error):
            raise
        cause = foreign.in_words(error)
        raise _not_possible(context, source, f"PyTorch makes no program of fixed sizes of {architecture(source)} ({cause})") from error
    reporter.progress(0.9, "copying configuration and tokenizer")
    tokenizer = companions.place(context, source, staging)
    figures |= {"tokenizer": tokenizer.form, "chat_template": tokenizer.chat_template}
    warnings += [tokenizer.warning] if tokenizer.warning else []
    return StageOutput(figures=figures, warnings=warnings)


def _written(
    context: StageContext, reporter: Reporter, family: Any, model: Any, reference: Any, length: int, config: Json
) -> dict[str, Any]:
    """Write all programs and compare them with the model; raises whatever the exporter or the comparison raises."""
    source, staging = Path(context.inputs["merge"]), Path(context.staging)
    started, graphs, bounds = time.monotonic(), list[Graph](), dict[str, tuple[int, int]]()
    made = _PARTS[family.name](model, reference, length)
    for number, part in enumerate(made):
        reporter.progress(0.1 + 0.6 * number / len(made), f"exporting the {part.role}")
        export(part, staging / part.file)
        bounds[part.role] = next(iter(part.bounds.values()))
        graphs.append(_described(part))
    seconds = time.monotonic() - started
    known = GraphSet(
        task=family.task.name, family=family.name, dtype="float32", opset=0, graphs=tuple(graphs), extra={LENGTH: length, "bounds": bounds},
    )  # fmt: skip
    known.write(staging)
    release(model)
    del model, made
    gc.collect()
    reporter.progress(0.75, "comparing the programs with the model")
    described = Described(known)
    sessions = {graph.role: ProgramSession(staging / graph.file, graph.role, described) for graph in graphs}
    error = comparison.worst(sessions, described, reference, int(config.get("pad_token_id") or 0))
    return {
        "architecture": architecture(source), "task": family.task.name, LENGTH: length, "relative_error": error,
        "export_seconds": round(seconds, 3), "graphs": {graph.role: graph.file for graph in graphs}, "graph_bytes": known.size(staging),
    }  # fmt: skip


def export(part: FixedPart, path: Path) -> None:
    """Write a part as what torch.export makes of it, without what nothing reads."""
    axes = {name: torch.export.Dim(name, min=least, max=most) for name, (least, most) in part.bounds.items()}
    shapes = tuple({place: axes[axis] for place, axis in part.free.get(name, {}).items()} or None for name in part.example)
    gathers = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in _parameters(part.module))
    # All that a module takes as *past is one argument for torch.export.
    named = len([parameter for parameter in _parameters(part.module) if parameter.kind is not parameter.VAR_POSITIONAL])
    dynamic = (*shapes[:named], shapes[named:]) if gathers else shapes
    with torch.no_grad():
        program = torch.export.export(part.module.eval(), tuple(part.example.values()), dynamic_shapes=dynamic, strict=False)
    program.graph.eliminate_dead_code()
    torch.export.save(program, path)


def _parameters(module: torch.nn.Module) -> list[Any]:
    import inspect

    return list(inspect.signature(module.forward).parameters.values())


def _described(part: FixedPart) -> Graph:
    with torch.no_grad():
        outputs = part.module(*part.example.values())
    return Graph(
        role=part.role, file=part.file, inputs=tuple(_port(part, name, tensor) for name, tensor in part.example.items()),
        outputs=tuple(_port(part, name, tensor) for name, tensor in zip(part.outputs, outputs, strict=True)),
    )  # fmt: skip


def _port(part: FixedPart, name: str, tensor: torch.Tensor) -> Port:
    free = part.free.get(name, {})
    shape = tuple(free.get(place, size) for place, size in enumerate(tensor.shape))
    return Port(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=shape)


def _not_possible(context: StageContext, source: Path, cause: str) -> Permanent:
    made = ", ".join(spec.name for spec in catalog().variants.values() if context.stage in spec.needs)
    remedy = f"leave the variants that are made of it out of export.variants ({made})"
    return not_possible(context, cause, source, remedy=remedy, operation=f"make the stage {context.stage}")
