"""Tensors and rows that an adapter replaces: modules saved whole, resized vocabularies, trained tokens.

Called by `handlers.merge.plan.matcher`. The values are cast to the dtype of what they replace, as PEFT does on loading.
"""

from __future__ import annotations

from dataclasses import replace

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge.adapters.adapter import Adapter, AdapterSource
from handlers.merge.adapters.changes import Change
from handlers.merge.adapters.keys import parse
from handlers.merge.adapters.name_mapping import OPERATION, wrong_shape
from handlers.merge.plan.operations import Rows
from handlers.merge.plan.output_layout import Output


def replaced(adapter: Adapter, key: str, output: Output) -> Output:
    """Return the output with the values, and the shape, of the adapter's tensor `key`."""
    from handlers.tensors.sources import torch_dtype

    source = AdapterSource(adapter, key, torch_dtype(output.dtype, adapter.file))
    return replace(output, shape=adapter.shapes[key], source=source, module=output.module or output.name, origin=key)


def _indices(adapter: Adapter, module: str) -> list[int]:
    setting = adapter.config.get("trainable_token_indices")
    if isinstance(setting, dict):
        named = [value for name, value in setting.items() if module.endswith(name)]  # as PEFT compares them
        return [int(index) for index in (named[0] if named else next(iter(setting.values()), ()))]
    return [int(index) for index in setting or ()]


def rows_of_tokens(adapter: Adapter, change: Change, shape: tuple[int, ...]) -> Rows:
    """Return the replacement of trained tokens' rows; Permanent when indices, rows and vocabulary do not fit."""
    key = str(change.tokens)
    indices = _indices(adapter, next(iter(parse([key]).tokens)))  # of the module that was trained, with which this one may be tied
    if len(shape) != 2 or adapter.shapes[key] != (len(indices), shape[1]):
        raise wrong_shape(
            adapter, change.module, shape, f"the adapter has {' × '.join(map(str, adapter.shapes[key]))} for {len(indices)} trained tokens"
        )
    outside = [index for index in indices if not 0 <= index < shape[0]]
    if outside:
        raise Permanent(
            FaultCode.ADAPTER_FOR_ANOTHER_BASE,
            OPERATION,
            f"the adapter trained token {outside[0]}, but the last token of {change.module} is {shape[0] - 1}; the vocabulary"
            " was enlarged in training",
            "set the base to one with the enlarged vocabulary",
            path=adapter.folder,
        )
    return Rows(key, tuple(indices))
