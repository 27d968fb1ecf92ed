"""From the names that the adapter's model gives its parameters to those under which the base stores them.

Called by `handlers.merge.plan.matcher`. A base may be saved from the headless class, without the prefix that the model with a head has, or
the other way round; one rule is chosen for all names, so that a wrong base is not pieced together.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.merge.adapters.adapter import Adapter
from handlers.models.files import TensorInfo

OPERATION = "merge the adapter"


class NeedsPeft(Exception):
    """The adapter can't be streamed; the message is the reason, as a clause."""


@dataclass(frozen=True)
class Names:
    """The rule: `drop` is taken from the front of a parameter's name, `add` is put there."""

    stored: Mapping[str, TensorInfo]
    drop: str = ""
    add: str = ""

    def tensor(self, parameter: str) -> str:
        """The name under which the base stores the parameter, if it does."""
        return self.add + parameter.removeprefix(self.drop) if parameter.startswith(self.drop) else parameter

    def info(self, parameter: str) -> TensorInfo | None:
        """The stored tensor, or None."""
        return self.stored.get(self.tensor(parameter))

    def parameter(self, tensor: str) -> str:
        """The parameter that a stored tensor is."""
        return self.drop + tensor.removeprefix(self.add) if tensor.startswith(self.add) else tensor


def choose(parameters: Collection[str], stored: Mapping[str, TensorInfo]) -> Names:
    """The rule under which all `parameters` are stored; the plain one when there is none such."""
    plain = Names(stored)
    if not parameters or any(name in stored for name in parameters):
        return plain
    first = next(iter(parameters)).partition(".")[0] + "."
    rules = [Names(stored, drop=first)]
    fronts = Counter(name.partition(".")[0] + "." for name in stored)
    rules += [Names(stored, add=front) for front, _ in fronts.most_common(3)]
    return next((rule for rule in rules if all(rule.info(name) is not None for name in parameters)), plain)


def nothing_matches(adapter: Adapter, missing: list[str], names: Collection[str]) -> Permanent:
    """The error for adapter modules that the base does not have, with the three nearest names that it has."""
    module = next((name for name in missing if name not in names), missing[0])
    nearest = difflib.get_close_matches(module, sorted(names), n=3, cutoff=0.0)
    count = f"{len(missing)} modules of the adapter match" if len(missing) > 1 else "one module of the adapter matches"
    return Permanent(
        FaultCode.ADAPTER_KEY_UNMATCHED,
        OPERATION,
        f"{count} nothing in the base, for example {module}; the nearest names there are {', '.join(nearest)}",
        f"check that the base is the one the adapter was trained on, which it names {adapter.base_name}",
        path=adapter.folder,
    )


def wrong_shape(adapter: Adapter, module: str, base: tuple[int, ...], other: str) -> Permanent:
    """The error for a module whose shape the adapter contradicts; `other` says what the adapter has."""
    return Permanent(
        FaultCode.ADAPTER_FOR_ANOTHER_BASE,
        OPERATION,
        f"{module} is {' × '.join(map(str, base))} in the base, but {other}; most likely the adapter was trained on a base of another size",
        f"set the base to the one the adapter was trained on, which it names {adapter.base_name}",
        path=adapter.folder,
    )
