"""The engines of folders with PyTorch's programs: those of ONNX folders, over programs instead of sessions.

Used inside workers. The program runs as its users run it: by torch alone, in fp32, on the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from handlers.torch_programs.program import Program
from handlers.validate.engines.onnx_causal import OnnxEngine
from handlers.validate.engines.onnx_folder import LoadedGraph
from handlers.validate.engines.onnx_tasks import OnnxEncoder, OnnxSeq2Seq


class Value:
    """A tensor in the manner of onnxruntime's values."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def numpy(self) -> np.ndarray:
        """As an array, which shares its memory."""
        array: np.ndarray = self.tensor.numpy()
        return array

    def shape(self) -> list[int]:
        """Its sizes."""
        return list(self.tensor.shape)


class LoadedProgram(LoadedGraph):
    """One program."""

    def __init__(self, path: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self.path = path
        self.session: Any = Program(path)
        self.inputs = {port.name: port for port in self.session.get_inputs()}
        self.outputs = {port.name: port for port in self.session.get_outputs()}
        self.past = [name for name in self.inputs if name.startswith("past_key_values.")]

    def value(self, name: str, array: np.ndarray) -> Any:
        return Value(torch.from_numpy(np.ascontiguousarray(array, dtype=self.dtype(name))))

    def passed(self, name: str, value: Any) -> Any:
        """As it is: the programs of a folder are of one dtype."""
        return value

    def run(self, outputs: list[str], feeds: dict[str, Any]) -> dict[str, Any]:
        found = self.session.tensors({name: feeds[name].tensor for name in self.inputs})
        return {name: Value(found[name]) for name in outputs}


class ProgramEngine(OnnxEngine):
    """A language model."""

    def _opened(self, path: Path, threads: int) -> LoadedGraph:
        return LoadedProgram(path, threads)


class ProgramSeq2Seq(OnnxSeq2Seq):
    """An encoder-decoder: an encoder, and decoders of the first step and of the later ones."""

    def _opened(self, path: Path, threads: int) -> LoadedGraph:
        return LoadedProgram(path, threads)


class ProgramEncoder(OnnxEncoder):
    """An encoder, with or without a head."""

    def _opened(self, path: Path, threads: int) -> LoadedGraph:
        return LoadedProgram(path, threads)
