"""The stages `openvino`, `openvino-int8` and `openvino-int4`: what the onnx stage exported as OpenVINO's models, and smaller forms of them.

Run by `handlers/__main__.py` with the Python of the toolchain `openvino`. No model is traced again. A decoder keeps its
cache to itself; the folder is what OpenVINO GenAI and optimum-intel load. Whether the result is right is the check's verdict: every form
is run by OpenVINO and compared with the live model.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import UNREACHED, not_possible, warn_of_little
from handlers.folder import examples, opening, tokenizers
from handlers.graphs import graphset, smaller
from handlers.graphs.attention import marks
from handlers.openvino import library
from handlers.openvino.converting import compression, conversion, tokenizer
from handlers.openvino.options import OpenVinoOptions
from handlers.texts.selection import calibration_texts

SESSION = Path(__file__).with_name("session.py")
CAUSAL = "causal"
MERGED = "decoder_merged"
TRIAL_TOKENS = 2
SMALL = frozenset({"u8", "i8", "u4", "i4"})
"""OpenVINO's names of the types that weights are rounded to."""


def plain(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `openvino`. Permanent `form-not-possible`."""
    source, staging = Path(context.inputs["onnx"]), Path(context.staging)
    known = graphset.read(source)
    stateful = known.family == CAUSAL
    graphs = tuple(graph for graph in known.graphs if graph.role != MERGED)  # the two decoders that it is made of are there
    _check(context, known, graphs)
    made = []
    for number, graph in enumerate(graphs):
        reporter.progress(0.05 + 0.6 * number / len(graphs), f"converting {graph.file}")
        try:
            model = conversion.convert(source / graph.file)
            if stateful:
                conversion.make_stateful(model, [port.name for port in graph.inputs if port.name.startswith("past_key_values.")])
            without = set() if stateful else conversion.leave_out_what_is_only_read(model)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # its frontend raises types of its own, all of them about what it does not know
            raise not_possible(context, _describe(error), source) from error
        made.append(_saved(model, graph, staging, without, stateful=stateful))
        del model
    known.model_copy(update={"graphs": tuple(made), "opset": 0, "extra": marks.marked(known.extra)}).write(staging)
    reporter.progress(0.7, "copying configuration and tokenizer")
    graphset.copy_beside(source, staging, known, {examples.NAME})
    if not stateful:
        opening.place(known.task, staging, SESSION, "openvino")
    figures: dict[str, Any] = {"library": importlib.metadata.version("openvino"), "graphs": {graph.role: graph.file for graph in made}}
    warnings = []
    if stateful:
        reporter.progress(0.75, "converting the tokenizer")
        why = _tokenizer(staging) or _genai(context)
        if why:
            tokenizer.remove(staging)
        figures["genai"] = not why
        warnings += [f"OpenVINO GenAI can't run this folder: {why}; OpenVINO itself and optimum-intel can"] if why else []
    return StageOutput(figures=figures | _sizes(staging, made), warnings=warnings)


def int8(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `openvino-int8`."""
    return _smaller(context, reporter, "int8", compression.int8)


def int4(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `openvino-int4`."""
    options = context.work.options(OpenVinoOptions)
    source = Path(context.inputs["openvino"])
    rows: list[list[int]] = []
    if graphset.read(source).family == CAUSAL and options.calibration_samples:
        texts = calibration_texts(context, options.calibration_samples, source)
        reader = tokenizers.load(source)
        rows = [row for row in (reader.encode(text) for text in texts.plain) if row]
    output = _smaller(context, reporter, "int4", lambda model: compression.int4(model, options.group_size, rows))
    output.figures |= {"block_size": options.group_size, "calibration_texts": len(rows)}
    return output


def _smaller(context: StageContext, reporter: Reporter, dtype: str, compress: Callable[[Any], Any]) -> StageOutput:
    core, staging = library.openvino().Core(), Path(context.staging)

    def write(source: Path, target: Path, graph: graphset.Graph) -> None:
        library.openvino().save_model(compress(core.read_model(str(source))), str(target), compress_to_fp16=False)

    made = smaller.compressed(context, reporter, "openvino", dtype, write, "nncf")
    made.write(staging)
    sizes = _sizes(staging, list(made.graphs))
    figures = {**smaller.figures(dtype, "nncf", sizes["weights"], SMALL), **sizes}
    return StageOutput(figures=figures, warnings=warn_of_little(figures["small_share"], UNREACHED))


def _check(context: StageContext, known: graphset.GraphSet, graphs: tuple[graphset.Graph, ...]) -> None:
    if known.family != CAUSAL:
        return
    cause = ""
    if not any(port.name.startswith("past_key_values.") for port in graphs[0].inputs):
        cause = "its ONNX graph has no cache, which OpenVINO would keep for it"
    elif len(graphs) > 1:
        cause = "its ONNX form is a chain of graphs, and OpenVINO takes a language model in one piece"
    if cause:
        raise not_possible(context, cause, context.inputs["onnx"])


def _saved(model: Any, graph: graphset.Graph, staging: Path, without: set[str], *, stateful: bool) -> graphset.Graph:
    path = staging / conversion.file_of(graph)
    library.openvino().save_model(model, str(path), compress_to_fp16=False)  # it would store halves otherwise
    return conversion.described(graph, path.with_suffix(".bin").name, without, stateful=stateful)


def _sizes(staging: Path, made: list[graphset.Graph]) -> dict[str, Any]:
    files = {staging / name for graph in made for name in (graph.file, *graph.data)}
    weights: dict[str, int] = {}
    for graph in made:
        for kind, count in compression.bits(staging / graph.file).items():
            weights[kind] = weights.get(kind, 0) + count
    return {"graph_bytes": sum(path.stat().st_size for path in files), "weights": weights}


def _tokenizer(staging: Path) -> str:
    """Why there is no tokenizer of OpenVINO's; "" where there is one."""
    try:
        tokenizer.place(staging)
    except tokenizer.Unlike as error:
        return str(error)
    return ""


def _genai(context: StageContext) -> str:
    """Why OpenVINO GenAI does not write with the folder; "" where it does."""
    try:
        genai = library.genai()
        pipeline = genai.LLMPipeline(context.staging, "CPU", INFERENCE_NUM_THREADS=str(context.limits.threads))
        pipeline.generate("a b", max_new_tokens=TRIAL_TOKENS, do_sample=False, apply_chat_template=False)
    except (RuntimeError, ImportError) as error:
        return _describe(error)
    return ""


def _describe(error: BaseException) -> str:
    """What an error of OpenVINO's comes to: its summary where it has one, else its last line."""
    lines = [line.strip(" -") for line in str(error).partition("\nSummary:")[2].splitlines() or str(error).splitlines() if line.strip(" -")]
    said = "; ".join(lines) if "\nSummary:" in str(error) else (lines[-1] if lines else type(error).__name__)
    return f"OpenVINO {importlib.metadata.version('openvino')} says: {said[:400]}"
