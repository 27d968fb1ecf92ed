"""Compares an artifact with the twin that its stored weights give: `python -m handlers.validate.twins.compare FILE`, a JSON `Order`.

Started by a check in a process of its own, since it loads PyTorch and the artifact's runtime, one after the other. Three things are looked
at: whether each stored weight is a merged one rounded, whether the artifact in fp32 arithmetic is the twin (its structure), and what is
left, the rounding of activations. The answer is a JSON `Answer` on standard output.
"""

from __future__ import annotations

import gc
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from handlers.child import process
from handlers.toolchains import use
from handlers.validate.twins.comparison import apart, rounding, spread
from handlers.validate.twins.form import Form
from handlers.validate.twins.messages import Answer, Order
from handlers.validate.twins.passes import of_twin
from handlers.validate.twins.twin import Twin, Wrong
from handlers.validate.twins.weights import UnreadableError


def compare(order: Order) -> Answer:
    """Give the answer to an order; raises what a runtime raises."""
    form = _form(order)
    texts = [text for text in order.texts if form.told_positions or not text.start]
    try:
        twin = Twin(Path(order.merged), order.spec)
        wrong = twin.take(form.weights())
        weights = _worst(wrong)
        if weights and any(not weight.parameter for weight in wrong):
            return Answer(weights=weights)
        twin.round_to(form.halves())
        wanted = of_twin(order.spec, twin.engine, texts)
        del twin
        gc.collect()
        floats = form.outputs(texts, in_float=True)
        unit = spread(wanted)
        structure = max((apart(wanted, rows, unit, way) for way, rows in _by_way(floats).items()), key=lambda way: way.error)
        text = texts[structure.text]
        count = len(text.targets or text.ids)
        answer = Answer(weights=weights, limit=form.limit, tokens=count, way=structure.way)
        if not np.isfinite(structure.error):
            return answer
        position = int(text.places(count)[structure.first]) + text.start
        answer = answer.model_copy(update=_padding(order, form, unit))
        ways = _by_way(form.outputs(texts, in_float=False))
    except UnreadableError as error:
        return Answer(left_out=str(error))
    roundings = [rounding(rows, ways[way]) for way, rows in _by_way(floats).items()]
    worst = max(roundings, key=lambda way: abs(way.slope - 1))
    return answer.model_copy(update={"error": structure.error, "position": position, "rounding": worst})


def _form(order: Order) -> Form:
    if order.toolchain:
        use.borrow(Path(order.toolchain))
    form: Form = pkgutil.resolve_name(order.form)(order)
    return form


def _padding(order: Order, form: Form, unit: float) -> dict[str, float | str | None]:
    """Give what an answer says of padded batches."""
    asked = {side: form.padding_error(order.padded, side) for side in order.sides} if order.padded is not None else {}
    errors = {side: error / unit if np.isfinite(error) else np.inf for side, error in asked.items() if error is not None}
    if not errors:
        return {}
    side = max(errors, key=lambda name: errors[name])
    return {"padding": errors[side] if np.isfinite(errors[side]) else None, "padding_side": side}


def _by_way(outputs: Sequence[Mapping[str, np.ndarray]]) -> dict[str, list[np.ndarray]]:
    return {way: [rows[way] for rows in outputs] for way in outputs[0]}


def _worst(wrong: Sequence[Wrong]) -> str | None:
    """Give the worst of what is wrong with the stored weights."""
    if not wrong:
        return None
    worst = max(wrong, key=lambda weight: weight.share)
    others = f"; so are {len(wrong) - 1} other weights" if len(wrong) > 1 else ""
    if worst.misrounded is None:
        return f"its weight {worst.name} is none of the merged model's{others}"
    misrounded = worst.misrounded
    row = misrounded.row
    rows = f"row {row} and {misrounded.rows - 1} others are" if misrounded.rows > 1 else f"row {row} is"
    which = f"its weight {worst.name}, which is {worst.parameter} of the merged model"
    if not misrounded.share:
        return f"of {which}, {rows} rounded in steps {misrounded.steps:.2g} times too coarse{others}"
    far = f"{misrounded.share:.0%} of row {misrounded.row} is too far away, by up to {misrounded.steps:.3g} steps"
    return f"of {which}, {rows} not what rounding gives: {far}{others}"


def main(words: Sequence[str]) -> int:
    """Answer the order in a file."""
    order = Order.model_validate_json(Path(words[0]).read_bytes())
    process.bind(order.limits)
    gc.freeze()  # what the libraries made stays, and each collection would go through all of it
    print(compare(order).model_dump_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
