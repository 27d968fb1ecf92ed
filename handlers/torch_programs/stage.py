"""The stages `torchscript`, `pt2` and `pt2-aoti`: the merged model traced by `torch.jit.trace`, exported by `torch.export`, or compiled.

Run by `handlers/__main__.py`. The parts that a model is divided into, their inputs and outputs, and what they are compared on are those of
the ONNX stages (`handlers.families`): a decoder has one program for prefill and decoding, with its cache as plain tensors; an
encoder-decoder has an encoder and two decoders. The example to trace with has several rows, several tokens and a past, since a trace of
one token or without a past is wrong for others, silently. Every program is then run at other sizes than it was traced with and compared
with the model. If that fails with one of transformers' implementations of attention, the next one is tried.

Of the control flow, TorchScript gets what a user needs of it: `torch.jit.script` takes none of transformers' models as a whole, only
their small layers, which have none; so a decoder's file has a scripted loop around the traced step (`loop`). What
`torch.jit.optimize_for_inference` makes of a program is compared too, and not saved: it chooses by the torch and the processor that it
runs on, so `program.py` offers it where the program is loaded.

`torch.export` derives from its example that a size is at least 2; the ranges that a program checks are widened, and the comparison shows
that it is right for 1 and 0 too.
"""

from __future__ import annotations

import dataclasses
import gc
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._sympy.value_ranges import ValueRanges

from daemon.contract.faults.errors import CkptdError
from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child import foreign
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import not_possible
from handlers.families.base import Family, Part, Tracing, architecture, release
from handlers.families.choice import choose
from handlers.families.seq2seq.family import Seq2Seq
from handlers.families.warnings.library_warnings import LibraryWarnings, report_lines
from handlers.folder import companions, opening
from handlers.graphs.graphset import Graph, GraphSet, Port
from handlers.graphs.signature import CausalSignature, Signature
from handlers.torch_programs import compiled, loop
from handlers.torch_programs.program import EXPORTED, SCRIPT, Program

PROGRAM = Path(__file__).with_name("program.py")
ATTENTION = ("sdpa", "eager")
"""transformers' implementations, in the order in which they are tried: the first one is faster."""
Save = Callable[[Part, Path], None]


def trace(part: Part, path: Path) -> None:
    """Write a part as TorchScript: traced, with its weights as constants (frozen). A decoder gets a scripted loop around it."""
    with torch.no_grad():
        traced = torch.jit.trace(part.module, part.example, check_trace=False)  # every program is compared with the model anyway
        frozen = torch.jit.freeze(traced)
        torch.jit.save(loop.with_loop(frozen, part.signature) if isinstance(part.signature, CausalSignature) else frozen, str(path))


def export(part: Part, path: Path) -> None:
    """Write a part as what torch.export makes of it."""
    torch.export.save(exported(part), path)


def exported(part: Part) -> torch.export.ExportedProgram:
    """What torch.export makes of a part, with all axes of its signature dynamic."""
    dynamic = torch.export.Dim.DYNAMIC
    shapes = tuple(dict.fromkeys(part.signature.axes.get(name, {}), dynamic) or None for name in part.signature.inputs)
    program = torch.export.export(part.module, part.example, dynamic_shapes=(shapes,), strict=False)
    for symbol, values in list(program.range_constraints.items()):
        program.range_constraints[symbol] = ValueRanges(0, values.upper)
    return program


def torchscript(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `torchscript`."""
    return _run(context, reporter, trace, SCRIPT)


def pt2_aoti(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `pt2-aoti`. Permanent without a C++ compiler."""
    cxx = compiled.compiler(context.stage)

    def save(part: Part, path: Path) -> None:
        compiled.write(exported(part), path, cxx, Path(context.temporary))

    output = _run(context, reporter, save, EXPORTED)
    march, _ = compiled.MARCH.get(platform.machine(), ("", 0))
    files = [Path(context.staging) / name for name in output.figures["graphs"].values()]
    return dataclasses.replace(
        output, figures={**output.figures, "compiled_for": march or platform.machine(), "system_libraries": compiled.needed(files[0])}
    )


def pt2(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `pt2`."""
    return _run(context, reporter, export, EXPORTED)


def _run(context: StageContext, reporter: Reporter, save: Save, ending: str) -> StageOutput:
    source, staging = Path(context.inputs["merge"]), Path(context.staging)
    torch.set_num_threads(context.limits.threads)
    family = choose(source)
    if isinstance(family, Seq2Seq):
        family = Seq2Seq(family.task, merges=False)
    figures, fallbacks, warnings = _first_that_works(context, reporter, family, save, ending)
    reporter.progress(0.9, "copying configuration and tokenizer")
    tokenizer = companions.place(context, source, staging)
    opening.place(family.task.name, staging, PROGRAM, "torch")
    figures |= {"tokenizer": tokenizer.form, "chat_template": tokenizer.chat_template}
    warnings += [tokenizer.warning] if tokenizer.warning else []
    return StageOutput(strategy=str(figures["attention"]), figures=figures, warnings=warnings, fallbacks=fallbacks)


def _first_that_works(
    context: StageContext, reporter: Reporter, family: Family, save: Save, ending: str
) -> tuple[dict[str, Any], list[Fallback], list[str]]:
    source, staging, failures = Path(context.inputs["merge"]), Path(context.staging), dict[str, str]()
    for attention in ATTENTION:
        try:
            with LibraryWarnings() as chatter:
                figures, reference = _written(context, reporter, family, save, ending, attention)
            warnings = report_lines(chatter, family, reference)  # raises where a branch was fixed that no comparison could try
        except CkptdError:
            raise  # of the model itself: no other way would end otherwise
        except Exception as error:  # a tracer fails in many ways, and so does what it made
            failures[attention] = foreign.in_words(error)
            reporter.warn(f"with {attention} attention it failed: {failures[attention]}")
            for path in (*staging.glob("*.pt*"), staging / "graphs.json"):
                path.unlink(missing_ok=True)
            continue
        fallbacks = [Fallback(wanted=failed, taken=attention, reason=why) for failed, why in failures.items()]
        return figures, fallbacks, warnings
    causes = "; ".join(f"with {attention} attention: {why}" for attention, why in failures.items())
    raise not_possible(context, f"PyTorch makes no program of {architecture(source)} ({causes})", source)


def _written(
    context: StageContext, reporter: Reporter, family: Family, save: Save, ending: str, attention: str
) -> tuple[dict[str, Any], Any]:
    """Write all programs and compare them with the model; raises whatever the tracer or the comparison raises."""
    source, staging = Path(context.inputs["merge"]), Path(context.staging)
    reporter.progress(0.05, f"loading the model with {attention} attention")
    model = family.load(source, Tracing(attention))
    reference = family.refer(model, source)
    started, graphs = time.monotonic(), list[Graph]()
    parts = family.parts(model, reference)
    for number, part in enumerate(parts):
        reporter.progress(0.1 + 0.6 * number / len(parts), f"tracing the {part.role}")
        path = (staging / part.file).with_suffix(ending)
        with torch.no_grad():
            given = part.module(*part.example)
        save(part, path)
        graphs.append(
            Graph(
                role=part.role, file=path.name, inputs=_ports(part.signature, part.signature.inputs, part.example),
                outputs=_ports(part.signature, part.signature.outputs, given if isinstance(given, tuple) else (given,)),
            )
        )  # fmt: skip
    seconds = time.monotonic() - started
    made = GraphSet(task=family.task.name, family=family.name, dtype="float32", opset=0, graphs=tuple(graphs))
    made.write(staging)
    release(model)
    del model, parts
    gc.collect()
    reporter.progress(0.75, "comparing the programs with the model")

    def opened(path: Path, _signature: Signature, _threads: int) -> Program:
        return Program(path.with_suffix(ending))

    error = family.verify(staging, reference, threads=context.limits.threads, opened=opened)
    more = _more_of_scripts(family, staging, reference, made) if ending == SCRIPT else {}
    figures = {
        "architecture": architecture(source), "task": family.task.name, "attention": attention, "relative_error": error,
        "export_seconds": round(seconds, 3), "graphs": {graph.role: graph.file for graph in graphs}, "graph_bytes": made.size(staging),
        "inputs": [port.name for port in graphs[0].inputs], "outputs": [port.name for port in graphs[0].outputs], **more,
    }  # fmt: skip
    return figures, reference


def _more_of_scripts(family: Family, staging: Path, reference: Any, made: GraphSet) -> dict[str, Any]:
    """What else TorchScript can do: the programs optimized where they run, and the loop inside a decoder; both compared."""

    def optimized(path: Path, _signature: Signature, _threads: int) -> Program:
        return Program(path.with_suffix(SCRIPT), optimized=True)

    figures: dict[str, Any] = {"optimized_relative_error": family.verify(staging, reference, opened=optimized)}
    signature = getattr(reference, "signature", None)
    if isinstance(signature, CausalSignature):
        program = Program(staging / made.graphs[0].file)
        vocabulary = int(program.get_outputs()[0].shape[-1])
        figures["scripted"] = {"method": loop.NAME, "cases": loop.compare(program, signature, vocabulary)}
    return figures


def _ports(signature: Signature, names: Sequence[str], tensors: Sequence[torch.Tensor]) -> tuple[Port, ...]:
    return tuple(
        Port(
            name=name, dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(signature.axes.get(name, {}).get(place, size) for place, size in enumerate(tensor.shape)),
        )
        for name, tensor in zip(names, tensors, strict=True)
    )  # fmt: skip
