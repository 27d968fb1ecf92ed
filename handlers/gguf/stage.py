"""The stages `gguf-…`: the merged model as one file of llama.cpp's, in one of its precisions, with an Ollama Modelfile beside it.

Run by `handlers/__main__.py` with the Python of the toolchain `gguf`. Weights are read and written a few rows at a time; forms smaller
than 8 bits are made by llama.cpp's own quantizer from a file without loss, which is removed again. What the check runs is llama.cpp.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json
from handlers.child.progress import Reporter, StageOutput
from handlers.gguf import architectures, importance, library, modelfile, vocabulary, writing
from handlers.gguf.architectures import NotPossible
from handlers.gguf.options import GgufOptions
from handlers.gguf.weights import Weights
from handlers.models.folder import GENERATION, ModelFolder
from handlers.onnx.folder import tokenizers
from handlers.texts.selection import calibration_texts
from handlers.validate.engines.generation_rules import end_tokens

LOSSLESS = {"BF16": "bf16", "F16": "f16"}
"""How a file without loss is written, by the dtype of all weights; else in fp32."""


def f16(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `gguf-f16`. Permanent `form-not-possible`, as all of these."""
    return _made(context, reporter, "f16")


def bf16(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `gguf-bf16`."""
    return _made(context, reporter, "bf16")


def q8_0(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `gguf-q8_0`."""
    return _made(context, reporter, "q8_0")


def q6_k(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `gguf-q6_k`."""
    return _made(context, reporter, "q6_k")


def q5_k_m(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `gguf-q5_k_m`."""
    return _made(context, reporter, "q5_k_m")


def q4_k_m(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `gguf-q4_k_m`."""
    return _made(context, reporter, "q4_k_m")


def _made(context: StageContext, reporter: Reporter, kind: str) -> StageOutput:
    try:
        return _Making(context, reporter, kind).run()
    except (NotPossible, writing.TooLarge) as error:
        remedy = f"leave {context.stage} out of export.variants"
        if isinstance(error, writing.TooLarge):
            remedy = "use gguf-bf16 or gguf-q8_0 instead of gguf-f16 in export.variants"
        raise Permanent(
            FaultCode.FORM_NOT_POSSIBLE, f"make the variant {context.stage}", str(error), remedy, path=context.inputs["pytorch"]
        ) from error
    except library.Refused as error:
        raise Permanent(
            FaultCode.FORM_NOT_POSSIBLE, f"make the variant {context.stage}", f"llama.cpp says: {error}",
            f"report it, with the model's config.json; until then leave {context.stage} out of export.variants",
            path=context.inputs["pytorch"],
        ) from error  # fmt: skip


class _Making:
    """One file on its way."""

    def __init__(self, context: StageContext, reporter: Reporter, kind: str) -> None:
        self.context, self.reporter, self.kind = context, reporter, kind
        self.source, self.staging = Path(context.inputs["pytorch"]), Path(context.staging)
        self.scratch = Path(context.temporary)
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.folder = ModelFolder(self.source)
        config: Json = self.folder.config
        self.config: Json = {**config, **config["text_config"]} if "text_config" in config else config
        self.found = architectures.find(self.config)
        self.target = self.staging / f"model-{kind.upper()}.gguf"

    def run(self) -> StageOutput:
        """Make it."""
        weights = Weights(self.folder)
        self._writer("f32")  # what its configuration says comes first: it explains more than a name of a tensor
        try:
            tensors = list(architectures.plan(self.config, self.found, {name: info.shape for name, info in self.folder.headers.items()}))
        except KeyError as error:
            raise NotPossible(f"its config.json does not say {error}") from error
        self.reporter.progress(0.02, "proving the tokenizer")
        words = vocabulary.find(self.source, self.config, self._ends(), lambda _: self._writer("f32"), self.scratch)
        figures: dict[str, Any] = {
            "file": self.target.name, "library": importlib.metadata.version("llama_cpp_python"),
            "architecture": self.found.kind.name.lower(), "pre_tokenizer": words.pre,
        }  # fmt: skip
        if self.kind in writing.FILE_TYPES:
            counts = self._write(self.kind, self.target, words, tensors, weights, 0.05, 0.9)
        else:
            (dtype,) = weights.dtypes if len(weights.dtypes) == 1 else ("F32",)
            whole = self.scratch / "lossless.gguf"
            try:
                self._write(LOSSLESS.get(dtype, "f32"), whole, words, tensors, weights, 0.05, 0.35)
                known, texts = self._importance(whole)
                self.reporter.progress(0.7, f"quantizing to {self.kind}")
                library.quantize(whole, self.target, self.kind.upper(), self.context.limits.threads, known)
            finally:
                whole.unlink(missing_ok=True)
            counts = _counts(self.target)
            figures["calibration_texts"] = texts
        warnings = self._beside(words)
        return StageOutput(figures={**figures, "graph_bytes": self.target.stat().st_size, "weights": counts}, warnings=warnings)

    def _ends(self) -> tuple[int, ...]:
        path = self.source / GENERATION
        return tuple(map(int, end_tokens(json.loads(path.read_bytes()) if path.is_file() else {}, self.config)))

    def _writer(self, kind: str) -> gguf.GGUFWriter:
        writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[self.found.kind])
        writer.add_type(gguf.GGUFType.MODEL)
        writer.add_name(f"{self.context.checkpoint.run} step {self.context.checkpoint.step}")
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_file_type(writing.FILE_TYPES[kind][0])
        try:
            architectures.describe(writer, self.config, self.found)
        except KeyError as error:
            raise NotPossible(f"its config.json does not say {error}") from error
        return writer

    def _write(
        self, kind: str, path: Path, words: vocabulary.Vocabulary, tensors: Sequence[architectures.Planned], weights: Weights,
        start: float, share: float,
    ) -> dict[str, int]:  # fmt: skip
        writer = self._writer(kind)
        words.write(writer, self.source)
        said: Callable[[float], None] = lambda done: self.reporter.progress(start + share * done, f"writing {path.name}")  # noqa: E731
        return writing.write(writer, path, tensors, weights, writing.FILE_TYPES[kind][1], said)

    def _importance(self, path: Path) -> tuple[dict[str, np.ndarray], int]:
        """Tensor → mean squares, and of how many texts."""
        count = self.context.work.options(GgufOptions).calibration_samples
        if not count:
            return {}, 0
        reader = tokenizers.load(self.source)
        texts = calibration_texts(self.context, count, self.source)
        rows = [row for row in (reader.encode(text) for text in texts.plain) if row]
        said: Callable[[float], None] = lambda done: self.reporter.progress(0.4 + 0.3 * done, "computing the texts")  # noqa: E731
        return importance.measure(path, rows, self.context.limits.threads, said), len(rows)

    def _beside(self, words: vocabulary.Vocabulary) -> list[str]:
        with library.Model(self.target, vocabulary_only=True) as model:
            known = model.end_tokens()
        if lost := sorted(set(words.ends) - set(known)):
            raise NotPossible(f"llama.cpp would not end a text at its token {words.tokens[lost[0]]!r}")
        ends = [words.tokens[token] for token in known]
        start = "" if words.first is None else words.tokens[words.first]
        context = min(architectures.positions(self.config), architectures.window(self.config) or architectures.positions(self.config))
        told = modelfile.write(self.staging, self.target.name, self.source, context, ends, start)
        warnings = []
        if told is False:
            warnings.append("the Modelfile has no TEMPLATE, since the chat template can't be said in Ollama's language; Ollama guesses one")
        if (window := architectures.window(self.config)) is not None:
            warnings.append(f"llama.cpp knows no sliding window for it, so the file says that the model knows {window:,} positions")
        return warnings


def _counts(path: Path) -> dict[str, int]:
    """Type → weights in it."""
    counts: dict[str, int] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        kind = tensor.tensor_type.name
        counts[kind] = counts.get(kind, 0) + int(tensor.n_elements)
    return counts
