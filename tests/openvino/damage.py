"""OpenVINO's models that are wrong in one way each: in what they compute, or in the numbers that they store.

`test_twin.py` runs them. What a model computes is changed by OpenVINO's own operators, and what it stores in the bytes of its file, neither
by the code that reads it. Some damages are so small that nobody could notice them, which must be shown to be harmless.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handlers.validate.twins.judging import LONG
from handlers.validate.twins.messages import Answer, Text
from tests.exports import twins
from tests.exports.twins import STORED, STRUCTURE

FORMS = ("openvino-int8", "openvino-int4")
VOCABULARY, LENGTH, WIDTH = 320, 256, 256
"""Of the models of `sabotage`."""
MODEL = "openvino_model.xml"
FORM = "handlers.openvino.twin.form:OpenVinoForm"


def answered(folder: Path, merged: Path, given: list[Text] | None = None, task: str = "text-generation") -> Answer:
    """What the comparison of a folder says; OpenVINO can be imported."""
    return twins.answered(FORM, "openvino", folder, merged, given or twins.texts(LENGTH, LONG), task)


Change = Callable[[Path], None]
"""Of a folder."""


@dataclass(frozen=True)
class Damage:
    """One way to be wrong."""

    name: str
    change: Change
    words: str
    """What the reasons say; "" where it is harmless."""
    forms: tuple[str, ...] = FORMS

    def apply(self, source: Path, target: Path) -> Path:
        """A damaged copy; OpenVINO maps the files that it has opened, so that they must not be changed in their place."""
        shutil.copytree(source, target)
        before = [(target / name).read_bytes() for name in (MODEL, "openvino_model.bin")]
        self.change(target)
        assert [(target / name).read_bytes() for name in (MODEL, "openvino_model.bin")] != before, f"{self.name} changed nothing"
        return target


def _model(change: Callable[[Any, Any], None]) -> Change:
    """By OpenVINO's operators: `change` gets them and the model."""

    def apply(folder: Path) -> None:
        import openvino as ov  # type: ignore[import-not-found]

        whole = folder.with_name(f"{folder.name}.whole")
        whole.mkdir()
        for path in folder.glob("openvino_model.*"):
            path.rename(whole / path.name)
        model = ov.Core().read_model(whole / MODEL)
        change(ov.opset13, model)
        ov.save_model(model, folder / MODEL, compress_to_fp16=False)

    return apply


def _after(output: Any, change: Callable[[Any], Any]) -> None:
    """What reads an output reads what `change` makes of it."""
    readers = list(output.get_target_inputs())
    changed = change(output).output(0)
    for reader in readers:
        reader.replace_source_output(changed)


def _node(model: Any, pattern: str, kind: str = "") -> Any:
    return next(
        node for node in model.get_ordered_ops()
        if re.search(pattern, node.get_friendly_name()) and kind in ("", node.get_type_name())
    )  # fmt: skip


def _logits(change: Callable[[Any, Any], Any]) -> Change:
    return _model(lambda ops, model: _after(model.get_results()[0].input_value(0), lambda output: change(ops, output)))


def _times(factor: float) -> Change:
    return _logits(lambda ops, output: ops.multiply(output, ops.constant(np.float32(factor))))


def _plus(term: np.ndarray) -> Change:
    return _logits(lambda ops, output: ops.add(output, ops.constant(term.astype(np.float32))))


def _region(by: float) -> Change:
    term = np.zeros(VOCABULARY, np.float32)
    term[-16:] = by
    return _plus(term)


def _offset_from(position: int) -> Change:
    """Positions from one on are one too many."""

    def more(ops: Any, output: Any) -> Any:
        return ops.add(output, ops.convert(ops.greater(output, ops.constant(np.int64(position - 1))), "i64"))

    return _model(lambda ops, model: _after(model.input("position_ids"), lambda output: more(ops, output)))


def _constant(choose: Callable[[Any], Any], change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Of a constant that `choose` takes from the model."""

    def apply(ops: Any, model: Any) -> None:
        node = choose(model)
        values = np.array(node.get_data())
        _after(node.output(0), lambda _: ops.constant(np.ascontiguousarray(change(values), dtype=values.dtype)))

    return _model(apply)


def _shaped(*shape: int, place: int = 0) -> Callable[[Any], Any]:
    """A constant of fp32 by its shape."""

    def choose(model: Any) -> Any:
        return [
            node for node in model.get_ordered_ops()
            if node.get_type_name() == "Constant" and tuple(node.get_output_shape(0)) == shape
            and node.get_element_type().get_type_name() == "f32"
        ][place]  # fmt: skip

    return choose


def _attention(factor: float) -> Change:
    """The scores of one layer."""

    def apply(ops: Any, model: Any) -> None:
        node = _node(model, "", "ScaledDotProductAttention")
        node.input(0).replace_source_output(ops.multiply(node.input_value(0), ops.constant(np.float32(factor))).output(0))

    return _model(apply)


def _sees(ahead: int) -> Change:
    """How many tokens behind itself a token sees."""

    def apply(ops: Any, model: Any) -> None:
        node = _node(model, "", "LessEqual")
        node.input(1).replace_source_output(ops.add(node.input_value(1), ops.constant(np.int64(ahead))).output(0))

    return _model(apply)


def _value(pattern: str, factor: float) -> Change:
    return _model(
        lambda ops, model: _after(_node(model, pattern).output(0), lambda output: ops.multiply(output, ops.constant(np.float32(factor))))
    )


def _cached(factor: float) -> Change:
    """What one layer keeps for later."""

    def apply(ops: Any, model: Any) -> None:
        node = _node(model, "", "Assign")
        node.input(0).replace_source_output(ops.multiply(node.input_value(0), ops.constant(np.float32(factor))).output(0))

    return _model(apply)


def _epsilon(value: float) -> Change:
    return _constant(
        lambda model: _node(model, r"layers\.0/input_layernorm/Add$").input_value(1).get_node(), lambda array: array * 0 + value
    )


@dataclass(frozen=True)
class Part:
    """Where a constant lies."""

    type: str
    shape: tuple[int, ...]
    offset: int
    size: int


def _parts(folder: Path) -> dict[str, dict[str, Part]]:
    """Name of a stored matrix → "codes", "scale", "zero_point" → where it lies, by the names that nncf gives."""
    pattern = r'name="([^"]+)" type="Const"[^>]*>\s*<data element_type="(\w+)" shape="([^"]*)" offset="(\d+)" size="(\d+)"'
    found = {
        name: Part(kind, tuple(int(size) for size in shape.split(",") if size.strip()), int(offset), int(size))
        for name, kind, shape, offset, size in re.findall(pattern, (folder / MODEL).read_text())
    }
    return {
        name: {"codes": part, **{one: found[f"{name}/{one}"] for one in ("scale", "zero_point")}}
        for name, part in found.items() if f"{name}/scale" in found
    }  # fmt: skip


def _stored(part: str, change: Callable[[np.ndarray], np.ndarray], *, table: bool = False) -> Change:
    """Of the middle matrix, or of the table of tokens: numbers in rows, those of 4 bits as bytes."""

    def apply(folder: Path) -> None:
        names = _parts(folder)
        chosen = [name for name in names if ("embed_tokens" in name) == table]
        place = names[chosen[len(chosen) // 2]][part]
        kind = np.float16 if place.type == "f16" else np.uint8
        path = folder / "openvino_model.bin"
        whole = path.read_bytes()
        rows = np.frombuffer(whole[place.offset : place.offset + place.size], kind).reshape(place.shape[0], -1).copy()
        new = np.ascontiguousarray(change(rows), dtype=kind).tobytes()
        path.write_bytes(whole[: place.offset] + new + whole[place.offset + place.size :])

    return apply


def _nibbles(by: int) -> Callable[[np.ndarray], np.ndarray]:
    def shifted(array: np.ndarray) -> np.ndarray:
        low, high = (np.clip((array >> shift & 15).astype(int) + by, 0, 15) for shift in (0, 4))
        return low | high << 4

    return shifted


def _edited(places: Any, value: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], np.ndarray]:
    def change(rows: np.ndarray) -> np.ndarray:
        rows[places] = value(rows)
        return rows

    return change


def _zeroed(folder: Path) -> None:
    """The last rows of the table stand for nothing, with their scales as they were."""
    place = _parts(folder)["model.model.embed_tokens.weight"]["zero_point"]
    whole = (folder / "openvino_model.bin").read_bytes()
    zeros = np.frombuffer(whole[place.offset : place.offset + place.size], np.uint8)
    _stored("codes", _edited(slice(-8, None), lambda _: zeros[-8:, None]), table=True)(folder)


def _of_another_layer(folder: Path) -> None:
    """A matrix of the second layer in the place of the first layer's."""
    names = _parts(folder)
    matrices = [name for name in names if "embed_tokens" not in name]
    first, second = next(
        (one, other) for at, one in enumerate(matrices) for other in reversed(matrices[at + 1 :])
        if names[one]["codes"].shape == names[other]["codes"].shape
    )  # fmt: skip
    path = folder / "openvino_model.bin"
    whole = bytearray(path.read_bytes())
    for part, place in names[first].items():
        source = names[second][part]
        whole[place.offset : place.offset + place.size] = whole[source.offset : source.offset + source.size]
    path.write_bytes(bytes(whole))


_NORM = _shaped(1, 1, WIDTH, place=2)
_NOISE = np.random.default_rng(1).normal(0, 0.1, VOCABULARY)
INT8, INT4 = (("openvino-int8",), ("openvino-int4",))
DAMAGES = (
    Damage("positions one too many from 48", _offset_from(48), STRUCTURE),
    Damage("positions one too many from 200", _offset_from(200), STRUCTURE),
    Damage("positions one too many from 250", _offset_from(250), STRUCTURE),
    Damage("rope x 2", _constant(_shaped(1, 1, 8), lambda array: array * 2), STRUCTURE),
    Damage("logits x 1.02", _times(1.02), STRUCTURE),
    Damage("logits x 0.98", _times(0.98), STRUCTURE),
    Damage("logits x 1.002", _times(1.002), STRUCTURE),
    Damage("logits x 1.0001", _times(1.0001), ""),
    Damage("a region of the vocabulary by -3", _region(-3), STRUCTURE),
    Damage("a region of the vocabulary by -0.05", _region(-0.05), STRUCTURE),
    Damage("a region of the vocabulary by -0.0005", _region(-0.0005), ""),
    Damage("a bias of the head", _plus(_NOISE), STRUCTURE),
    Damage("attention scale + 5 %", _attention(1.05), STRUCTURE),
    Damage("attention scale - 5 %", _attention(0.95), STRUCTURE),
    Damage("attention scale + 1 %", _attention(1.01), STRUCTURE),
    Damage("a token sees the next one", _sees(1), STRUCTURE),
    Damage("a token does not see itself", _sees(-1), STRUCTURE),
    Damage("a norm + 3 %", _constant(_NORM, lambda array: array * 1.03), STRUCTURE),
    Damage("one number of a norm x 1.5", _constant(_NORM, _edited((0, 0, 7), lambda array: array[0, 0, 7] * 1.5)), STRUCTURE),
    Damage("a norm's weight is one number", _constant(_NORM, lambda array: array * 0 + array.mean()), STRUCTURE),
    Damage("a norm's epsilon x 1000", _epsilon(1e-3), STRUCTURE),
    Damage("a norm's epsilon + 3 %", _epsilon(1.03e-6), ""),
    Damage("a residual x 0.97", _value(r"layers\.0/Add$", 0.97), STRUCTURE),
    Damage("cached keys x 0.98", _cached(0.98), STRUCTURE),
    Damage("a matrix of another layer", _of_another_layer, STRUCTURE),
    Damage("zero points + 1", _stored("zero_point", lambda rows: rows + 1), STORED, INT8),
    Damage("zero points - 1", _stored("zero_point", lambda rows: rows - 1), STORED, INT8),
    Damage("zero points + 1, of 4 bits", _stored("zero_point", _nibbles(1)), STORED, INT4),
    Damage("zero points - 1, of 4 bits", _stored("zero_point", _nibbles(-1)), STORED, INT4),
    Damage("one scale x 1.5", _stored("scale", _edited((3, 0), lambda rows: rows[3, 0] * 1.5)), STORED),
    Damage("one scale x 0.5", _stored("scale", _edited((3, 0), lambda rows: rows[3, 0] * 0.5)), STORED),
    Damage("one scale x 1.1", _stored("scale", _edited((3, 0), lambda rows: rows[3, 0] * 1.1)), STORED),
    Damage("one scale is zero", _stored("scale", _edited((3, 0), lambda rows: 0)), STORED),
    Damage("all scales + 2 %", _stored("scale", lambda rows: rows * np.float16(1.02)), STORED),
    Damage("the last rows of the table zeroed", _zeroed, STORED),
    Damage("the last rows of the table without scales", _stored("scale", _edited(slice(-8, None), lambda rows: 0), table=True), STORED),
    Damage("the last rows of the table are one row", _stored("codes", _edited(slice(-8, None), lambda rows: rows[5]), table=True), STORED),
    Damage("two rows of the table swapped", _stored("codes", _edited([70, 200], lambda rows: rows[[200, 70]]), table=True), STORED),
    Damage("nibbles of a row swapped", _stored("codes", _edited(2, lambda rows: rows[2] << 4 | rows[2] >> 4)), STORED, INT4),
    Damage("one number three steps away",
           _stored("codes", _edited((3, 40), lambda rows: rows[3, 40] - 3 if rows[3, 40] > 127 else rows[3, 40] + 3)), STORED, INT8),
    Damage("one number of 4 bits three steps away", _stored("codes", _edited((3, 20), lambda rows: rows[3, 20] ^ 4)), STORED, INT4),
)  # fmt: skip
CASES = [(damage, form) for damage in DAMAGES for form in damage.forms]
