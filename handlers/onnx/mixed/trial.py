"""Runs a folder's fp32 graphs with some of their weights as 4- or 8-bit graphs would have them, and says how far that is from fp32.

Called by the stage `onnx-mixed`. The weights that can be turned become inputs of the graphs, so that one session serves every choice of
bits, and a trial writes nothing. Texts are decoded as they will be: a pass and a further token on top of its cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime

from handlers.folder.playback import GraphRun, Player
from handlers.graphs.graphset import GraphSet
from handlers.graphs.sessions import MappedWeights
from handlers.models.probabilities import divergence, log_softmax
from handlers.onnx.mixed.weights import Weight
from handlers.onnx.quantize.rewriters.block_quantization import Blocks, Scheme, dequantize, quantize

FULL = 32
"""Bits of a weight that stays as it is."""


class _Fed:
    """A session whose turnable weights are given with each run; to its caller it is one without them."""

    def __init__(self, path: Path, threads: int, names: set[str], held: MappedWeights, values: dict[str, onnxruntime.OrtValue]) -> None:
        model = ir.load(path)
        rest = {name: value for name, value in held.of(path).items() if name not in names}
        for name in sorted(names):
            value = model.graph.initializers.pop(name)
            tensor = value.const_value
            assert tensor is not None
            value.type, value.shape, value.const_value = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy()), None
            model.graph.inputs.append(value)
        for value in model.graph.initializers.values():
            if value.name not in rest and isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.tensor(value.const_value.numpy(), name=value.name)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 3
        for name, kept in rest.items():
            options.add_initializer(name, kept)
        self._rest, self._values, self._names = rest, values, names
        data = ir.to_proto(model).SerializeToString()
        self._session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def get_inputs(self) -> list[Any]:
        return [value for value in self._session.get_inputs() if value.name not in self._names]

    def get_outputs(self) -> list[Any]:
        return list(self._session.get_outputs())

    def run(self, _: None, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        given = {name: onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}
        given |= {name: self._values[name] for name in self._names}
        names = [value.name for value in self._session.get_outputs()]
        return [value.numpy() for value in self._session.run_with_ort_values(names, given)]


class Trial:
    """The graphs of a folder, some texts, and what fp32 answers to them."""

    def __init__(
        self, folder: Path, graphs: GraphSet, weights: Sequence[Weight], rows: Sequence[Sequence[int]], schemes: Mapping[int, Scheme],
        threads: int,
    ) -> None:  # fmt: skip
        """`schemes`: bits → how a weight is quantized to them. `rows`: the texts' token ids."""
        self._weights = {weight.key: weight for weight in weights}
        self.schemes, self._rows = schemes, [list(row) for row in rows]
        self._values: dict[str, dict[str, onnxruntime.OrtValue]] = {graph.file: {} for graph in graphs.graphs}
        self._chooses = any(port.name == "logits" for graph in graphs.graphs for port in graph.outputs)
        self._bits: dict[str, int] = {}
        self._blocks: dict[tuple[str, int], Blocks] = {}
        held = MappedWeights()
        for key in self._weights:
            self._set(key, FULL)
        self._player = Player(folder, graphs, threads, {
            graph.role: _Fed(folder / graph.file, threads, set(self._values[graph.file]), held, self._values[graph.file])
            for graph in graphs.graphs
        })  # fmt: skip
        self._wanted = self._answers()

    def use(self, schemes: Mapping[int, Scheme]) -> None:
        """Quantize by other schemes from now on."""
        other = {bits for bits in self.schemes if schemes[bits] != self.schemes[bits]}
        self._blocks = {place: made for place, made in self._blocks.items() if place[1] not in other}
        self._bits = {key: bits for key, bits in self._bits.items() if bits not in other}
        self.schemes = schemes

    def bytes(self, key: str, bits: int) -> int:
        """Bytes of a weight in the file."""
        return self._weights[key].array.size * 4 if bits == FULL else self.blocks(key, bits).nbytes

    def blocks(self, key: str, bits: int) -> Blocks:
        """A weight in so many bits, made once."""
        if (key, bits) not in self._blocks:
            weight = self._weights[key]
            scheme = self.schemes[bits].for_tables if weight.table else self.schemes[bits]
            self._blocks[key, bits] = quantize(weight.array, scheme)
        return self._blocks[key, bits]

    def divergence(self, bits: Mapping[str, int]) -> float:
        """Mean divergence from fp32 with each weight (by key) in so many bits: KL(fp32 ‖ this) in nats a position for what chooses, the
        squared error over fp32's own squares for vectors."""
        for key, wanted in bits.items():
            self._set(key, wanted)
        total, positions = 0.0, 0
        for mine, theirs in zip(self._wanted, self._answers(), strict=True):
            values = divergence(log_softmax(mine), log_softmax(theirs)) if self._chooses else _relative(mine, theirs)
            total, positions = total + float(values.sum()), positions + values.size
        mean = total / max(1, positions)
        return mean if np.isfinite(mean) else float("inf")

    def _set(self, key: str, bits: int) -> None:
        if self._bits.get(key) == bits:
            return
        weight = self._weights[key]
        array = weight.array if bits == FULL else dequantize(self.blocks(key, bits))
        for use in weight.uses:
            placed = np.ascontiguousarray(array.T if use.turned else array, np.float32)
            self._values[use.file][use.name] = onnxruntime.OrtValue.ortvalue_from_numpy(placed)
        self._bits[key] = bits

    def _answers(self) -> list[np.ndarray]:
        """What comes out in the end, (positions, values) for each run that gives an answer."""
        runs = (run for row in self._rows for run in self._player.play(row))
        return [answer for run in runs if (answer := self._answer(run)) is not None]

    def _answer(self, run: GraphRun) -> np.ndarray | None:
        if self._chooses:
            name = "logits" if "logits" in run.outputs else None
        else:
            name = next((name for name in run.outputs if not name.startswith("present.")), None)
        return None if name is None else run.outputs[name].reshape(-1, run.outputs[name].shape[-1]).astype(np.float32)


def _relative(mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Squared error of each row over the row's own squares."""
    error: np.ndarray = np.square(mine - theirs).sum(-1) / np.maximum(np.square(mine).sum(-1), 1e-30)
    return error
