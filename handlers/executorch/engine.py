"""The engines of ExecuTorch's folders: its own runtime, on the CPU. Run inside the toolchain `executorch`."""

from __future__ import annotations

from pathlib import Path

from handlers.executorch.session import Session
from handlers.static_programs.engine import StaticCausal, StaticEncoder, StaticFolder, StaticSeq2Seq


class _Programs(StaticFolder):
    def _opened(self, path: Path, role: str, threads: int) -> Session:
        return Session(path, role, threads)


class ExecuTorchCausal(_Programs, StaticCausal):
    """A language model."""


class ExecuTorchSeq2Seq(_Programs, StaticSeq2Seq):
    """An encoder-decoder."""


class ExecuTorchEncoder(_Programs, StaticEncoder):
    """An encoder, with or without a head."""
