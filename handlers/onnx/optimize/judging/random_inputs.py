"""Inputs that show whether two graphs compute the same: random ones of every shape that a graph must take, made from its ports.

Called by the optimizer. What an input is, its name says (token ids, masks, positions, cache, an encoder's states); how long it is,
the names of its axes say. So one maker serves all families. Free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from daemon.contract.values import Json
from handlers.graphs.graphset import Graph, Port
from handlers.models.files import setting

LONGEST = 300
"""Tokens of the longest input: what reaches beyond a window of attention must be short enough to be quick."""
PREFILL, PAST = 16, 64
"""Tokens of the input, and of the past of a step, whose speed is measured. More input would measure products alone, which no step of the
optimization changes."""
_SOURCE = 9
_OWN_MASKS = ("attention_mask", "decoder_attention_mask")


class UnknownInputError(ValueError):
    """A graph has an input, or an axis, for which there is no rule here."""


@dataclass(frozen=True)
class InputShape:
    """A batch before its numbers are drawn. Of several rows the second is padded on the left, the last on the right."""

    rows: int
    tokens: int
    past: int = 0
    left: int = 0
    right: int = 0


@dataclass(frozen=True)
class RandomInputs:
    """Inputs by name; `real`: axis → bool (rows, length), which places are no padding; `label` for people."""

    label: str
    feeds: dict[str, np.ndarray]
    real: dict[str, np.ndarray] = field(default_factory=dict)


_ONE_PASS = (InputShape(1, 1), InputShape(3, 7, left=2, right=3), InputShape(1, 19), InputShape(2, 30, left=11))
_CACHED = (
    InputShape(1, 1),
    InputShape(3, 7, left=2, right=3),
    InputShape(1, 1, 1),
    InputShape(2, 1, 9, left=4),
    InputShape(2, 3, 40, left=1),
    InputShape(1, 23),
    InputShape(1, 4, 13),
)

_SAMPLES, _PICTURE = 4000, 224
"""Samples of a sound, beside some for each token of a shape; height and width of a picture where the configuration names none."""


class Maker:
    """Makes inputs for one graph of a model with this configuration."""

    def __init__(self, graph: Graph, config: Json) -> None:
        self.graph = graph
        self.config = config
        names = {port.name for port in graph.inputs}
        self.cached = any(port.name.startswith("past_key_values.") for port in graph.inputs)
        self.needs_past = self.cached and any(".encoder." in name for name in names) and "encoder_hidden_states" not in names
        self.limit = _positions(config)

    def cases(self) -> list[RandomInputs]:
        """All shapes that this graph takes, with different numbers in each."""
        shapes = list(_CACHED if self.cached else _ONE_PASS)
        window = setting(self.config, "sliding_window") or setting(self.config, "local_attention")
        if isinstance(window, int) and window + 5 <= min(LONGEST, self.limit):
            shapes.append(InputShape(1, window + 5) if not self.cached else InputShape(1, 2, window + 3))
        fitting = dict.fromkeys(self._fitting(shape) for shape in shapes if shape.past or not self.needs_past)
        return [self.make(shape, seed) for seed, shape in enumerate(fitting)]

    def speed(self) -> dict[str, RandomInputs]:
        """ "prefill": many tokens at once; "decode": one token on top of a past. Either only where the graph does that."""
        cases = {}
        if not self.needs_past:
            cases["prefill"] = self.make(self._fitting(InputShape(1, PREFILL)), 1)
        if self.cached:
            cases["decode"] = self.make(self._fitting(InputShape(1, 1, PAST)), 2)
        return cases

    def _fitting(self, shape: InputShape) -> InputShape:
        """The shape within the positions that the model knows and the sizes that the graph fixes."""
        past = min(shape.past, max(1, self.limit // 2)) if shape.past else 0
        tokens = max(1, min(shape.tokens, self.limit - past))
        batch = next((port.shape[0] for port in self.graph.inputs if port.shape and port.name.endswith("ids")), "batch")
        rows = batch if isinstance(batch, int) else shape.rows
        holes = max(0, past + tokens - 1)
        return InputShape(rows, tokens, past, min(shape.left, holes), min(shape.right, tokens - 1))

    def make(self, shape: InputShape, seed: int) -> RandomInputs:
        """Inputs of one shape; UnknownInputError where the graph has an input that is not known here."""
        generator = np.random.default_rng(seed)
        lengths = {
            "batch": shape.rows, "sequence": shape.tokens, "past": shape.past, "total": shape.past + shape.tokens,
            "encoder_sequence": _SOURCE, "past_encoder_sequence": _SOURCE if shape.past else 0,
            "text_batch": shape.rows, "image_batch": shape.rows + 1, "samples": _SAMPLES + 37 * shape.tokens, **self._picture(),
        }  # fmt: skip
        real = self._real(shape, lengths)
        feeds = {port.name: self._filled(port, lengths, real, generator) for port in self.graph.inputs}
        return RandomInputs(f"{shape.rows} × {shape.tokens} tokens after {shape.past}", feeds, real)

    def _picture(self) -> dict[str, int]:
        """Height and width of a picture, where they are dynamic: those that the model was made for."""
        size = self.config.get("image_size") or self.config.get("vision_config", {}).get("image_size") or _PICTURE
        height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        return {"height": height, "width": width}

    def _real(self, shape: InputShape, lengths: Mapping[str, int]) -> dict[str, np.ndarray]:
        total = np.ones((shape.rows, lengths["total"]), bool)
        source = np.ones((shape.rows, lengths["encoder_sequence"]), bool)
        masks = {port.name: port.shape for port in self.graph.inputs if port.name.endswith("attention_mask")}
        own = next((masks[name] for name in _OWN_MASKS if name in masks), ())
        if any(axis in ("total", "sequence") for axis in own):
            total[min(1, shape.rows - 1), : shape.left] = False
            total[-1, lengths["total"] - shape.right :] = False
        if any("encoder_sequence" in axes for axes in masks.values()):
            source[-1, lengths["encoder_sequence"] - 2 :] = False
        return {"total": total, "sequence": total[:, shape.past :], "encoder_sequence": source}

    def _filled(
        self, port: Port, lengths: Mapping[str, int], real: Mapping[str, np.ndarray], generator: np.random.Generator
    ) -> np.ndarray:  # fmt: skip
        sizes = [_size(axis, lengths, port.name) for axis in port.shape]
        if port.name.endswith("attention_mask"):
            return real.get(str(port.shape[1]), np.ones(sizes, bool)).astype(port.dtype)
        if port.name == "position_ids":
            places = np.maximum(real["total"].cumsum(1) - 1, 0)[:, lengths["past"] :]
            return np.broadcast_to(places, sizes).astype(port.dtype)
        if port.name == "token_type_ids":
            return np.broadcast_to(np.arange(sizes[1]) > sizes[1] // 2, sizes).astype(port.dtype)
        if port.name == "use_cache_branch":
            return np.array([lengths["past"] > 0])
        if port.name in ("input_ids", "decoder_input_ids"):
            return generator.integers(0, self._vocabulary(), sizes).astype(port.dtype)
        if port.dtype.startswith("float"):
            return generator.standard_normal(sizes).astype(port.dtype)
        raise UnknownInputError(f"it is not known which values the input {port.name} needs")

    def _vocabulary(self) -> int:
        sizes = [setting(self.config, key) for key in ("vocab_size", "decoder_vocab_size")]
        known = [int(size) for size in sizes if size]
        if not known:
            raise UnknownInputError("the configuration does not say how many tokens there are")
        return min(known)


def _size(axis: int | str, lengths: Mapping[str, int], name: str) -> int:
    if isinstance(axis, int):
        return axis
    if axis not in lengths:
        raise UnknownInputError(f"nothing is known of the axis {axis or '(without a name)'} of {name}")
    return lengths[axis]


def _positions(config: Json) -> int:
    """Tokens that the model surely takes; some count positions from the padding token's number on."""
    known = setting(config, "max_position_embeddings") or setting(config, "n_positions")
    if not isinstance(known, int) or known <= 0:
        return LONGEST
    return max(1, min(LONGEST, known - int(setting(config, "pad_token_id") or 0) - 1))
