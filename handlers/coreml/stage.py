"""The stages `coreml…`: the programs of fixed sizes as Core ML packages for iOS 18 and macOS 15, and smaller forms of these.

Run by `handlers/__main__.py` with the Python of the toolchain `coreml`. Every package is read from disk again and tried on a few tokens, so
that what can't be evaluated, or overflows in half precision, is found here; whether it is right is the check's verdict.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from daemon.contract.jobs.messages import Fallback, StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import refusing, warn_of_little
from handlers.coreml.compressing import compression
from handlers.coreml.converting import conversion, rewriting
from handlers.coreml.evaluation import package
from handlers.coreml.evaluation.evaluator import Evaluator
from handlers.coreml.options import CoreMlOptions
from handlers.graphs import graphset, smaller
from handlers.graphs.graphset import Graph, GraphSet
from handlers.models.files import setting
from handlers.static_programs.description import LENGTH

SIZES = "sizes"
"""Key in `GraphSet.extra`: role → the numbers of tokens that its package takes."""
SMALL = frozenset({"int8", "int4", "uint4"})
MOSTLY = 0.5
"""Share of the weights in more bits than the variant's above which that is worth a warning."""
_WIDER = {8: frozenset[str](), 4: frozenset({"int8"})}
_HALF, _SINGLE = "float16", "float32"


def plain(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `coreml`. Permanent `form-not-possible`."""
    torch.set_num_threads(context.limits.threads)
    wanted = context.work.options(CoreMlOptions).precision
    output, overflows = _converted(context, reporter, wanted)
    if not overflows or wanted == _SINGLE:
        return output
    reporter.warn(f"{overflows}: it is made again in {_SINGLE}")
    output, _ = _converted(context, reporter, _SINGLE)
    output.fallbacks.append(Fallback(wanted=_HALF, taken=_SINGLE, reason=overflows))
    return output


def int8(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `coreml-int8`. Permanent `form-not-possible`."""
    return _smaller(context, reporter, "int8", compression.int8)


def int4(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `coreml-int4`. Permanent `form-not-possible`."""
    block, blocks = context.work.options(CoreMlOptions).block_size, Counter[str]()
    output = _smaller(context, reporter, "int4", lambda source, target: blocks.update(compression.int4(source, target, block)))
    output.figures |= {"block_size": block, "blocks": dict(sorted(blocks.items()))}
    return output


def palettized(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `coreml-palettized`. Permanent `form-not-possible`."""
    rows = context.work.options(CoreMlOptions).palette_rows
    output = _smaller(context, reporter, "int4", lambda source, target: compression.palettized(source, target, rows))
    output.figures |= {"palette_rows": rows}
    return output


def _converted(context: StageContext, reporter: Reporter, precision: str) -> tuple[StageOutput, str]:
    """The output, and why half precision is not enough for it, if so."""
    source, staging = Path(context.inputs["static-programs"]), Path(context.staging)
    known = graphset.read(source)
    length, made, sizes, rewritten = int(known.extra[LENGTH]), list[Graph](), dict[str, list[int]](), Counter[str]()
    for number, graph in enumerate(known.graphs):
        reporter.progress(0.05 + 0.6 * number / len(known.graphs), f"converting {graph.file}")
        chosen = conversion.sizes_of(graph.role, length, tuple(known.extra["bounds"][graph.role]))
        target = conversion.described(graph, f"{Path(graph.file).stem}{conversion.SUFFIX}")
        with refusing(context, "Core ML Tools do not convert it"):
            rewritten.update(conversion.convert(source / graph.file, graph, length, chosen, staging / target.file, half=precision == _HALF))
        sizes[graph.role] = sorted({shape[1] for shape in package.read(staging / target.file).shapes["input_ids"]})
        made.append(target)
    print(f"rewritten: {rewriting.patterns(rewritten)}", flush=True)
    described = known.model_copy(update={"graphs": tuple(made), "dtype": precision, "extra": {LENGTH: length, SIZES: sizes}})
    if not (staging / "config.json").exists():  # a second time, everything but the packages is there
        graphset.copy_beside(source, staging, known)
    figures, overflows = _finished(context, reporter, described)
    figures |= {"library": importlib.metadata.version("coremltools"), "precision": precision}
    return StageOutput(figures=figures), overflows


def _smaller(context: StageContext, reporter: Reporter, dtype: str, compress: Callable[[Path, Path], None]) -> StageOutput:
    made = smaller.compressed(context, reporter, "coreml", dtype, lambda source, target, _: compress(source, target), "coremltools")
    figures, _ = _finished(context, reporter, made)
    weights = figures["weights"]
    figures |= smaller.figures(dtype, "coremltools", weights, SMALL)
    warnings = warn_of_little(figures["small_share"], "no matrices or tables")
    wider = sum(count for kind, count in weights.items() if kind in _WIDER[figures["bits"]]) / max(1, sum(weights.values()))
    if wider > MOSTLY:
        warnings.append(f"{wider:.0%} of the weights have 8 bits: tables of tokens, the head, and experts of a mixture get no fewer")
    return StageOutput(figures=figures, warnings=warnings)


def _finished(context: StageContext, reporter: Reporter, made: GraphSet) -> tuple[dict[str, Any], str]:
    """Describe the packages and try them; what is to say of them, and why half precision is not enough, if so."""
    staging, weights, overflows = Path(context.staging), Counter[str](), ""
    made.write(staging)
    for graph in made.graphs:
        reporter.progress(0.85, f"trying {graph.file}")
        path = staging / graph.file
        with refusing(context, f"{graph.file} is not sound"):
            finite = _finite(path)
        overflows = overflows or ("" if finite else f"{graph.file} gives numbers that are not finite in half precision")
        weights.update(compression.weights(path))
    files = [path for graph in made.graphs for path in (staging / graph.file).rglob("*") if path.is_file()]
    sizes = {LENGTH: int(made.extra[LENGTH]), SIZES: made.extra[SIZES], "graphs": {graph.role: graph.file for graph in made.graphs}}
    return {**sizes, "graph_bytes": sum(path.stat().st_size for path in files), "weights": dict(weights)}, overflows


def _finite(path: Path) -> bool:
    """Whether a package as it lies on disk gives finite numbers for a few tokens at each of its sizes, the last ones of its room too.

    Raises Unreadable for an operator that is not evaluated here, and for a program that contradicts itself.
    """
    evaluator, random = Evaluator(package.read(path)), np.random.default_rng(0)
    tokens = _tokens(path.parent)
    shapes = evaluator.program.shapes
    for place in range(max(map(len, shapes.values()))):
        feeds: dict[str, np.ndarray] = {}
        for name, kind in evaluator.program.inputs.items():
            shape = shapes[name][min(place, len(shapes[name]) - 1)]
            if kind.dtype.startswith("float"):
                feeds[name] = random.normal(size=shape).astype(np.float32)
            elif name == "position_ids":
                feeds[name] = np.arange(shape[1], dtype=np.int32)[None]
            elif name == "input_ids":  # many tokens: the one that pads has a row of zeros in many tables
                feeds[name] = np.resize(tokens, shape).astype(np.int32)
            else:
                feeds[name] = np.ones(shape, np.int32) if "mask" in name else np.zeros(shape, np.int32)
        outputs, _ = evaluator.run(evaluator.start(), feeds)
        if not all(np.isfinite(array).all() for array in outputs.values()):
            return False
    return True


def _tokens(folder: Path) -> np.ndarray:
    """Some token ids that every part of the model of a folder knows."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sizes = [size for key in ("vocab_size", "decoder_vocab_size") if isinstance(size := setting(config, key), int)]
    return np.arange(min([1, *sizes]) - 1, min([64, *sizes]))
