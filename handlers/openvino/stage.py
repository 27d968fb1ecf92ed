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

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.folder import examples, opening, tokenizers
from handlers.graphs import graphset
from handlers.graphs.attention import marks
from handlers.openvino import compression, conversion, library, tokenizer
from handlers.openvino.options import OpenVinoOptions
from handlers.texts.selection import calibration_texts

SESSION = Path(__file__).with_name("session.py")
CAUSAL = "causal"
MERGED = "decoder_merged"
TRIAL_TOKENS = 2
SMALL = frozenset({"u8", "i8", "u4", "i4"})
"""OpenVINO's names of the types that weights are rounded to."""
ENOUGH = 0.8
"""Share of the weights in those types below which the result is worth a warning."""


def plain(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `openvino`. Permanent `form-not-possible`."""
    source, staging = Path(context.inputs["onnx"]), Path(context.staging)
    known = graphset.read(source)
    stateful = known.family == CAUSAL
    graphs = tuple(one for one in known.graphs if one.role != MERGED)  # the two decoders that it is made of are there
    _check(context, known, graphs)
    made = []
    for number, graph in enumerate(graphs):
        reporter.progress(0.05 + 0.6 * number / len(graphs), f"converting {graph.file}")
        try:
            model = conversion.convert(source / graph.file)
            if stateful:
                conversion.make_stateful(model, [one.name for one in graph.inputs if one.name.startswith("past_key_values.")])
        except (OSError, MemoryError):
            raise
        except Exception as error:  # its frontend raises types of its own, all of them about what it does not know
            raise _not_possible(context, _told(error)) from error
        made.append(_saved(model, graph, staging, stateful=stateful))
        del model
    known.model_copy(update={"graphs": tuple(made), "opset": 0, "extra": marks.marked(known.extra)}).write(staging)
    reporter.progress(0.7, "copying configuration and tokenizer")
    graphset.copy_beside(source, staging, known, {examples.NAME})
    if not stateful:
        opening.place(known.task, staging, SESSION, "openvino")
    figures: dict[str, Any] = {"library": importlib.metadata.version("openvino"), "graphs": {one.role: one.file for one in made}}
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
    source, staging = Path(context.inputs["openvino"]), Path(context.staging)
    known = graphset.read(source)
    core, made = library.openvino().Core(), []
    for number, graph in enumerate(known.graphs):
        reporter.progress(0.05 + 0.85 * number / len(known.graphs), f"compressing {graph.file}")
        model = compress(core.read_model(str(source / graph.file)))
        library.openvino().save_model(model, str(staging / graph.file), compress_to_fp16=False)
        made.append(graph)
        del model
    graphset.copy_beside(source, staging, known)
    known.model_copy(update={"dtype": dtype}).write(staging)
    sizes = _sizes(staging, made)
    share = sum(count for kind, count in sizes["weights"].items() if kind in SMALL) / max(1, sum(sizes["weights"].values()))
    told = f"nncf left {1 - share:.0%} of the weights as they are, since they reach their product by an operator that it does not follow"
    figures = {"library": importlib.metadata.version("nncf"), "bits": int(dtype[3:]), "small_share": round(share, 4), **sizes}
    return StageOutput(figures=figures, warnings=[] if share > ENOUGH else [f"{told} (experts of a mixture do)"])


def _check(context: StageContext, known: graphset.GraphSet, graphs: tuple[graphset.Graph, ...]) -> None:
    if known.family == CAUSAL and not any(one.name.startswith("past_key_values.") for one in graphs[0].inputs):
        raise _not_possible(context, "its ONNX graph has no cache, which OpenVINO would keep for it")
    if known.family == CAUSAL and len(graphs) > 1:
        raise _not_possible(context, "its ONNX form is a chain of graphs, and OpenVINO takes a language model in one piece")


def _not_possible(context: StageContext, cause: str) -> Permanent:
    remedy = f"leave {context.stage} out of export.variants"
    return Permanent(FaultCode.FORM_NOT_POSSIBLE, f"make the variant {context.stage}", cause, remedy, path=context.inputs["onnx"])


def _saved(model: Any, graph: graphset.Graph, staging: Path, *, stateful: bool) -> graphset.Graph:
    path = staging / conversion.file_of(graph)
    library.openvino().save_model(model, str(path), compress_to_fp16=False)  # it would store halves otherwise
    return conversion.described(graph, path.with_suffix(".bin").name, stateful=stateful)


def _sizes(staging: Path, made: list[graphset.Graph]) -> dict[str, Any]:
    files = {staging / name for one in made for name in (one.file, *one.data)}
    weights: dict[str, int] = {}
    for one in made:
        for kind, count in compression.bits(staging / one.file).items():
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
        return _told(error)
    return ""


def _told(error: BaseException) -> str:
    """What an error of OpenVINO's comes to: its summary where it has one, else its last line."""
    lines = [line.strip(" -") for line in str(error).partition("\nSummary:")[2].splitlines() or str(error).splitlines() if line.strip(" -")]
    said = "; ".join(lines) if "\nSummary:" in str(error) else (lines[-1] if lines else type(error).__name__)
    return f"OpenVINO {importlib.metadata.version('openvino')} says: {said[:400]}"
