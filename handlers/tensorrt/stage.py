"""The stages `tensorrt-bundle` and `tensorrt-bundle-fp16`: ONNX graphs with all that a machine with an NVIDIA GPU needs to build engines.

Run by `handlers/__main__.py`. No model is traced again. The folder holds the graphs of an operator set that TensorRT's parser takes, the
sizes to build for, two ways to build (trtexec, Python), examples with what the model says of them, and `verify.py`, which compares the
engines with it there. TensorRT itself is not needed here, and is not run here.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import not_possible
from handlers.folder import examples as onnx_examples
from handlers.folder import opening
from handlers.graphs import graphset
from handlers.graphs.attention import marks
from handlers.graphs.graphset import GraphSet
from handlers.models.files import read_json
from handlers.tensorrt.box import verify
from handlers.tensorrt.bundle import build_script, examples, opset, profiles
from handlers.tensorrt.options import TensorRtOptions
from handlers.validate.engines.task_profile import context_length

BOX = Path(__file__).parent / "box"
FILES = ("build.py", "verify.py", "session.py")
MERGED = "decoder_merged"


def made(context: StageContext, reporter: Reporter, graphs: str) -> StageOutput:
    """One of the stages, of the graphs of the stage `graphs`. Permanent `form-not-possible`."""
    source, staging = Path(context.inputs[graphs]), Path(context.staging)
    options, threads = context.work.options(TensorRtOptions), context.limits.threads
    output = StageOutput()
    reporter.progress(0.05, "copying the graphs")
    try:
        known, before = _graphs(source, staging, options)
        longest = context_length(read_json(staging / "config.json", "read the model's configuration"))
        ranges = {graph.role: profiles.made_for(graph, options, longest) for graph in known.graphs}
        reporter.progress(0.3, "running the graphs at the sizes of their profiles")
        runs = sum(profiles.prove(staging, graph, ranges[graph.role], threads) for graph in known.graphs)
    except opset.NotTaken as error:
        raise not_possible(context, error.cause, source, remedy=error.remedy) from error
    except profiles.NoProfile as error:
        raise not_possible(context, str(error), source) from error
    if before:
        wanted, taken = f"opset {before}", f"opset {known.opset}"
        reason = "tensorrt.newest_opset allows no newer one; every operator means the same in both, and the outputs are the same"
        output.fallbacks.append(Fallback(wanted=wanted, taken=taken, reason=reason))
    facts = profiles.written(known, ranges, options)
    (staging / profiles.FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    (staging / build_script.NAME).write_text(build_script.script(facts), encoding="utf-8")
    for name in FILES:
        shutil.copyfile(BOX / name, staging / name)
    if (source / onnx_examples.NAME).is_file() and known.graph("embedding") is None:
        opening.place(known.task, staging, BOX / "session.py", "tensorrt or tensorrt_rtx")
    reporter.progress(0.6, "making examples to verify engines with")
    most = min(options.max_tokens, longest or options.max_tokens)
    texts = examples.write(staging, known, options, most, threads)
    if texts.why_random:
        output.fallbacks.append(Fallback(wanted="texts to verify engines with", taken="random tokens", reason=texts.why_random))
    reporter.progress(0.85, "running verify.py")
    outcome = verify.verify(staging, "onnxruntime", threads=threads)
    if outcome.verdict != "passed":
        raise Permanent(
            FaultCode.INVALID_GRAPH, f"make the variant {context.stage}",
            f"a cache or a batch changes what the graphs say: {outcome.reason}",
            "leave the variant out, and read the attempt's log", path=source,
        )  # fmt: skip
    output.figures = {
        "opset": known.opset, "graphs": {graph.role: graph.file for graph in known.graphs}, "graph_bytes": known.size(staging),
        "dtype": known.dtype, "profiles": {role: [profile.name for profile in some] for role, some in ranges.items()}, "profile_runs": runs,
        "max_batch": options.max_batch, "max_tokens": most, "examples": len(verify.cases(staging)["cases"]), "verify_error": outcome.error,
        "engines": [graph["engine"] for graph in facts["graphs"]],
    }  # fmt: skip
    return output


bundle, bundle_fp16 = (functools.partial(made, graphs=graphs) for graphs in ("onnx", "onnx-fp16"))


def _graphs(source: Path, staging: Path, options: TensorRtOptions) -> tuple[GraphSet, int | None]:
    """Copy graphs and what lies beside them, the former as TensorRT's parser takes them; gives the opset that was lowered, if any."""
    known = graphset.read(source)
    graphs = tuple(graph for graph in known.graphs if graph.role != MERGED)  # its parser takes no input that chooses between branches
    for name in {name for graph in graphs for name in graph.data}:
        shutil.copyfile(source / name, staging / name)
    before: int | None = None
    spelt: set[str] = set()
    for graph in graphs:
        stored = onnx.load(str(source / graph.file), load_external_data=False)
        model = opset.with_older_attention(stored, options.newest_opset)
        if model is not stored:
            spelt.add(graph.role)
        opset.check(model, graph.file)
        lowered = opset.lowered(model, options.newest_opset, graph.file)
        before = lowered or before
        if lowered:
            onnx.save(model, str(staging / graph.file))
            opset.checked(staging / graph.file)
        else:
            shutil.copyfile(source / graph.file, staging / graph.file)
    changed = {"graphs": graphs, "opset": options.newest_opset if before else known.opset, "extra": marks.marked(known.extra)}
    made = known.model_copy(update=changed)
    made.write(staging)
    graphset.copy_beside(source, staging, known, {onnx_examples.NAME})
    if before:
        _same_as(source, staging, made, spelt)
    return made, before


def _same_as(source: Path, staging: Path, known: GraphSet, spelt: Collection[str]) -> None:
    """Raises NotTaken where a lowered graph gives other outputs than the one that it was made of.

    `spelt`: the roles of graphs whose attention was one operator, whose sums a runtime may round in another way.
    """
    from handlers.tensorrt.box.session import OrtSession

    for graph in known.graphs:
        random, sizes = np.random.default_rng(0), {"batch": 2, "sequence": 3, "past": 4, "total": 7, "encoder_sequence": 5}
        feeds = {}
        for port in graph.inputs:
            shape = [sizes.get(size, 1) if isinstance(size, str) else size for size in port.shape]
            integers = port.dtype.startswith("int")
            feeds[port.name] = (random.integers(0, 2, shape) if integers else random.normal(size=shape)).astype(port.dtype)
        outputs = [OrtSession(folder / graph.file, 1).run(None, feeds) for folder in (source, staging)]
        share = 1e-5 if graph.role in spelt else 0.0
        if not all(_equal(actual, wanted, share) for actual, wanted in zip(*outputs, strict=True)):
            raise opset.NotTaken(
                f"{graph.file} gives other outputs once its opset is lowered to {known.opset}", f"set export.opset to {known.opset}"
            )


def _equal(actual: np.ndarray, wanted: np.ndarray, share: float) -> bool:
    """Whether two arrays differ by no more than this share of the largest value."""
    if not share:
        return bool(np.array_equal(actual, wanted, equal_nan=True))
    return bool(np.allclose(actual, wanted, rtol=0, atol=share * float(np.abs(wanted).max(initial=0)), equal_nan=True))
