"""Merging several adapters at once: their deltas, each multiplied by a weight, are added to the base and rounded once.

Called by `handlers.merge.plan.prepare`. Only plain LoRA can be added up. Changes that replace or rescale weights depend on the order, so
they are refused, and what PEFT does not run beside another adapter is too, since nothing could be compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.name_mapping import OPERATION
from handlers.merge.plan.matcher import Matched
from handlers.merge.plan.operations import LowRank, Sum
from handlers.merge.plan.output_layout import Output


def _refused(adapter: Adapter, what: str) -> Permanent:
    return Permanent(
        FaultCode.ADAPTERS_NOT_ADDITIVE,
        OPERATION,
        f"only plain LoRA adapters can be combined or used with a factor, and this one {what}",
        "merge the adapters one after another, each in an export that has the previous export as its base, or leave merge.add"
        " and merge.weight out",
        path=adapter.folder,
    )


def _plain(adapter: Adapter, output: Output) -> LowRank:
    operation = output.operation
    if isinstance(operation, LowRank) and operation.magnitude is None and output.stored is not None and output.stored.shape == output.shape:
        return operation
    raise _refused(adapter, f"makes another kind of change to {output.module}")


def combine(matches: Sequence[tuple[Adapter, Matched, float]]) -> Matched:
    """One table of outputs from those of several adapters for one base, each with its weight. Permanent when they can't be added up."""
    tables = [{output.name: output for output in matched.outputs} for _, matched, _ in matches]
    for (adapter, matched, _), table in zip(matches, tables, strict=True):
        if adapter.method != "LORA":
            raise _refused(adapter, f"is {adapter.method}")
        if adapter.config.get("target_parameters"):
            raise _refused(adapter, "names target_parameters")
        if matched.edits or table.keys() != tables[0].keys():
            raise _refused(adapter, "changes which tensors there are")
    outputs = []
    for name, output in tables[0].items():
        operations = []
        for number, ((adapter, _, weight), table) in enumerate(zip(matches, tables, strict=True)):
            if table[name].operation is not None or table[name].origin:
                plain = _plain(adapter, table[name])
                middle = f"{number}:{plain.middle}" if plain.middle else None
                operations.append(
                    replace(
                        plain, a=f"{number}:{plain.a}", b=f"{number}:{plain.b}", middle=middle, scale=plain.scale * weight, rounded=False
                    )
                )
                output = replace(output, module=table[name].module)
        outputs.append(replace(output, operation=Sum(tuple(operations)) if operations else None))
    return Matched(outputs)
