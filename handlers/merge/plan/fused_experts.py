"""Adapters of fused experts (`target_parameters`): which tensors of the base their factors change.

Called by `handlers.merge.plan.matcher`. In memory the experts of a layer are one three-dimensional parameter. On disk they are that, or one
matrix per expert, where the two inputs of the gated activation are separate matrices. Both layouts are supported; a model that stores
them in another way is merged by PEFT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.safetensors import TensorInfo
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.changes import check_ranks, factor_keys
from handlers.merge.adapters.keys import Factors, Keys
from handlers.merge.adapters.name_mapping import OPERATION, Names, NeedsPeft
from handlers.merge.adapters.separate_experts import OTHER_PATH
from handlers.merge.plan.operations import Experts
from handlers.merge.plan.output_layout import Output
from handlers.merge.weights.model_structure import structure
from handlers.models.folder import ModelFolder

SEPARATE = {"gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")), "down_proj": (("down_proj",), ("w2",))}
"""Fused parameter → the names of its parts where each expert is stored by itself, in the order in which they are stacked."""


@dataclass(frozen=True)
class _Place:
    """Where one fused parameter is stored: `parts` holds (tensor, expert, first row in the fused expert)."""

    parameter: str
    experts: int
    rows: int
    columns: int
    """Of one fused expert as stored."""
    parts: tuple[tuple[str, int | None, int], ...]


def _stacked(names: Names, module: str, leaf: str) -> _Place | None:
    name = names.tensor(f"{module}.{leaf}")
    info = names.stored.get(name)
    if info is None or len(info.shape) != 3:
        return None
    return _Place(leaf, *info.shape, parts=((name, None, 0),))


def _separate(names: Names, module: str, leaf: str) -> _Place | None:
    for home in {module, module.replace(*OTHER_PATH)}:
        for parts in SEPARATE.get(leaf, ()):
            pieces: list[tuple[str, int | None, int]] = []
            expert, rows, columns = 0, 0, 0
            while all(names.info(f"{home}.{expert}.{part}.weight") for part in parts):
                rows = 0
                for part in parts:
                    name = names.tensor(f"{home}.{expert}.{part}.weight")
                    pieces.append((name, expert, rows))
                    rows, columns = rows + names.stored[name].shape[0], names.stored[name].shape[1]
                expert += 1
            if expert:
                return _Place(leaf, expert, rows, columns, tuple(pieces))
    return None


def _leaves(adapter: Adapter, module: str) -> list[str]:
    """Return the parameters of the module that target_parameters names, without `weight`, which is that of an ordinary layer."""
    leaves = []
    for target in adapter.config.get("target_parameters") or ():
        holder, _, leaf = str(target).rpartition(".")
        if leaf != "weight" and (not holder or module == holder or module.endswith(f".{holder}")):
            leaves.append(leaf)
    return sorted(set(leaves))


def _fits(adapter: Adapter, factors: Factors, place: _Place) -> bool:
    a, b, _ = factor_keys(factors)
    pair = (adapter.shapes[b][0], adapter.shapes[a][-1])
    return pair in ((place.rows, place.columns), (place.columns, place.rows))


def _assign(adapter: Adapter, model: ModelFolder, module: str, levels: list[Factors], places: list[_Place]) -> dict[int, _Place]:
    """Nesting level → the parameter that it changes: by shape, else by the order in which the module registers them."""
    chosen = {}
    for factors in levels:
        fitting = [place for place in places if _fits(adapter, factors, place)]
        if len(fitting) == 1:
            chosen[factors.nested] = fitting[0]
    if len({place.parameter for place in chosen.values()}) == len(levels):
        return chosen
    built = structure(model)
    order = [name.rpartition(".")[2] for name in (built.shapes if built else ()) if name.rpartition(".")[0] == module]
    if len(places) != len(levels) or not all(place.parameter in order for place in places):
        raise NeedsPeft(f"the parameters of {module} can't be distinguished by their shapes")
    inner_first = sorted(places, key=lambda place: order.index(place.parameter))
    return {factors.nested: place for factors, place in zip(sorted(levels, key=lambda level: -level.nested), inner_first, strict=True)}


def _transposed(adapter: Adapter, model: ModelFolder, module: str, factors: Factors, place: _Place) -> bool:
    a, b, _ = factor_keys(factors)
    if place.rows != place.columns:
        return (adapter.shapes[b][0], adapter.shapes[a][-1]) == (place.columns, place.rows)
    built = structure(model)
    if built is None:
        raise NeedsPeft(f"the orientation of the square experts of {module} can't be determined")
    if module not in built.transposed and adapter.older_experts:
        raise square_of_older(adapter, f"{module}.{place.parameter}")
    return module in built.transposed


def square_of_older(adapter: Adapter, parameter: str) -> Permanent:
    """Return the error for square experts with factors of PEFT before 0.19, which fit them both ways round."""
    return Permanent(
        FaultCode.ADAPTER_NOT_MERGEABLE, OPERATION,
        f"the adapter was saved by PEFT {adapter.peft_version}, which laid out the factors of {parameter} the other way round than"
        " PEFT does since 0.19, and the experts are square, so that today's PEFT loads them transposed, without an error",
        "merge it with the PEFT that trained it (merge_and_unload) and export the result as a full fine-tune", path=adapter.folder,
    )  # fmt: skip


def expert_outputs(
    adapter: Adapter, keys: Keys, names: Names, model: ModelFolder, make: Callable[[str, TensorInfo, str, Experts], Output]
) -> list[Output]:
    """Remove the factors of fused experts from `keys` and return what they change; `make` builds an output for a stored tensor.

    Raises NeedsPeft when target_parameters names something that the base stores in another way.
    """
    outputs: list[Output] = []
    owned: dict[str, list[Factors]] = {}
    for (module, _), factors in keys.factors.items():
        owned.setdefault(module, []).append(factors)
    for module, levels in sorted(owned.items()):
        leaves = _leaves(adapter, module)
        if not leaves or names.info(f"{module}.weight") is not None:
            continue
        candidates = [_stacked(names, module, leaf) or _separate(names, module, leaf) for leaf in leaves]
        if None in candidates or len(levels) > len(candidates):
            raise NeedsPeft(f"the base stores the fused parameters of {module} in a way that is not known")
        places = [place for place in candidates if place is not None]
        for nested, place in _assign(adapter, model, module, levels, places).items():
            factors = keys.factors.pop((module, nested))
            a, b, _ = factor_keys(factors)
            path = f"{module}.{place.parameter}"
            check_ranks(adapter, Factors(path, roles=factors.roles), place.experts)
            transposed = _transposed(adapter, model, module, factors, place)
            for tensor, expert, offset in place.parts:
                info = names.stored[tensor]
                rows = info.shape[-2]
                operation = Experts(a, b, adapter.scale(path), place.experts, rows, expert, offset, transposed)
                outputs.append(make(tensor, info, path, operation))
    return outputs
