"""The low-rank changes of layers: linear, Conv1D, embedding and convolution, with or without DoRA, by LoRA or AdaLoRA.

Called by `handlers.merge.plan.matcher`. It settles how each weight lies, by shape where that tells and by the model's structure where
it does not, and refuses factors that do not fit, with both shapes.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.merge.adapters.adapter import Adapter, scale_of
from handlers.merge.adapters.changes import Wish, check_ranks, sides
from handlers.merge.adapters.name_mapping import OPERATION, NeedsPeft, wrong_shape
from handlers.merge.plan.operations import LowRank
from handlers.merge.weights.model_structure import structure
from handlers.models.files import CONV1D_MODELS

Shape = tuple[int, ...]


def _check_convolution(adapter: Adapter, module: str, shape: Shape, a: Shape, b: Shape) -> None:
    """Permanent unless A has the operation's shape and B is one by one."""
    if len(a) == len(shape) and (b[0], *a[1:]) == shape and math.prod(b[2:]) == 1:
        return
    if len(a) == len(shape) and shape[1] < a[1] and (b[0], *a[2:]) == (shape[0], *shape[2:]) and a[1] % shape[1] == 0:
        raise Permanent(
            FaultCode.ADAPTER_NOT_MERGEABLE,
            OPERATION,
            f"{module} is a convolution in {a[1] // shape[1]} groups, whose LoRA crosses the groups, which its weights can't",
            "serve it with PEFT beside its base instead",
            path=adapter.folder,
        )
    raise wrong_shape(adapter, module, shape, f"the adapter's factors are {' × '.join(map(str, b))} and {' × '.join(map(str, a))}")


def _orientation(adapter: Adapter, wish: Wish, shape: Shape) -> bool | None:
    """True for a weight stored as inputs × outputs, False for the other way, None for a square one; Permanent when neither fits."""
    assert wish.factors is not None
    key_a, key_b, embedding = sides(wish.factors)
    a, b = adapter.shapes[key_a], adapter.shapes[key_b]
    if len(shape) > 2 and len(a) > 2:
        _check_convolution(adapter, wish.module, shape, a, b)
        return False
    if len(shape) > 2 and adapter.method == "ADALORA" and (b[0], a[1]) == (shape[0], math.prod(shape[1:])):
        return False
    straight, turned = (b[0], a[1]), (a[1], b[0])
    if embedding:
        if shape == turned:
            return True
    elif shape in (straight, turned):
        return None if straight == turned else shape == turned
    other = f"the adapter's delta is {b[0]} × {a[1]}"
    raise wrong_shape(adapter, wish.module, shape, other)


def _square(adapter: Adapter, folder: Path, config: dict[str, Any], modules: list[str], others: set[bool]) -> dict[str, bool]:
    """How square weights lie: as the adapter's flag says if nothing speaks against it, else as the model is built."""
    flag = bool(adapter.config.get("fan_in_fan_out"))
    if not others - {flag} and (flag or config.get("model_type") not in CONV1D_MODELS):
        return dict.fromkeys(modules, flag)
    found = structure(folder)
    if found is None or not found.modules.issuperset(modules):
        raise NeedsPeft("the orientation of square weights can't be told from the adapter's configuration")
    return {module: module in found.turned for module in modules}


def _single(value: float) -> float:
    """The fp32 number next to `value`, as PEFT's own sum is one."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def _kernel(adapter: Adapter, wish: Wish, transposed: bool) -> LowRank | None:
    """None for a module that AdaLoRA has pruned to rank 0."""
    assert wish.factors is not None
    a, b, embedding = sides(wish.factors)
    roles, config = wish.factors.roles, adapter.config
    magnitude = roles.get("magnitude_vector")
    if bool(config.get("use_dora")) != (magnitude is not None):
        has = "has" if magnitude else "lacks"
        raise Permanent(
            FaultCode.DORA_MISMATCH,
            OPERATION,
            f"{wish.module} {has} a magnitude, but adapter_config.json says use_dora={bool(config.get('use_dora'))}",
            "use weights and adapter_config.json of one and the same save",
            path=adapter.folder,
        )
    outputs = adapter.shapes[b][0]
    if magnitude is not None and math.prod(adapter.shapes[magnitude]) != outputs:
        raise wrong_shape(adapter, wish.module, (outputs,), f"its magnitude is {' × '.join(map(str, adapter.shapes[magnitude]))}")
    if adapter.method != "ADALORA":
        scale = scale_of(config, wish.module)
        return LowRank(a, b, scale, transposed, magnitude, rounded=embedding and magnitude is None)
    if "E" not in roles or float(config["lora_alpha"]) <= 0:
        raise NeedsPeft(f"the AdaLoRA factors of {wish.module} are not in the usual form")
    if 0 in adapter.shapes[a]:
        return None
    return LowRank(a, b, float(config["lora_alpha"]), transposed, middle=roles["E"], divisor=_single(float(config["init_r"]) + 1e-5))


def low_rank(adapter: Adapter, folder: Path, config: dict[str, Any], wishes: list[tuple[Wish, Shape]]) -> list[LowRank | None]:
    """The operation for each wish, given the shape of its tensor; None where nothing is left to add.

    Raises Permanent for factors that do not fit, NeedsPeft when a square weight's orientation can't be told.
    """
    turned: list[bool | None] = []
    for wish, shape in wishes:
        assert wish.factors is not None
        check_ranks(adapter, wish.factors)
        turned.append(_orientation(adapter, wish, shape))
    square = [wish.module for (wish, _), value in zip(wishes, turned, strict=True) if value is None]
    linear = {
        value for (wish, shape), value in zip(wishes, turned, strict=True)
        if value is not None and len(shape) == 2 and wish.factors is not None and "A" in wish.factors.roles
    }  # fmt: skip
    settled = _square(adapter, folder, config, square, linear) if square else {}
    return [
        _kernel(adapter, wish, settled[wish.module] if value is None else value) for (wish, _), value in zip(wishes, turned, strict=True)
    ]
