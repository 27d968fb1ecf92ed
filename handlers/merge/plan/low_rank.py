"""The low-rank changes of layers: linear, Conv1D, embedding and convolution, with or without DoRA, by LoRA or AdaLoRA.

Called by `handlers.merge.plan.matcher`. It finds out whether each weight is stored as outputs × inputs or transposed: from the shapes, and
for square weights from the model's structure. Factors that do not fit are refused, with both shapes.
"""

from __future__ import annotations

import math
import struct

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge.adapters.adapter import PEFTS_DEFAULT, Adapter
from handlers.merge.adapters.changes import Change, check_ranks, factor_keys
from handlers.merge.adapters.name_mapping import OPERATION, NeedsPeft, wrong_shape
from handlers.merge.plan.operations import LowRank
from handlers.merge.weights.model_structure import structure
from handlers.models.folder import ModelFolder

Shape = tuple[int, ...]


def _check_convolution(adapter: Adapter, module: str, shape: Shape, a: Shape, b: Shape) -> None:
    """Raise Permanent unless A has the operation's shape and B is one by one."""
    if len(a) == len(shape) and (b[0], *a[1:]) == shape and math.prod(b[2:]) == 1:
        return
    if len(a) == len(shape) and shape[1] < a[1] and (b[0], *a[2:]) == (shape[0], *shape[2:]) and a[1] % shape[1] == 0:
        raise Permanent(
            FaultCode.ADAPTER_NOT_MERGEABLE,
            OPERATION,
            f"{module} is a convolution with {a[1] // shape[1]} groups; its LoRA connects different groups, and merged weights"
            " can't do that",
            "serve it with PEFT beside its base instead",
            path=adapter.folder,
        )
    raise wrong_shape(adapter, module, shape, f"the adapter's factors are {' × '.join(map(str, b))} and {' × '.join(map(str, a))}")


def _orientation(adapter: Adapter, change: Change, shape: Shape) -> bool | None:
    """Return True for a weight stored as inputs × outputs, False for outputs × inputs, None if square; Permanent when neither fits."""
    assert change.factors is not None
    key_a, key_b, embedding = factor_keys(change.factors)
    a, b = adapter.shapes[key_a], adapter.shapes[key_b]
    if len(shape) > 2 and len(a) > 2:
        _check_convolution(adapter, change.module, shape, a, b)
        return False
    if len(shape) > 2 and adapter.method == "ADALORA" and (b[0], a[1]) == (shape[0], math.prod(shape[1:])):
        return False
    plain, transposed = (b[0], a[1]), (a[1], b[0])
    if adapter.by_parameter(change.module) and shape == plain:
        return False
    if embedding:
        if shape == transposed:
            return True
    elif shape in (plain, transposed):
        return None if plain == transposed else shape == transposed
    other = f"the adapter's delta is {b[0]} × {a[1]}"
    raise wrong_shape(adapter, change.module, shape, other)


def _square(adapter: Adapter, model: ModelFolder, modules: list[str], others: set[bool]) -> dict[str, bool]:
    """Return whether square weights are transposed: as the adapter's flag says if nothing contradicts it, else as the model is built."""
    flag = bool(adapter.config.get("fan_in_fan_out"))
    if not others - {flag} and (flag or not model.uses_conv1d):
        return dict.fromkeys(modules, flag)
    built = structure(model)
    if built is None or not built.modules.issuperset(modules):
        raise NeedsPeft("the orientation of square weights can't be determined from the adapter's configuration")
    return {module: module in built.transposed for module in modules}


def _single(value: float) -> float:
    """Return the fp32 number next to `value`, as PEFT's own sum is one."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _operation(adapter: Adapter, change: Change, transposed: bool) -> LowRank | None:
    """Return None for a module that AdaLoRA has pruned to rank 0."""
    assert change.factors is not None
    a, b, embedding = factor_keys(change.factors)
    roles, config = change.factors.roles, adapter.config
    magnitude = roles.get("magnitude_vector")
    if bool(config.get("use_dora")) != (magnitude is not None):
        has = "has" if magnitude else "lacks"
        raise Permanent(
            FaultCode.RANK_MISMATCH,
            OPERATION,
            f"{change.module} {has} a magnitude, but adapter_config.json says use_dora={bool(config.get('use_dora'))}",
            "use weights and adapter_config.json from the same save",
            path=adapter.folder,
        )
    outputs = adapter.shapes[b][0]
    if magnitude is not None and math.prod(adapter.shapes[magnitude]) != outputs:
        raise wrong_shape(adapter, change.module, (outputs,), f"its magnitude is {' × '.join(map(str, adapter.shapes[magnitude]))}")
    if adapter.method != "ADALORA":
        scale = adapter.scale(change.module)
        return LowRank(a, b, scale, transposed, magnitude, rounded=embedding and magnitude is None)
    alpha, divisor = float(config.get("lora_alpha", PEFTS_DEFAULT)), _single(float(config.get("init_r", 12)) + 1e-5)
    if "E" not in roles or alpha <= 0:
        raise NeedsPeft(f"the AdaLoRA factors of {change.module} are not in the usual form")
    if 0 in adapter.shapes[a]:
        return None
    return LowRank(a, b, alpha, transposed, middle=roles["E"], divisor=divisor)


def low_rank(adapter: Adapter, model: ModelFolder, changes: list[tuple[Change, Shape]]) -> list[LowRank | None]:
    """Return the operation for each change, given the shape of its tensor; None where nothing is left to add.

    Raises Permanent for factors that do not fit, NeedsPeft when the orientation of a square weight can't be found out.
    """
    transposed: list[bool | None] = []
    for change, shape in changes:
        assert change.factors is not None
        check_ranks(adapter, change.factors)
        transposed.append(_orientation(adapter, change, shape))
    square = [change.module for (change, _), value in zip(changes, transposed, strict=True) if value is None]
    linear = {
        value for (change, shape), value in zip(changes, transposed, strict=True)
        if value is not None and len(shape) == 2 and change.factors is not None and "A" in change.factors.roles
        and not adapter.by_parameter(change.module)
    }  # fmt: skip
    decided = _square(adapter, model, square, linear) if square else {}
    return [
        _operation(adapter, change, decided[change.module] if value is None else value)
        for (change, _), value in zip(changes, transposed, strict=True)
    ]
