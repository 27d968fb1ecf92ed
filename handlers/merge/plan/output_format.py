"""How the outputs of a merge are written: in which dtype, and in which files.

Called by `handlers.merge.plan.prepare` where the options ask for other dtypes or files than the base's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from handlers.merge.adapters.adapter import AdapterSource
from handlers.merge.plan.operations import LowRank, Operation
from handlers.merge.plan.output_layout import Output, resharded
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import StoredSource, torch_dtype

FLOATS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
"""Dtype in the options → in a safetensors header."""
CAST = ("F64", *FLOATS.values())
"""Dtypes that are cast; integers and fp8 stay as they are."""


def cast(outputs: Iterable[Output], model: ModelFolder, name: str) -> list[Output]:
    """The outputs, floating-point ones in the dtype `name`, each value rounded once."""
    wanted = FLOATS[name]
    result = []
    for output in outputs:
        if output.dtype not in CAST or output.dtype == wanted:
            result.append(output)
            continue
        source = output.source
        if isinstance(source, AdapterSource):  # what is added to is not rounded before the sum
            source = source.cast(torch_dtype(wanted if output.operation is None else "F32", model.path))
        elif not output.computed and output.stored is not None:
            source = StoredSource(output.name, model.path_of(output.stored), output.stored)
        result.append(replace(output, dtype=wanted, source=source, operation=_in_one(output.operation)))
    return result


def _in_one(operation: Operation | None) -> Operation | None:
    """The operation without a rounding of its own, which follows PEFT where the base keeps its dtype."""
    return replace(operation, rounded=False) if isinstance(operation, LowRank) else operation


def divide(outputs: Iterable[Output], limit: int) -> list[Output]:
    """The outputs in files of at most `limit` bytes of values each, in the order in which the base has them."""
    table = {output.name: output for output in outputs}
    order = sorted(table.values(), key=lambda output: (output.file, output.stored.start if output.stored else 1 << 62, output.name))
    files = resharded(((output.name, output.size) for output in order), limit)
    return [replace(table[name], file=file) for file, names in files.items() for name in names]
