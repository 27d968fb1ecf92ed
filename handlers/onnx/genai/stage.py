"""The stages `onnx-genai-fp32` and `-fp16`, and what `int4` shares with them: a folder that onnxruntime-genai runs, made from the weights.

Run by `handlers/__main__.py`. The graph is the builder's own, with GroupQueryAttention, which onnxruntime-genai needs for a cache of
fixed size; it is not derived from the graph of the onnx stage. Imports torch and transformers.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tokenizers import Tokenizer

from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.jobs.messages import Fallback, StageContext
from daemon.contract.version import __version__
from handlers.child import foreign
from handlers.child.progress import Reporter, StageOutput
from handlers.families.base import architecture
from handlers.families.warnings.library_warnings import LibraryWarnings
from handlers.folder import genai_config
from handlers.graphs.graph_file import DATA_FILE, MODEL_FILE
from handlers.models.files import copy_tokenizer
from handlers.models.folder import ModelFolder, copy_config
from handlers.models.releases.older_readers import make_readable
from handlers.models.tasks import BY_NAME
from handlers.onnx.export.building import metadata
from handlers.onnx.genai.source import OPERATION, check_supported, prepare, unsupported

LIBRARY = "onnxruntime-genai"
AGAIN = "leave the variant out, and read the attempt's log"
SPACE = (
    "onnxruntime-genai's tokenizer.decode writes a space before a text that begins without a first token; transformers writes none:"
    ' take it away with .removeprefix(" ")'
)
TRIAL_ROOM = 64
"""Tokens for which the trial run's cache has room."""


@dataclass(frozen=True)
class BuilderRequest:
    """What the builder is asked for."""

    precision: str
    """"fp32", "fp16" or "int4"."""
    provider: str = "cpu"
    """What the builder builds for; it changes the graph alone, since the folder names no provider."""
    options: dict[str, str] = field(default_factory=dict)


def fp32(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `onnx-genai-fp32`."""
    return build(context, reporter, BuilderRequest("fp32"))


def fp16(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `onnx-genai-fp16`, for GPUs and for the CPU.

    What the builder builds for the CPU in fp16 has no GroupQueryAttention and fails at the second token. What it builds for CUDA, with
    the norms of queries and keys as operators of their own, runs on both, since onnxruntime's CPU kernels know fp16 too; so that is
    what is built, and it is validated on the CPU.
    """
    return build(context, reporter, BuilderRequest("fp16", "cuda", {"fuse_qk_norm_gqa": "false"}))


def build(context: StageContext, reporter: Reporter, order: BuilderRequest) -> StageOutput:
    """Build the merged model into the staging folder, with configuration and tokenizer as they are, and run it once.

    Permanent `unsupported-architecture`, `tokenizer-not-found`, or `builder-failed`, also when it does not run.
    """
    source, staging = Path(context.inputs["merge"]), Path(context.staging)
    check_supported(source)
    reporter.progress(0.05, "loading onnxruntime-genai's builder")
    builder = load_builder()
    reporter.progress(0.15, "building the graph")
    with LibraryWarnings() as chatter:
        said = _run_builder(builder, prepare(context), staging, Path(context.temporary) / "builder", order)
    reporter.progress(0.8, "describing the folder")
    has_template = _tidy(context, order)
    reporter.progress(0.85, "running the folder with onnxruntime-genai")
    spaces = try_out(staging)
    figures = {**_figures(source, staging, order), "chat_template": has_template}
    return StageOutput(figures=figures, warnings=[*chatter.lines, *said, *spaces], fallbacks=_other_opset(context, figures["opset"]))


def _other_opset(context: StageContext, taken: object) -> list[Fallback]:
    wanted = context.work.export.opset
    if wanted == taken:
        return []
    reason = "onnxruntime-genai's builder writes only this one, and onnxruntime-genai runs it, even if other runtimes do not"
    return [Fallback(wanted=f"opset {wanted}", taken=f"opset {taken}", reason=reason)]


def load_builder() -> Any:
    """The builder's module; Permanent where onnxruntime-genai is not installed."""
    try:
        importlib.import_module("onnxruntime_genai.models")  # puts the folder of the builder's own modules on the path
        return importlib.import_module("onnxruntime_genai.models.builder")
    except ImportError as error:
        cause = f"onnxruntime-genai can't be imported: {error}"
        raise Permanent(FaultCode.PACKAGE_MISSING, OPERATION, cause, f"install it: pip install {LIBRARY}") from error


def _run_builder(builder: Any, source: Path, target: Path, cache: Path, order: BuilderRequest) -> list[str]:
    """Run the builder in this process; gives the warnings that it printed."""
    options = {"hf_token": "false", "hf_remote": "false", "windowed_kv_cache": "false", **order.options}
    pairs = [f"{name}={value}" for name, value in options.items()]
    places = (None, str(source), str(target), order.precision, order.provider, str(cache))
    quiet = logging.getLogger("onnxruntime.quantization.matmul_nbits_quantizer")
    level = quiet.level
    quiet.setLevel(logging.WARNING)
    printed, bar = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(bar):
            builder.create_model(*places, **builder.parse_extra_options(*places, pairs))
    except (OSError, MemoryError, CkptdError):
        raise
    except NotImplementedError as error:
        raise unsupported(source, f"onnxruntime-genai's builder does not build it: {error}") from error
    except Exception as error:
        if foreign.of_machine(error):
            raise
        cause = f"onnxruntime-genai's builder failed: {foreign.in_words(error)}"
        raise Permanent(FaultCode.BUILDER_FAILED, OPERATION, cause, AGAIN, path=source, details=printed.getvalue()[-2000:]) from error
    finally:
        quiet.setLevel(level)
    return [line for line in printed.getvalue().splitlines() if line.lower().startswith("warning")]


def _tidy(context: StageContext, order: BuilderRequest) -> bool:
    """Leave the graph and its configuration, and put the model's own files beside them instead of the builder's versions.

    Gives whether there is a chat template among them.
    """
    source, staging = Path(context.inputs["merge"]), Path(context.staging)
    for path in staging.iterdir():
        if path.name not in (MODEL_FILE, DATA_FILE, genai_config.FILE):
            path.unlink()
    copy_config(ModelFolder(source), staging)
    copied = copy_tokenizer(Path(context.pin), Path(context.base) if context.base else None, staging)
    make_readable(staging)
    genai_config.finish(staging)
    proto = onnx.load(staging / MODEL_FILE, load_external_data=False)
    opset = next(imported.version for imported in proto.opset_import if imported.domain == "")
    facts = metadata(context, opset, BY_NAME["text-generation"])
    facts |= {"ckptd.dtype": order.precision, "ckptd.builder": f"{LIBRARY} {importlib.metadata.version(LIBRARY)}"}
    # The builder writes the commit of whatever repository its installation lies in.
    proto.producer_name, proto.producer_version = "ckptd", __version__
    onnx.helper.set_model_props(proto, {name: str(value) for name, value in facts.items() if value is not None})
    onnx.save_model(proto, staging / MODEL_FILE)
    return copied.chat_template


def try_out(folder: Path) -> list[str]:
    """Let onnxruntime-genai load the folder and decode two tokens; gives what it writes otherwise than transformers, as a warning.

    Permanent `builder-failed` when it can't.
    """
    genai: Any = importlib.import_module("onnxruntime_genai")
    try:
        config = genai.Config(str(folder))
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {"log_severity_level": 4}}}}))
        model = genai.Model(config)
        tokenizer = genai.Tokenizer(model)
        parameters = genai.GeneratorParams(model)
        room = min(TRIAL_ROOM, genai_config.read(folder)["model"]["context_length"])
        parameters.set_search_options(max_length=room, do_sample=False, num_beams=1, num_return_sequences=1)
        generator = genai.Generator(model, parameters)
        generator.append_tokens(np.array([list(tokenizer.encode("a b"))[: room - 2] or [0]], np.int32))
        for _ in range(2):
            generator.append_tokens(np.array([[int(generator.get_logits().argmax())]], np.int32))
        logits = np.asarray(generator.get_output("logits"), np.float32)
    except RuntimeError as error:
        cause = f"onnxruntime-genai does not run it: {str(error).strip().splitlines()[0]}"
        raise Permanent(FaultCode.BUILDER_FAILED, OPERATION, cause, AGAIN, path=folder) from error
    if not np.isfinite(logits).all():
        raise Permanent(FaultCode.BUILDER_FAILED, OPERATION, "its logits are not finite", AGAIN, path=folder)
    return spaces_before(tokenizer, folder)


def spaces_before(tokenizer: Any, folder: Path) -> list[str]:
    """A warning where onnxruntime-genai's `tokenizer` of a folder writes a space before a text, and tokenizer.json says none."""
    tokenizer.update_options(add_special_tokens="true")
    words = [int(token) for token in tokenizer.encode("a b")]
    written = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(words)
    return [SPACE] if str(tokenizer.decode(np.array(words, np.int32))) == f" {written}" else []


def _figures(source: Path, staging: Path, order: BuilderRequest) -> dict[str, object]:
    proto = onnx.load(staging / MODEL_FILE, load_external_data=False)
    counts = Counter(node.op_type for node in proto.graph.node)
    return {
        "architecture": architecture(source),
        "precision": order.precision,
        "opset": next(imported.version for imported in proto.opset_import if imported.domain == ""),
        "nodes": len(proto.graph.node),
        "op_types": {name: counts[name] for name in sorted(counts) if name in ("GroupQueryAttention", "MatMul", "MatMulNBits")},
        "graph_bytes": sum((staging / name).stat().st_size for name in (MODEL_FILE, DATA_FILE)),
        "external_data": True,
        "end_tokens": list(genai_config.end_tokens(genai_config.read(staging))),
    }
