"""The engines of LiteRT's folders: its interpreter with XNNPACK, on the CPU, as it is by default. Run inside the toolchain `litert`."""

from __future__ import annotations

from pathlib import Path

from handlers.litert.session import Session
from handlers.static_programs.engine import StaticCausal, StaticEncoder, StaticFolder, StaticSeq2Seq


class _Models(StaticFolder):
    def _opened(self, path: Path, role: str, threads: int) -> Session:
        return Session(path, role, threads)


class LiteRtCausal(_Models, StaticCausal):
    """A language model."""


class LiteRtSeq2Seq(_Models, StaticSeq2Seq):
    """An encoder-decoder."""


class LiteRtEncoder(_Models, StaticEncoder):
    """An encoder, with or without a head."""
