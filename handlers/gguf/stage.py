"""The stages `gguf-…`: the merged model as one file of llama.cpp's, in one of its precisions, with an Ollama Modelfile beside it.

Run by `handlers/__main__.py` with the Python of the toolchain `gguf`. Weights are read and written a few rows at a time; forms smaller
than 8 bits are made by llama.cpp's own quantizer from a file without loss, which is removed again. What the check runs is llama.cpp.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from daemon.contract.formats.thresholds import FOUR_BITS
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import NotPossible, not_possible
from handlers.folder import tokenizers
from handlers.gguf import modelfile
from handlers.gguf.file import architectures, writing
from handlers.gguf.file.model_file import PREFIX, ModelFile
from handlers.gguf.llama import chats, importance, library
from handlers.gguf.options import GgufOptions
from handlers.texts.selection import calibration_texts


def made(context: StageContext, reporter: Reporter, kind: str) -> StageOutput:
    """One of the stages, by its kind as llama.cpp names it, in small letters. Permanent `form-not-possible`."""
    with faults_of(context, context.inputs["pytorch"]):
        return _Making(context, reporter, kind).run()


f16, bf16, q8_0, q6_k, q5_k_m, q4_k_m = (
    functools.partial(made, kind=kind) for kind in ("f16", "bf16", "q8_0", "q6_k", "q5_k_m", "q4_k_m")
)  # fmt: skip


@contextlib.contextmanager
def faults_of(context: StageContext, path: str) -> Iterator[None]:
    """What can't be made becomes Permanent `form-not-possible`."""
    try:
        yield
    except NotPossible as error:
        raise not_possible(context, str(error), path) from error
    except writing.TooLarge as error:
        remedy = "use gguf-bf16 or gguf-q8_0 instead of gguf-f16 in export.variants"
        raise not_possible(context, str(error), path, remedy=remedy) from error
    except library.Refused as error:
        remedy = f"leave {context.stage} out of export.variants"
        damaged = "not found" in str(error)  # a tensor that the file should have, and so the model
        remedy = (
            f"look whether the model's files lack a weight; if they have all, report it with config.json, and {remedy}" if damaged
            else f"report it, with the model's config.json; until then {remedy}"
        )  # fmt: skip
        raise not_possible(context, f"llama.cpp says: {error}", path, remedy=remedy) from error


class _Making:
    """One file on its way."""

    def __init__(self, context: StageContext, reporter: Reporter, kind: str) -> None:
        self.context, self.reporter, self.kind = context, reporter, kind
        self.staging, self.scratch = Path(context.staging), Path(context.temporary)
        title = f"{context.checkpoint.run} step {context.checkpoint.step}"
        self.model = ModelFile(Path(context.inputs["pytorch"]), title, self.scratch)
        self.target = self.staging / f"model-{kind.upper()}.gguf"

    def run(self) -> StageOutput:
        """Make it."""
        model = self.model
        self.reporter.progress(0.02, "proving the tokenizer")
        figures: dict[str, Any] = {
            "length": model.length, "file": self.target.name, "library": importlib.metadata.version("llama_cpp_python"),
            "architecture": model.architecture.kind.name.lower(), "pre_tokenizer": model.words.pre,
        }  # fmt: skip
        if self.kind in writing.FILE_TYPES:
            counts = model.write(self.kind, self.target, self._said(0.05, 0.9, f"writing {self.target.name}"))
        else:
            whole = self.scratch / "lossless.gguf"
            try:
                model.write(model.lossless, whole, self._said(0.05, 0.35, "writing a file without loss"))
                known, texts = self._importance(whole)
                self.reporter.progress(0.7, f"quantizing to {self.kind}")
                library.quantize(whole, self.target, self.kind.upper(), self.context.limits.threads, known)
            finally:
                whole.unlink(missing_ok=True)
            counts = _counts(self.target)
            figures["calibration_texts"] = texts
        if model.reads_pictures:
            towers = self.staging / f"{PREFIX}{_TOWERS.get(self.kind, 'f16').upper()}.gguf"
            figures["towers"] = towers.name
            figures["tower_weights"] = model.write_towers(_TOWERS.get(self.kind, "f16"), towers, lambda _: None)
        warnings = [*self._beside(), *_otherwise(self.kind, counts)]
        return StageOutput(figures={**figures, "graph_bytes": self.target.stat().st_size, "weights": counts}, warnings=warnings)

    def _said(self, start: float, share: float, message: str) -> Callable[[float], None]:
        return lambda done: self.reporter.progress(start + share * done, message)

    def _importance(self, path: Path) -> tuple[dict[str, np.ndarray], int]:
        """Tensor → mean squares, and of how many texts."""
        count = self.context.work.options(GgufOptions).calibration_samples
        if not count:
            return {}, 0
        reader = tokenizers.load(self.model.source)
        texts = calibration_texts(self.context, count, self.model.source)
        rows = [row for row in (reader.encode(text) for text in texts.plain) if row]
        return importance.measure(path, rows, self.context.limits.threads, self._said(0.4, 0.3, "computing the texts")), len(rows)

    def _beside(self) -> list[str]:
        """Put the Modelfile there; warnings."""
        words = self.model.words
        with library.Model(self.target) as opened:  # all of its weights are there, in the shapes that llama.cpp expects
            known = opened.end_tokens()
            agreed = chats.agreement(opened, words.chats, self.context.limits.threads) if words.chats else 1.0
        if agreed < FOUR_BITS.agreement:
            raise NotPossible(
                "llama.cpp's tokenizer puts a space behind each special token of a chat, which the model's tokenizer does not, and only"
                f" {agreed:.0%} of the tokens of its answers stay the same; at least {FOUR_BITS.agreement:.0%} must. The variants"
                " pytorch and onnx, and those made of them, come with the model's own tokenizer"
            )
        if lost := sorted(set(words.ends) - set(known)):
            raise NotPossible(f"llama.cpp would not end a text at its token {words.tokens[lost[0]]!r}")
        start = "" if words.first is None else words.tokens[words.first]
        stops = [words.tokens[token] for token in known]
        files = [self.target.name, *(path.name for path in self.staging.glob(f"{PREFIX}*.gguf"))]
        templated = modelfile.write(self.staging, files, self.model.source, self.model.length, stops, start)
        warnings = []
        if words.more_spaces:
            warnings.append(
                "llama.cpp's tokenizer puts a space before each text and behind each special token in it, and the model's tokenizer only"
                " before a text that begins with none; all else is read alike"
            )
        if words.chats:
            warnings.append(
                f"with the spaces that llama.cpp's tokenizer puts into a chat, {agreed:.0%} of the tokens of answers stay the same"
            )
        if templated is False:
            warnings.append("the Modelfile has no TEMPLATE, since the chat template can't be said in Ollama's language; Ollama guesses one")
        if (window := architectures.window(self.model.config)) is not None:
            warnings.append(f"llama.cpp knows no sliding window for it, so the file says that the model knows {window:,} positions")
        return warnings


_TOWERS = {"bf16": "bf16"}
"""Kind of file → kind of that of its towers, which llama.cpp's own converter writes in no fewer bits either; else f16."""
_AS_ASKED = {"q8_0": "Q8", "q6_k": "Q6", "q5_k_m": "Q5", "q4_k_m": "Q4"}
"""Kind → how the names of the types begin that most of its weights have."""
MOSTLY = 0.5


def _otherwise(kind: str, counts: Mapping[str, int]) -> list[str]:
    """That most weights have another type than the file's name says, for want of rows that its blocks fit."""
    if kind not in _AS_ASKED:
        return []
    whole = max(1, sum(counts.values()))
    asked = sum(count for name, count in counts.items() if name.startswith(_AS_ASKED[kind]))
    if asked >= MOSTLY * whole:
        return []
    others = ", ".join(f"{count / whole:.0%} {name}" for name, count in sorted(counts.items(), key=lambda pair: -pair[1]))
    few = f"only {asked / whole:.0%} of the weights have {kind[1]} bits" if asked else f"no weight has {kind[1]} bits"
    return [
        f"{few}: llama.cpp gives a matrix another type if its rows do not divide into blocks, and tables of tokens more bits ({others})"
    ]


def _counts(path: Path) -> dict[str, int]:
    """Type → weights in it."""
    counts: dict[str, int] = {}
    for tensor in gguf.GGUFReader(path).tensors:
        kind = tensor.tensor_type.name
        counts[kind] = counts.get(kind, 0) + int(tensor.n_elements)
    return counts
