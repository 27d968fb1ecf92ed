"""OpenVINO's folders, as the comparison with the twin reads and runs them.

Named by `Limits.twin` of the variants. The models are run by the engines that the checks use too. Imports OpenVINO.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from handlers.models.tasks import BY_NAME
from handlers.openvino.engine import OpenVinoEncoder, OpenVinoEngine, OpenVinoSeq2Seq
from handlers.openvino.twin import stored
from handlers.validate.engines.registry import load
from handlers.validate.twins.graph_folder import GraphFolder
from handlers.validate.twins.messages import Order, Text
from handlers.validate.twins.passes import of_engine
from handlers.validate.twins.weights import Stored
from handlers.validate.workers.protocol import PaddedBatch

STRUCTURE = 2e-3
"""Largest |Δ| between a model that rounds nothing but its stored weights and its twin, in standard deviations of the outputs: sound ones
of 13 families stay below 1e-5. OpenVINO multiplies in fp32 what the file says in halves (integers times scales)."""
ENGINES: Mapping[str, type[Any]] = {"causal": OpenVinoEngine, "seq2seq": OpenVinoSeq2Seq, "encoder": OpenVinoEncoder}
USUAL = {"PERFORMANCE_HINT": "LATENCY"}
"""Settings that leave precisions to OpenVINO, as programs do that set none."""


class OpenVinoForm(GraphFolder):
    """A folder of models."""

    def __init__(self, order: Order) -> None:
        super().__init__(order)
        self.limit = STRUCTURE
        self.told_positions = True

    def _stored_in(self, path: Path, role: str) -> Sequence[Stored]:
        return stored.read(path, role)

    def _halves_in(self, path: Path) -> Iterable[bytes]:
        return stored.halves(path)

    def outputs(self, texts: Sequence[Text], *, in_float: bool) -> list[dict[str, np.ndarray]]:
        """See `Form.outputs`; in float by the settings of the checks, which round nothing, otherwise by OpenVINO's own choice of them."""
        engine: Any = load(self._spec) if in_float else ENGINES[BY_NAME[self._spec.task].kind](self._spec, USUAL)
        rows = of_engine(self._spec, engine, texts)
        del engine
        gc.collect()
        return rows

    def padding_error(self, batch: PaddedBatch, side: str) -> None:
        """See `Form.padding_error`: OpenVINO takes scales of groups of a row's own numbers."""
