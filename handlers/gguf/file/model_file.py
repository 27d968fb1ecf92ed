"""A transformers folder as what its GGUF file says: architecture, vocabulary, tensors. Used by stages, and for the base of an adapter."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import gguf

from daemon.contract.values import Json
from handlers.child.variants import NotPossible
from handlers.gguf.file import architectures, projector, vocabulary, writing
from handlers.gguf.file.weights import Weights
from handlers.models.folder import GENERATION, ModelFolder
from handlers.validate.engines.generation_rules import end_tokens

PREFIX = "mmproj-"
"""What the name of a file of towers begins with, as llama.cpp's own programs look for it."""
_LOSSLESS = {"BF16": "bf16", "F16": "f16"}


class ModelFile:
    """What is read of a folder before anything is written. Raises NotPossible for what llama.cpp does not compute as transformers does."""

    def __init__(self, source: Path, title: str, scratch: Path) -> None:
        """`title`: the model's name in the file; `scratch`: a folder for files without weights."""
        self.source, self._title, self._scratch = source, title, scratch
        self.folder = ModelFolder(source)
        self.config: Json = architectures.config_of(self.folder)
        self.architecture = architectures.find(self.config)
        self.weights = Weights(self.folder)
        try:
            self.writer("f32")  # what its configuration says comes first: it explains more than a name of a tensor
            self.tensors = list(
                architectures.plan(self.config, self.architecture, {name: info.shape for name, info in self.folder.headers.items()})
            )
        except KeyError as error:
            raise NotPossible(f"its config.json does not say {error}") from error

    @functools.cached_property
    def words(self) -> vocabulary.Vocabulary:
        """Its vocabulary, proven."""
        self._scratch.mkdir(parents=True, exist_ok=True)
        return vocabulary.find(self.source, self.config, self._ends(), lambda _: self.writer("f32"), self._scratch)

    @property
    def lossless(self) -> str:
        """The kind of file in which no weight is rounded."""
        dtypes = self.weights.dtypes
        return _LOSSLESS.get(next(iter(dtypes)), "f32") if len(dtypes) == 1 else "f32"

    @property
    def length(self) -> int:
        """Positions that the file says it knows."""
        known = architectures.positions(self.config)
        return min(known, architectures.window(self.config) or known)

    def writer(self, kind: str) -> gguf.GGUFWriter:
        """A writer with the keys of the model, without its vocabulary."""
        writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[self.architecture.kind])
        writer.add_type(gguf.GGUFType.MODEL)
        writer.add_name(self._title)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_file_type(writing.FILE_TYPES[kind][0])
        architectures.describe(writer, self.config, self.architecture)
        return writer

    def write(self, kind: str, path: Path, said: Callable[[float], None]) -> dict[str, int]:
        """Write the file; gives type → weights in it. `said` is told which share is done. Raises writing.TooLarge."""
        writer = self.writer(kind)
        self.words.write(writer, self.source)
        return writing.write(writer, path, self.tensors, self.weights, writing.FILE_TYPES[kind][1], said)

    @property
    def reads_pictures(self) -> bool:
        """Whether it has towers, which go into a file of their own."""
        return "vision_config" in self.folder.config

    def write_towers(self, kind: str, path: Path, said: Callable[[float], None]) -> dict[str, int]:
        """Write the file of its towers; gives type → weights in it. Raises writing.TooLarge."""
        config, writer = self.folder.config, gguf.GGUFWriter(None, projector.MODEL)
        writer.add_name(self._title)
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_file_type(writing.FILE_TYPES[kind][0])
        try:
            projector.describe(writer, config, self._pictures())
            tensors = list(projector.plan(config, {name: info.shape for name, info in self.folder.headers.items()}))
        except KeyError as error:
            raise NotPossible(f"neither its config.json nor its processor's settings say {error}") from error
        return writing.write(writer, path, tensors, self.weights, writing.FILE_TYPES[kind][1], said)

    def _pictures(self) -> Json:
        """How pictures are prepared: processor_config.json has it in newer folders, preprocessor_config.json in others."""
        files = (self.source / name for name in ("preprocessor_config.json", "processor_config.json"))
        stated: list[Json] = [json.loads(file.read_bytes()) for file in files if file.is_file()]
        return {key: value for said in stated for key, value in {**said, **said.get("image_processor", {})}.items()}

    def _ends(self) -> tuple[int, ...]:
        path = self.source / GENERATION
        return tuple(map(int, end_tokens(json.loads(path.read_bytes()) if path.is_file() else {}, self.config)))
