"""Quantized graphs that are wrong in one way each: in what they compute, or in the numbers that they store.

`python -m tests.validate.damage_quantized` makes all of them of the models of `sabotage` and prints what the comparison with the twin says;
`test_twins.py` runs them as tests. The damages range from gross ones to some that nobody could notice, which must be shown to be harmless.
"""

from __future__ import annotations

import pkgutil
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from daemon.contract.formats.catalog import catalog
from daemon.contract.jobs.messages import ChildLimits
from handlers.onnx.format import TWIN
from handlers.onnx.options import OnnxOptions
from handlers.validate.twins import judging
from handlers.validate.twins.compare import compare
from handlers.validate.twins.messages import Answer, Order, Text
from handlers.validate.workers.protocol import PaddedBatch
from handlers.web.format import TWIN as PAGE_TWIN
from tests.onnx.conftest import make_context, silent
from tests.onnx.small import derived
from tests.validate.sabotage import Lab, make

FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "int8": ("int8", {}), "int8-static": ("int8_static", {}), "int8-weight": ("int8_weight", {}),
    "int4": ("int4", {}), "int4-zeros": ("int4", {"symmetric": False}), "int4-k-quant": ("int4", {"algorithm": "k-quant"}),
    "int4-hqq": ("int4", {"algorithm": "hqq"}), "fp16": ("fp16", {}),
    "genai-int4": ("genai", {}), "genai-int4-zeros": ("genai", {"symmetric": False}),
    "web-int8": ("web", {}), "web-int4": ("web", {}), "activations-int8": ("activations", {}), "activations-fp16": ("activations", {}),
}  # fmt: skip
OURS = tuple(name for name in FORMS if name.startswith(("int", "fp16")))
COPIES = {"web-int8": "int8", "web-int4": "int4", "activations-int8": "int8"}
"""Forms whose graphs are others' with small changes → the form whose damages they can have."""
GENAI = ("genai-int4", "genai-int4-zeros")
INT8 = ("int8", "int8-static")
NIBBLES = ("int4", "int4-zeros", "int4-k-quant", "int4-hqq", *GENAI)
ROUNDED = (*INT8, "int8-weight", *NIBBLES)
STRUCTURE = "its graph is not the model that its own weights give"
MASK = "in a left-padded batch, computed in fp32 .*: it does not honour the attention mask"
STORED = "not what rounding gives|none of the merged model's|too coarse"
SYSTEMATIC = "its outputs are .* times those|moves a part of its outputs"
LENGTH = 256
"""Positions of the models of `sabotage`."""


def artifact(lab: Lab, form: str, source: str = "sound") -> Path:
    """A form of a model of the lab; with `source`, of another checkpoint. Read only."""
    target = lab.folder / "made" / source / f"form-{form}"
    if not target.is_dir():
        stage, options = FORMS[form]
        scratch = lab.folder / "scratch" / f"{source}-form-{form}"
        if stage == "genai":
            from handlers.onnx.genai import int4

            context = make_context(scratch, "onnx-genai-int4", {"merge": lab.made(source, "pytorch")}, lab.base)
            context = context.model_copy(update={"work": context.work.with_options(OnnxOptions(**options))})
            int4.run(context, silent())
            shutil.copytree(context.staging, target)
        elif stage in ("web", "activations"):
            shutil.copytree(_copied(lab, form, source, scratch), target)
        else:
            shutil.copytree(derived(stage, lab.made(source, "onnx"), scratch, accuracy_level=0, **options).folder, target)
    return target


def _copied(lab: Lab, form: str, source: str, scratch: Path) -> Path:
    """What the stages of a page and of activations make."""
    plain, stage = lab.made(source, "onnx"), pkgutil.resolve_name("handlers.onnx.activations.stage:run")
    if form in ("web-int8", "web-int4"):
        inputs = {f"onnx-{COPIES[form]}": artifact(lab, COPIES[form], source), "onnx": plain}
        stage = pkgutil.resolve_name(f"handlers.web.stage:{COPIES[form]}")
    else:
        context = make_context(scratch / "whole", "onnx-activations", {"merge": lab.made(source, "pytorch"), "onnx": plain}, lab.base)
        stage(context, silent())
        inputs = {"onnx-activations": Path(context.staging)}
        name = "half" if form.endswith("fp16") else "integers"
        stage = pkgutil.resolve_name(f"handlers.onnx.activations.forms:{name}")
    context = make_context(scratch / "form", form if form in catalog().variants else f"onnx-{form}", inputs, lab.base)
    stage(context, silent())
    return Path(context.staging)


def texts(form: str) -> list[Text]:
    """A short and a long text; where positions are told, a short one at the end."""
    drawn = np.random.default_rng(0)
    short, long = ([int(token) for token in drawn.integers(2, 320, count)] for count in (12, judging.LONG))
    far = [] if form in GENAI else [Text(ids=short, start=LENGTH - len(short))]
    return [Text(ids=short), Text(ids=long), *far]


def padded() -> PaddedBatch:
    """Texts of unlike length, each with two tokens behind it."""
    drawn = np.random.default_rng(4)
    rows = [[int(token) for token in drawn.integers(2, 320, count)] for count in (24, 5, 11)]
    return PaddedBatch(prompts=rows, continuations=[row[:2] for row in rows])


def answered(lab: Lab, form: str, folder: Path) -> Answer:
    """What the comparison of a folder finds."""
    engine = "onnx-genai" if form in GENAI else "web" if form.startswith("web") else "onnx"
    order = Order(
        form=PAGE_TWIN if engine == "web" else TWIN, engine=engine, folder=str(folder),
        merged=str(lab.made("sound", "pytorch")), task="text-generation", sentence=False,
        threads=1, texts=texts(form), padded=None if form in GENAI else padded(), sides=("left",),
        arithmetic="half" if form.endswith("fp16") else "float", limits=ChildLimits(),
    )  # fmt: skip
    return compare(order)


def reasons(answer: Answer) -> str:
    """What a check would say of it."""
    return said(judging.judged(answer, "onnx-int8"))


def said(compared: judging.Compared) -> str:
    """Its reasons and notes."""
    return " | ".join((*(finding.reason for finding in compared.findings), *compared.notes))


Change = Callable[[onnx.ModelProto], None]


@dataclass(frozen=True)
class Damage:
    """One way to be wrong."""

    name: str
    forms: tuple[str, ...]
    change: Change
    words: str
    """What the reasons say; "" where it is harmless: below the limits, and of little effect on the outputs."""

    def apply(self, source: Path, target: Path) -> Path:
        """A damaged copy."""
        shutil.copytree(source, target)
        file = next(target.rglob("model*.onnx"))
        model = onnx.load(file)
        before = model.SerializeToString(deterministic=True)
        self.change(model)
        assert model.SerializeToString(deterministic=True) != before, f"{self.name} changed nothing"
        for path in file.parent.glob(f"{file.name}*"):
            path.unlink()
        onnx.save(model, file)
        return target


def _tensor(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    return next(one for one in model.graph.initializer if one.name == name)


def _edit(model: onnx.ModelProto, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    tensor = _tensor(model, name)
    array = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(change(array.copy())).astype(array.dtype), name))


def _add(model: onnx.ModelProto, name: str, array: np.ndarray) -> str:
    model.graph.initializer.append(numpy_helper.from_array(array, name))
    return name


def _after(model: onnx.ModelProto, value: str, nodes: Callable[[str, str], list[onnx.NodeProto]]) -> None:
    """Put nodes behind a value: they get the name that it has now, and the one that all others read."""
    graph, inner = model.graph, f"{value}.whole"
    places = [number for number, node in enumerate(graph.node) if value in node.output]
    place = places[0] + 1 if places else 0
    if places:
        node = graph.node[places[0]]
        node.output[:] = [inner if name == value else name for name in node.output]
        new = nodes(inner, value)
    else:  # an input
        changed = f"{value}.changed"
        for node in graph.node:
            node.input[:] = [changed if name == value else name for name in node.input]
        new = nodes(value, changed)
    for number, node in enumerate(new):
        graph.node.insert(place + number, node)


def _floats(model: onnx.ModelProto) -> Any:
    """The type of the outputs."""
    return np.float16 if model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16 else np.float32


def _times(value: str, factor: float | np.ndarray) -> Change:
    def change(model: onnx.ModelProto) -> None:
        name = _add(model, f"{value}.factor", np.asarray(factor, np.float32))
        _after(model, value, lambda before, after: [helper.make_node("Mul", [before, name], [after])])

    return change


def _plus(value: str, term: np.ndarray) -> Change:
    def change(model: onnx.ModelProto) -> None:
        name = _add(model, f"{value}.term", term.astype(np.float32))
        _after(model, value, lambda before, after: [helper.make_node("Add", [before, name], [after])])

    return change


def _ignore_the_mask(model: onnx.ModelProto) -> None:
    """All tokens are seen, padding too."""
    ones = helper.make_tensor("value", TensorProto.INT64, [1], [1])
    _after(model, "attention_mask", lambda before, after: [
        helper.make_node("Shape", [before], ["mask_shape"]),
        helper.make_node("ConstantOfShape", ["mask_shape"], [after], value=ones),
    ])  # fmt: skip


def _see_the_last_padding(model: onnx.ModelProto) -> None:
    """The token before the first one that the mask shows is seen too, the last one of the padding."""
    for name, numbers in (("mask_from_1", [1]), ("mask_to_end", [1 << 40]), ("mask_axis", [1]), ("mask_last", [-1])):
        _add(model, name, np.array(numbers, np.int64))
    _after(model, "attention_mask", lambda before, after: [
        helper.make_node("Slice", [before, "mask_from_1", "mask_to_end", "mask_axis"], ["mask_rest"]),
        helper.make_node("Slice", [before, "mask_last", "mask_to_end", "mask_axis"], ["mask_end"]),
        helper.make_node("Concat", ["mask_rest", "mask_end"], [after], axis=1),
    ])  # fmt: skip


def _region(by: float) -> Change:
    term = np.zeros(320, np.float32)
    term[-16:] = by
    return _plus("logits", term)


def _offset_from(position: int) -> Change:
    """Positions from one on are one too many."""

    def change(model: onnx.ModelProto) -> None:
        border = _add(model, "border", np.array(position - 1, np.int64))
        _after(model, "position_ids", lambda before, after: [
            helper.make_node("Greater", [before, border], ["beyond"]),
            helper.make_node("Cast", ["beyond"], ["one_more"], to=TensorProto.INT64),
            helper.make_node("Add", [before, "one_more"], [after]),
        ])  # fmt: skip

    return change


def _tables(change: Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]) -> Change:
    """Of cosines and sines (positions, H / 2)."""

    def apply(model: onnx.ModelProto) -> None:
        both = [numpy_helper.to_array(_tensor(model, name)) for name in ("cos_cache", "sin_cache")]
        for name, array in zip(("cos_cache", "sin_cache"), change(*both), strict=True):
            _edit(model, name, lambda _, new=array: new)

    return apply


def _shifted_from(position: int) -> Change:
    return _tables(lambda *both: tuple(np.concatenate([one[:position], one[position + 1 :], one[-1:]]) for one in both))  # type: ignore[arg-type,return-value]


def _faster_rotation(model: onnx.ModelProto) -> None:
    """The frequencies of our graphs, twice as large."""
    values = [one.t for node in model.graph.node if node.op_type == "Constant" for one in node.attribute if one.name == "value"]
    one = next(one for one in (*model.graph.initializer, *values) if one.data_type in (1, 10) and np.prod(one.dims) == 8)
    one.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(one) * 2, one.name))


def _attention_scale(factor: float) -> Change:
    """Scores of one layer: of the operator that has all of attention, or of a softmax."""

    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                scale = next((one for one in node.attribute if one.name == "scale"), None)
                assert scale is not None
                scale.f *= factor
                return
            if node.op_type == "Softmax":
                _times(node.input[0], factor)(model)
                return

    return change


def _norm(pattern: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    def apply(model: onnx.ModelProto) -> None:
        _edit(model, next(one.name for one in model.graph.initializer if re.search(pattern, one.name)), change)

    return apply


def _epsilon(value: float) -> Change:
    """Of the first norm."""

    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            for one in node.attribute:
                if one.name == "epsilon":
                    one.f = value
                    return
                if node.op_type == "Constant" and one.t.data_type in (1, 10) and np.prod(one.t.dims) == 1:
                    array = numpy_helper.to_array(one.t)
                    if 0 < float(array.reshape(-1)[0]) < 1e-4:
                        one.t.CopyFrom(numpy_helper.from_array(np.full_like(array, value), one.t.name))
                        return

    return change


def _residual(factor: float) -> Change:
    """What the first layer hands on."""

    def change(model: onnx.ModelProto) -> None:
        skip = next((node for node in model.graph.node if node.op_type == "SkipSimplifiedLayerNormalization"), None)
        if skip is not None:
            _times(skip.input[0], factor)(model)
            return
        _times(next(node.output[0] for node in model.graph.node if re.search(r"layers\.0/Add$", node.name)), factor)(model)

    return change


@dataclass(frozen=True)
class Parts:
    """The names of a stored matrix's tensors."""

    codes: str
    scales: str
    zeros: str | None
    columns: bool
    """It lies as (inputs, outputs)."""


def _parts(model: onnx.ModelProto, *, table: bool = False) -> list[Parts]:
    names = {one.name for one in model.graph.initializer}
    found = []
    for name in sorted(names):
        ours = re.fullmatch(r".+\.int[48](\.rows|\.columns|\.turned|)", name)
        genai = bool(re.search(r"_Q4(G\d+)?$", name))
        if not ours and not genai:
            continue
        stem = re.sub(r"_Q4(G\d+)?$", "", name)
        scales = next(
            one for one in (f"{stem}.table_scale", f"{stem}.scale", f"{stem}.scales", f"{stem}_scales", f"{stem}_scale") if one in names
        )
        zeros = next((one for one in (f"{stem}.zero_point", f"{stem}.zeros", f"{stem}_zp", f"{stem}_zero_points") if one in names), None)
        is_table = "embed_tokens" in name or (genai and "lm_head" in name)
        if is_table == table:
            found.append(Parts(name, scales, zeros, name.endswith(".columns")))
    return found


def _middle(model: onnx.ModelProto, *, table: bool = False) -> Parts:
    found = _parts(model, table=table)
    return found[len(found) // 2]


def _zero_points(by: int) -> Change:
    """Of a whole matrix; one without zero points gets some."""

    def shifted(array: np.ndarray) -> np.ndarray:
        if array.dtype != np.uint8:
            return array + by
        low, high = (np.clip((array >> shift & 15).astype(int) + by, 0, 15) for shift in (0, 4))
        return low | high << 4

    def change(model: onnx.ModelProto) -> None:
        parts = _middle(model)
        if parts.zeros is not None:
            _edit(model, parts.zeros, shifted)
            return
        node = next(node for node in model.graph.node if parts.codes in node.input)
        bits = next(one.i for one in node.attribute if one.name == "bits")
        scales = numpy_helper.to_array(_tensor(model, parts.scales))
        rows = next(one.i for one in node.attribute if one.name == "N")
        count = scales.size // rows
        middle = (1 << (bits - 1)) + by
        wide = np.full((rows, count if bits == 8 else -(-count // 2)), middle if bits == 8 else middle | middle << 4, np.uint8)
        node.input[:] = [*node.input[:3], _add(model, "made.zeros", wide)]

    return change


def _one_scale(factor: float, *, everywhere: bool = False) -> Change:
    """Of the third row, or of the first block of it; `everywhere`: of all."""

    def scaled(array: np.ndarray) -> np.ndarray:
        if everywhere:
            return array * factor
        if array.ndim > 1 and array.shape[-1] > 1:
            array[3, 0] *= factor
        else:
            array.reshape(-1)[3] *= factor
        return array

    return lambda model: _edit(model, _middle(model).scales, scaled)


def _rows(change: Callable[[np.ndarray], None]) -> Change:
    """Of the token table: its numbers and its scales alike."""

    def apply(model: onnx.ModelProto) -> None:
        parts = _middle(model, table=True)

        def changed(array: np.ndarray) -> np.ndarray:
            whole = array.reshape(320, -1)
            change(whole)
            return whole.reshape(array.shape)

        for name in filter(None, (parts.codes, parts.scales)):
            _edit(model, name, changed)

    return apply


def _zeroed(rows: np.ndarray) -> None:
    rows[-8:] = 136 if rows.dtype == np.uint8 else 0


def _doubled(rows: np.ndarray) -> None:
    rows[-8:] = rows[5]


def _swapped(rows: np.ndarray) -> None:
    rows[[70, 200]] = rows[[200, 70]]


def _zeroed_codes(model: onnx.ModelProto) -> None:
    """The last rows of the table stand for nothing, with their scales as they were."""
    parts = _middle(model, table=True)
    zero = 136 if re.search(r"\.int4$|_Q4(G\d+)?$", parts.codes) else 128 if parts.codes.endswith(".int8") else 0

    def changed(array: np.ndarray) -> np.ndarray:
        array.reshape(320, -1)[-8:] = zero
        return array

    _edit(model, parts.codes, changed)


def _swapped_nibbles(model: onnx.ModelProto) -> None:
    def changed(array: np.ndarray) -> np.ndarray:
        array[2, 1] = array[2, 1] << 4 | array[2, 1] >> 4
        return array

    _edit(model, _middle(model).codes, changed)


def _one_code(model: onnx.ModelProto) -> None:
    """One number of a matrix is two steps off."""

    def changed(array: np.ndarray) -> np.ndarray:
        flat = array.reshape(-1)
        if array.dtype == np.uint8:
            low = int(flat[40] & 15)
            flat[40] = (flat[40] & 240) | (low - 3 if low > 7 else low + 3)
        else:
            flat[40] = flat[40] - 3 if flat[40] > 0 else flat[40] + 3
        return array

    _edit(model, _middle(model).codes, changed)


def _of_another_layer(model: onnx.ModelProto) -> None:
    """A matrix of the second layer in the place of the first layer's."""
    parts = _parts(model)
    shapes = [tuple(_tensor(model, one.codes).dims) for one in parts]
    first, second = next((a, b) for a in range(len(parts)) for b in range(len(parts) - 1, a, -1) if shapes[a] == shapes[b])
    for name in ("codes", "scales", "zeros"):
        target, source = (getattr(parts[one], name) for one in (first, second))
        if target is not None and source is not None:
            _edit(model, target, lambda _, new=source: numpy_helper.to_array(_tensor(model, new)))


def _one_number(model: onnx.ModelProto) -> None:
    """A norm's weight becomes one number, its mean."""
    name = next(one.name for one in model.graph.initializer if re.search(r"layers\.1.*(input_layernorm).*weight", one.name))
    tensor = _tensor(model, name)
    array = numpy_helper.to_array(tensor)
    node = next(node for node in model.graph.node if name in node.input)
    alike = np.full((1,) if node.op_type == "Mul" else array.shape, array.mean(), array.dtype)
    tensor.CopyFrom(numpy_helper.from_array(alike, name))


def _activation(part: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
    """The range of the activation that the head multiplies."""

    def apply(model: onnx.ModelProto) -> None:
        found = [one.name for one in model.graph.initializer if re.search(rf"norm.*\.static\.{part}$", one.name)]
        _edit(model, found[-1], change)

    return apply


_NORM = r"layers\.1.*input_layernorm.*weight"
DAMAGES = (
    Damage("positions one too many from 48", OURS, _offset_from(48), STRUCTURE),
    Damage("positions one too many from 200", OURS, _offset_from(200), STRUCTURE),
    Damage("positions one too many from 250", OURS, _offset_from(250), STRUCTURE),
    Damage("mask ignored", ("int8",), _ignore_the_mask, MASK),
    Damage("mask shows the last padding", ("int8",), _see_the_last_padding, MASK),
    Damage("rope table shifted by one row from 48", GENAI, _shifted_from(48), STRUCTURE),
    Damage("rope table shifted by one row", GENAI, _shifted_from(0), ""),
    Damage("rope x 2 in tables", GENAI, _tables(lambda cos, sin: (cos**2 - sin**2, 2 * sin * cos)), STRUCTURE),
    Damage("rope x 2", OURS, _faster_rotation, STRUCTURE),
    Damage("logits x 1.02", (*OURS, *GENAI), _times("logits", 1.02), STRUCTURE),
    Damage("logits x 0.98", (*OURS, *GENAI), _times("logits", 0.98), STRUCTURE),
    Damage("logits x 1.002", ROUNDED, _times("logits", 1.002), STRUCTURE),
    Damage("logits x 1.0001", (*OURS, *GENAI), _times("logits", 1.0001), ""),
    Damage("a region of the vocabulary by -3", (*OURS, *GENAI), _region(-3), STRUCTURE),
    Damage("a region of the vocabulary by -1", (*OURS, *GENAI), _region(-1), STRUCTURE),
    Damage("a region of the vocabulary by -0.05", ROUNDED, _region(-0.05), STRUCTURE),
    Damage("a region of the vocabulary by -0.0005", (*OURS, *GENAI), _region(-0.0005), ""),
    Damage("a bias of the head", (*OURS, *GENAI), _plus("logits", np.random.default_rng(1).normal(0, 0.1, 320)), STRUCTURE),
    Damage("attention scale + 5 %", ROUNDED, _attention_scale(1.05), STRUCTURE),
    Damage("attention scale - 5 %", ROUNDED, _attention_scale(0.95), STRUCTURE),
    Damage("attention scale + 1 %", ROUNDED, _attention_scale(1.01), STRUCTURE),
    Damage("a norm + 3 %", (*OURS, *GENAI), _norm(_NORM, lambda array: array * 1.03), STRUCTURE),
    Damage("one number of a norm x 1.5", ROUNDED, _norm(_NORM, lambda array: np.r_[array[:7], array[7] * 1.5, array[8:]]), STRUCTURE),
    Damage("a norm's weight is one number", (*OURS, *GENAI), _one_number, STRUCTURE),
    Damage("a norm's epsilon x 1000", ROUNDED, _epsilon(1e-3), STRUCTURE),
    Damage("a norm's epsilon + 3 %", ROUNDED, _epsilon(1.03e-6), ""),
    Damage("a residual x 0.97", ROUNDED, _residual(0.97), STRUCTURE),
    Damage("cached keys x 0.98", tuple(one for one in OURS if one != "fp16"), _times("past_key_values.0.key", 0.98), STRUCTURE),
    Damage("a matrix of another layer", ROUNDED, _of_another_layer, STRUCTURE),
    Damage("zero points + 1", ROUNDED, _zero_points(1), STORED),
    Damage("zero points - 1", ROUNDED, _zero_points(-1), STORED),
    Damage("one scale x 1.5", ROUNDED, _one_scale(1.5), STORED),
    Damage("one scale x 0.5", ROUNDED, _one_scale(0.5), STORED),
    Damage("one scale x 1.1", ROUNDED, _one_scale(1.1), STORED),
    Damage("all scales + 2 %", ROUNDED, _one_scale(1.02, everywhere=True), STORED),
    Damage("one scale is zero", ROUNDED, _one_scale(0), STORED),
    Damage("the last rows of the table zeroed", ROUNDED, _zeroed_codes, STORED),
    Damage("the last rows of the table without scales", ROUNDED, _rows(_zeroed), STORED),
    Damage("the last rows of the table are another's", ROUNDED, _rows(_doubled), STORED),
    Damage("two rows of the table swapped", ROUNDED, _rows(_swapped), STORED),
    Damage("nibbles of a block swapped", NIBBLES, _swapped_nibbles, STORED),
    Damage("one number three steps away", ROUNDED, _one_code, STORED),
    Damage("an activation's scale x 0.3", ("int8-static",), _activation("scale", lambda array: array * 0.3), SYSTEMATIC),
    Damage("an activation's zero point at the end", ("int8-static",), _activation("zero_point", lambda array: array * 0 + 250), SYSTEMATIC),
)  # fmt: skip
CASES = [(one, form) for one in DAMAGES for form in one.forms]
CASES += [(one, copy) for one in DAMAGES for copy, form in COPIES.items() if form in one.forms]


def main() -> None:
    """All of them, and the sound ones, as a table. Arguments: parts of names, to run some."""
    with tempfile.TemporaryDirectory() as name:
        lab = make(Path(name, "lab"))
        for form in FORMS:
            answer = answered(lab, form, artifact(lab, form))
            print(f"{'sound':45} {form:18} {reasons(answer) or 'passes'}  {_figures(answer)}", flush=True)
        for number, (one, form) in enumerate(CASES):
            if len(sys.argv) > 1 and not any(word in one.name for word in sys.argv[1:]):
                continue
            answer = answered(lab, form, one.apply(artifact(lab, form), Path(name, f"case-{number}")))
            told = reasons(answer)
            right = bool(re.search(one.words, told)) if one.words else not told
            print(f"{one.name:45} {form:18} {'right' if right else 'WRONG':6} {_figures(answer)} {told[:160]}", flush=True)


def _figures(answer: Answer) -> str:
    rounding = answer.rounding
    slope = f", share {rounding.share:.2g}, slope {rounding.slope:.4f}, shift {rounding.shift:.2g}" if rounding else ""
    return f"error {answer.error if answer.error is None else f'{answer.error:.2g}'}{slope}"


if __name__ == "__main__":
    main()
