"""GGUF files as the comparison with the twin reads and runs them; named by `Limits.twin` of their variants.

Runs in the environment that ckptd is installed in, with PyTorch, and borrows the packages of the toolchain `gguf`.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from handlers.gguf.engine import GgufEngine, file_in
from handlers.gguf.llama import library
from handlers.gguf.twin import BY_TABLE, STRUCTURE, float_file, reading
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.twins.messages import Order, Text
from handlers.validate.twins.passes import of_engine
from handlers.validate.twins.weights import Stored
from handlers.validate.workers.protocol import PaddedBatch

EXACT_ANGLES = 16384
"""Positions up to which angles in fp32 are alike: llama.cpp multiplies them up pair by pair. Outputs differ by 4e-6 at position 0, by
0.0018 at 30,000 and 0.005 at 131,000."""
COARSE = frozenset({"gemma", "gemma2", "gemma3", "gpt2", "phi2", "qwen2vl"})
"""Architectures of llama.cpp that compute less exactly, see BY_TABLE."""


class GgufForm:
    """One file."""

    def __init__(self, order: Order) -> None:
        self._spec, self._scratch = order.spec, order.scratch or None
        self._file = file_in(Path(order.folder))
        architecture, length = reading.about(self._file)
        self.limit = BY_TABLE if architecture in COARSE else STRUCTURE
        self.told_positions = length <= EXACT_ANGLES

    def weights(self) -> list[Stored]:
        """See `Form.weights`."""
        return list(reading.weights(self._file))

    def halves(self) -> set[bytes]:
        """None: what is small is in fp32 in all files."""
        return set()

    def outputs(self, texts: Sequence[Text], *, in_float: bool) -> list[dict[str, np.ndarray]]:
        """See `Form.outputs`."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as scratch:
            engine = _InFloat(self._spec, Path(scratch)) if in_float else GgufEngine(self._spec)
            rows = of_engine(self._spec, engine, texts)
            del engine
            gc.collect()
        return rows

    def padding_error(self, batch: PaddedBatch, side: str) -> None:
        """See `Form.padding_error`: llama.cpp takes scales of a row's own blocks."""


class _InFloat(GgufEngine):
    """The engine over the file's weights in fp32."""

    def __init__(self, spec: EngineSpec, scratch: Path) -> None:
        self._path = scratch / "in-float.gguf"
        float_file.write(file_in(Path(spec.folder)), self._path)
        super().__init__(spec)

    def _opened(self, spec: EngineSpec) -> library.Model:
        return library.Model(self._path)
