"""The engines of folders with PyTorch's programs: those of ONNX folders, over programs instead of sessions.

Used inside workers. The program runs as its users run it: by torch alone, in fp32, on the CPU.
"""

from __future__ import annotations

from pathlib import Path

import torch

from handlers.torch_programs.program import Program
from handlers.validate.engines.graphs.onnx_causal import OnnxEngine
from handlers.validate.engines.graphs.onnx_folder import LoadedGraph, OnnxFolder
from handlers.validate.engines.graphs.onnx_tasks import OnnxEncoder, OnnxSeq2Seq
from handlers.validate.engines.graphs.other_runtimes import OtherGraph


class LoadedProgram(OtherGraph):
    """One program."""

    def _session(self, path: Path, threads: int) -> Program:
        torch.set_num_threads(threads)
        return Program(path)


class _Programs(OnnxFolder):
    def _opened(self, path: Path, threads: int) -> LoadedGraph:
        return LoadedProgram(path, threads)


class ProgramEngine(_Programs, OnnxEngine):
    """A language model."""


class ProgramSeq2Seq(_Programs, OnnxSeq2Seq):
    """An encoder-decoder: an encoder, and decoders of the first step and of the later ones."""


class ProgramEncoder(_Programs, OnnxEncoder):
    """An encoder, with or without a head."""
