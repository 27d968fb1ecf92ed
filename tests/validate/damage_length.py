"""Artifacts that are right up to some length and wrong behind it: what only a long text shows, and by which words validation must tell it.

`python -m tests.validate.damage_length FOLDER` makes all of them below FOLDER and prints the table of what was caught;
`test_long_texts.py` runs them as tests.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from daemon.contract.jobs.messages import ArtifactCheck, Verdict
from tests.validate import artifacts, zoo
from tests.validate.bench import Bench
from tests.validate.long_models import ORIGINAL, WINDOW, LongLab

GENAI = ("onnx-genai-fp32", "onnx-genai-int4")
GRAPHS = ("onnx", "onnx-int8", "onnx-int4", "onnx-fp16")


class _Surgery:
    """A graph that is changed; saved when it is left."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "model.onnx"
        self.model = onnx.load(self.path)
        self.graph = self.model.graph
        self._first: list[NodeProto] = []

    def __enter__(self) -> _Surgery:
        return self

    def __exit__(self, *failed: object) -> None:
        for place, node in enumerate(self._first):
            self.graph.node.insert(place, node)
        onnx.save(self.model, self.path)
        for left in self.path.parent.glob(f"{self.path.name}*data"):
            left.unlink()  # its weights are in the graph's own file now

    def constant(self, name: str, array: Any, kind: type = np.int64) -> str:
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array, kind), name))
        return name

    def before(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """A node at the beginning."""
        self._first.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def behind(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """A node at the end."""
        self.graph.node.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def read(self, old: str, new: str) -> None:
        """Let every node read another value instead of one."""
        for node in self.graph.node:
            node.input[:] = [new if used == old else used for used in node.input]

    def made(self, old: str, new: str) -> None:
        """Give a value another name where it is made and read."""
        for node in self.graph.node:
            node.output[:] = [new if made == old else made for made in node.output]
            node.input[:] = [new if used == old else used for used in node.input]

    def type_of(self, name: str) -> int:
        return next(one.type.tensor_type.elem_type for one in (*self.graph.input, *self.graph.output) if one.name == name)

    def change(self, found: Callable[[np.ndarray], bool], to: Callable[[np.ndarray], np.ndarray]) -> None:
        """Change the initializers and constants for which `found` holds, of which there must be one."""
        values = [one.t for node in self.graph.node for one in node.attribute if node.op_type == "Constant" and one.name == "value"]
        hits = [one for one in (*self.graph.initializer, *values) if found(numpy_helper.to_array(one))]
        assert hits, "the graph has no such constant"
        for one in hits:
            array = numpy_helper.to_array(one)
            one.CopyFrom(numpy_helper.from_array(np.asarray(to(array), array.dtype), one.name))


def shift_positions(folder: Path, behind: int, by: int = 7) -> None:
    """Positions from `behind` on are too large."""
    with _Surgery(folder) as graph:
        graph.read("position_ids", "moved_positions")
        far = graph.before("GreaterOrEqual", ["position_ids", graph.constant("far_from", behind)], "is_far")
        offset = graph.before(
            "Mul", [graph.before("Cast", [far], "far_flag", to=TensorProto.INT64), graph.constant("far_by", by)], "far_offset"
        )
        graph.before("Add", ["position_ids", offset], "moved_positions")


def clamp_positions(folder: Path, behind: int) -> None:
    """Positions do not go on behind one: a table that is too short."""
    with _Surgery(folder) as graph:
        graph.read("position_ids", "clamped_positions")
        graph.before("Min", ["position_ids", graph.constant("last_position", behind)], "clamped_positions")


def forget(folder: Path, back: int) -> None:
    """Entries of the cache more than `back` tokens back are zeros."""
    with _Surgery(folder) as graph:
        pasts = [one.name for one in graph.graph.input if one.name.startswith("past_key_values.")]
        length = graph.before("Gather", [graph.before("Shape", [pasts[0]], "past_shape"), graph.constant("axis_2", 2)], "past_length")
        places = graph.before("Range", [graph.constant("from_0", 0), length, graph.constant("by_1", 1)], "past_places")
        first = graph.before("Sub", [length, graph.constant("kept_back", back)], "first_kept")
        kept = graph.before("GreaterOrEqual", [places, first], "is_kept")
        flags = graph.before("Cast", [kept], "kept_flags", to=graph.type_of(pasts[0]))
        column = graph.before("Unsqueeze", [flags, graph.constant("last_axis", [1])], "kept_column")
        for name in pasts:
            graph.read(name, f"{name}.kept")
            graph.before("Mul", [name, column], f"{name}.kept")


def cut_mask(folder: Path, behind: int) -> None:
    """What comes after a position is taken for padding by all that follows it."""
    with _Surgery(folder) as graph:
        graph.read("attention_mask", "cut_mask")
        shape = graph.before("Shape", ["attention_mask"], "mask_shape")
        length = graph.before("Gather", [shape, graph.constant("mask_axis", 1)], "mask_length")
        places = graph.before("Range", [graph.constant("mask_0", 0), length, graph.constant("mask_1", 1)], "mask_places")
        inside = graph.before("Less", [places, graph.constant("mask_end", behind)], "in_mask")
        flags = graph.before("Cast", [inside], "mask_flags", to=TensorProto.INT64)
        graph.before("Mul", ["attention_mask", flags], "cut_mask")


def _logits(graph: _Surgery, behind: int, far: float, near: float, kind: str) -> None:
    """Combine the logits with one number from a position on, and with another one before it."""
    numpy_kind = np.float16 if graph.type_of("logits") == TensorProto.FLOAT16 else np.float32
    graph.made("logits", "whole_logits")
    is_far = graph.behind("GreaterOrEqual", ["position_ids", graph.constant("far_logits", behind)], "logits_far")
    values = [graph.constant("far_value", far, numpy_kind), graph.constant("near_value", near, numpy_kind)]
    chosen = graph.behind("Where", [is_far, *values], "logits_value")
    column = graph.behind("Unsqueeze", [chosen, graph.constant("logits_axis", [2])], "logits_column")
    graph.behind(kind, ["whole_logits", column], "logits")


def scale_logits(folder: Path, behind: int, factor: float = 0.5) -> None:
    """Logits are halved from a position on."""
    with _Surgery(folder) as graph:
        _logits(graph, behind, factor, 1.0, "Mul")


def overflow(folder: Path, behind: int) -> None:
    """Logits are infinite from a position on."""
    with _Surgery(folder) as graph:
        _logits(graph, behind, np.inf, 0.0, "Add")


def saturate(folder: Path, behind: int) -> None:
    """Logits can't be larger than one from a position on, as where sums stay at the largest number."""
    with _Surgery(folder) as graph:
        _logits(graph, behind, 1.0, 1e4, "Min")


def set_window(folder: Path, size: int) -> None:
    """The sliding window is of another size."""
    with _Surgery(folder) as graph:
        graph.change(
            lambda array: array.dtype == np.int64 and array.size == 1 and int(array.ravel()[0]) == WINDOW, lambda array: array * 0 + size
        )


def set_frequencies(folder: Path) -> None:
    """The scaling of the rotary positions is lost: the frequencies are those without it."""
    config = json.loads((folder / "config.json").read_text())
    theta, half = config["rope_parameters"]["rope_theta"], config["head_dim"] // 2
    plain = theta ** -(np.arange(half) / half)
    with _Surgery(folder) as graph:
        graph.change(
            lambda array: array.dtype != np.int64 and array.size == half and array.max() <= 1, lambda array: plain.reshape(array.shape)
        )


def switch_factors(folder: Path, at: int) -> None:
    """The factors of long texts are taken from another length on."""
    with _Surgery(folder) as graph:
        graph.change(
            lambda array: array.dtype == np.int64 and array.size == 1 and int(array.ravel()[0]) == ORIGINAL, lambda array: array * 0 + at
        )


def shift_tables(folder: Path, behind: int, by: int = 32) -> None:
    """The tables of rotary positions are wrong from a position on."""
    with _Surgery(folder) as graph:
        tables = [one for one in graph.graph.initializer if one.name.endswith(("cos_cache", "sin_cache"))]
        assert tables, "the graph has no tables"
        for one in tables:
            array = numpy_helper.to_array(one)
            one.CopyFrom(numpy_helper.from_array(np.concatenate([array[:behind], np.roll(array[behind:], by, axis=0)]), one.name))


def set_window_attribute(folder: Path, size: int) -> None:
    """The window of the operators that attend is of another size; -1 is none."""
    with _Surgery(folder) as graph:
        found = [one for node in graph.graph.node for one in node.attribute if one.name == "local_window_size"]
        assert found, "the graph has no window"
        for one in found:
            one.i = size


def configure(folder: Path, **values: Any) -> None:
    """Other settings in config.json."""
    zoo.edit_json(folder / "config.json", **values)


def reconfigure_rope(folder: Path, **values: Any) -> None:
    """Other settings of the rotary positions."""
    config = json.loads((folder / "config.json").read_text())
    zoo.edit_json(folder / "config.json", rope_parameters={**config["rope_parameters"], **values})


@dataclass(frozen=True)
class LongDamage:
    """One way to be wrong at length."""

    name: str
    kind: str
    """Of `long_models.KINDS`."""
    variants: tuple[str, ...]
    damage: Callable[[Path], None]
    words: str = "long text"
    """Words of the reason, as a regular expression."""


PLAIN = ("pytorch",)
ANYWHERE = "long text|(above|below) the limit|inv_freq is not that of the graph"
"""Of frequencies that are wrong at all positions."""
EXACT, HALF = ("onnx",), ("onnx", "onnx-fp16")
DAMAGES = (
    *(
        LongDamage(f"positions off from {at} on", "qwen3", GRAPHS, partial(shift_positions, behind=at, by=64), ANYWHERE)
        for at in (64, 100, 128, 200)
    ),
    LongDamage("positions off by one from 100 on", "qwen3", HALF, partial(shift_positions, behind=100, by=1)),
    LongDamage("positions end at 200", "qwen3", GRAPHS, partial(clamp_positions, behind=200)),
    LongDamage("learned positions end at 300", "gpt2", GRAPHS, partial(clamp_positions, behind=300)),
    *(LongDamage(f"cache lost {back} back", "qwen3", GRAPHS, partial(forget, back=back)) for back in (100, 200)),
    LongDamage("cache lost 40 back, with a window", "mistral", GRAPHS, partial(forget, back=40), "long text|cached decoding"),
    *(LongDamage(f"logits halved from {at} on", "qwen3", GRAPHS, partial(scale_logits, behind=at)) for at in (128, 400)),
    LongDamage("mask cut at 200", "qwen3", GRAPHS, partial(cut_mask, behind=200)),
    LongDamage("overflow from 300 on", "qwen3", GRAPHS, partial(overflow, behind=300), "not finite, from position 3"),
    LongDamage("saturated from 300 on", "qwen3", GRAPHS, partial(saturate, behind=300)),
    LongDamage("window one too small", "mistral", EXACT, partial(set_window, size=WINDOW - 1)),
    LongDamage("window one too large", "mistral", EXACT, partial(set_window, size=WINDOW + 1)),
    LongDamage("window halved", "mistral", GRAPHS, partial(set_window, size=WINDOW // 2)),
    LongDamage("window doubled", "mistral", GRAPHS, partial(set_window, size=WINDOW * 2)),
    LongDamage("window ignored", "mistral", GRAPHS, partial(set_window, size=1 << 20)),
    LongDamage("scaling lost", "yarn", GRAPHS, set_frequencies, ANYWHERE),
    LongDamage("scaling lost, llama3", "llama3", GRAPHS, set_frequencies, ANYWHERE),
    LongDamage("long factors never taken", "longrope", GRAPHS, partial(switch_factors, at=1 << 20)),
    LongDamage("long factors taken late", "longrope", GRAPHS, partial(switch_factors, at=2 * ORIGINAL)),
    *(LongDamage(f"tables wrong from {at} on", "qwen3", GENAI, partial(shift_tables, behind=at), ANYWHERE) for at in (128, 256)),
    LongDamage("window halved in the operators", "mistral", GENAI, partial(set_window_attribute, size=WINDOW // 2), ANYWHERE),
    LongDamage("no window in the operators", "mistral", GENAI, partial(set_window_attribute, size=-1)),
    LongDamage("window one too large in the operators", "mistral", GENAI[:1], partial(set_window_attribute, size=WINDOW + 1)),
    LongDamage("window one too small in the settings", "mistral", PLAIN, partial(configure, sliding_window=WINDOW - 1)),
    LongDamage("no window in the settings", "mistral", PLAIN, partial(configure, sliding_window=None)),
    LongDamage("window of the wrong layers", "qwen2", PLAIN, partial(configure, layer_types=["sliding_attention", "full_attention"])),
    LongDamage("window that is switched off", "qwen2-off", PLAIN,
               partial(configure, use_sliding_window=True, sliding_window=WINDOW, layer_types=["sliding_attention"] * 2)),
    LongDamage("factor of the scaling", "yarn", PLAIN, partial(reconfigure_rope, factor=2.0), ANYWHERE),
    LongDamage("original length of the scaling", "llama3", PLAIN,
               partial(reconfigure_rope, original_max_position_embeddings=2 * ORIGINAL), ANYWHERE),
    LongDamage("scaling lost in the settings", "linear", PLAIN, partial(reconfigure_rope, rope_type="default"), ANYWHERE),
    LongDamage("dynamic scaling begins too late", "dynamic", PLAIN, partial(configure, max_position_embeddings=2 * ORIGINAL)),
    LongDamage("long factors too late in the settings", "longrope", PLAIN,
               partial(configure, original_max_position_embeddings=2 * ORIGINAL)),
)  # fmt: skip
CASES = [(one, variant) for one in DAMAGES for variant in one.variants]


def checked(lab: LongLab, bench: Bench, damage: LongDamage, variant: str, folder: Path) -> ArtifactCheck:
    """The check of an artifact that is wrong so; it is made in `folder`."""
    target = artifacts.copy(lab.made(damage.kind, variant), folder / "artifact")
    damage.damage(target)
    return bench.checked(variant, target, lab.source(damage.kind, variant))


def main() -> None:
    """All of them as a table: what was caught by the long text, what only by something else, and what was missed."""
    lab = LongLab(Path(sys.argv[1]))
    lab.folder.mkdir(exist_ok=True)
    benches: dict[str, Bench] = {}
    for number, (damage, variant) in enumerate(CASES):
        if damage.kind not in benches:
            lab.made(damage.kind, "pytorch")
            benches[damage.kind] = lab.bench(damage.kind, lab.folder / damage.kind / "bench")
        check = checked(lab, benches[damage.kind], damage, variant, lab.folder / f"case-{number}")
        long = check.figures.get("long") or {}
        told = (
            "caught"
            if any(re.search(damage.words, one) for one in check.reasons)
            else "others"
            if check.verdict is Verdict.FAILED
            else "MISSED"
        )
        names = ("kl", "agreement", "error_max", "step_position", "step_ratio", "step_behind", "growth")
        figures = ", ".join(f"{name} {long[name]:.3g}" for name in names if long.get(name) is not None)
        print(f"{damage.name:38} {variant:10} {told:7} kl {check.figures.get('kl', 0):.3g} | {figures}", flush=True)
        if "-v" in sys.argv:
            print("      " + "\n      ".join(check.reasons))


if __name__ == "__main__":
    main()
