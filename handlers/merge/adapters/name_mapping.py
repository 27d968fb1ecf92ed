"""Maps the parameter names of the adapter's model to the names under which the base stores them.

Called by `handlers.merge.plan.matcher`. A base may have been saved from the class without a head, so that its names lack a prefix, or the
other way round. One rule is used for all names: with a rule for each name, an adapter could match a base that it does not belong to.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.safetensors import TensorInfo
from handlers.merge.adapters.adapter import Adapter

OPERATION = "merge the adapter"


class NeedsPeft(Exception):
    """The streaming merge does not support this case, so PEFT has to merge; the message is the reason, as a clause."""


@dataclass(frozen=True)
class Names:
    """The rule: the prefix `drop` is removed from a parameter's name and the prefix `add` put before it; or each tower has prefixes."""

    stored: Mapping[str, TensorInfo]
    drop: str = ""
    add: str = ""
    towers: tuple[tuple[str, str], ...] = ()
    """Prefix of a tower's parameters → of its stored tensors, instead of both."""

    @property
    def renames(self) -> bool:
        """Whether any name is stored under another one."""
        return bool(self.drop or self.add or self.towers)

    def tensor(self, parameter: str) -> str:
        """The name under which the base would store the parameter."""
        if self.towers:
            return _with_prefix(parameter, self.towers)
        return self.add + parameter.removeprefix(self.drop) if parameter.startswith(self.drop) else parameter

    def info(self, parameter: str) -> TensorInfo | None:
        """The stored tensor, or None."""
        return self.stored.get(self.tensor(parameter))

    def parameter(self, tensor: str) -> str:
        """The parameter of which the stored tensor holds the values."""
        if self.towers:
            return _with_prefix(tensor, tuple((stored, own) for own, stored in self.towers))
        return self.drop + tensor.removeprefix(self.add) if tensor.startswith(self.add) else tensor


_LLAVA = (
    ("lm_head.", "language_model.lm_head."), ("model.language_model.", "language_model.model."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
)  # fmt: skip
_TOWERS = (
    (("model.language_model.", "model."), ("model.visual.", "visual.")),
    (*_LLAVA, ("model.vision_tower.", "vision_tower.")),
    (*_LLAVA, ("model.vision_tower.", "vision_tower.vision_model.")),
)
"""How models that read pictures are stored on hubs, as releases of transformers before 4.52 named their parameters: Qwen2-VL and
Qwen2.5-VL; LLaVA, Gemma 3, PaliGemma, Mistral 3 and others (transformers' `conversion_mapping.py` renames the same ones as it loads
them)."""


def _with_prefix(name: str, prefixes: tuple[tuple[str, str], ...]) -> str:
    """The name with another prefix; the longest one that it has counts."""
    old, new = max((pair for pair in prefixes if name.startswith(pair[0])), key=lambda pair: len(pair[0]), default=("", ""))
    return new + name.removeprefix(old)


def choose_names(parameters: Collection[str], stored: Mapping[str, TensorInfo]) -> Names:
    """The rule by which all `parameters` are found among `stored`; the one that changes no name if there is none."""
    plain = Names(stored)
    if not parameters or all(name in stored for name in parameters):
        return plain
    layouts = [Names(stored, towers=towers) for towers in _TOWERS]
    if rule := next((rule for rule in layouts if all(rule.info(name) is not None for name in parameters)), None):
        return rule
    if any(name in stored for name in parameters):
        return plain
    first = next(iter(parameters)).partition(".")[0] + "."
    rules = [Names(stored, drop=first)]
    prefixes = Counter(name.partition(".")[0] + "." for name in stored)
    rules += [Names(stored, add=prefix) for prefix, _ in prefixes.most_common(3)]
    return next((rule for rule in rules if all(rule.info(name) is not None for name in parameters)), plain)


def nothing_matches(adapter: Adapter, missing: list[str], names: Collection[str]) -> Permanent:
    """The error for adapter modules that the base does not have, with the three nearest names that it has."""
    module = next((name for name in missing if name not in names), missing[0])
    nearest = difflib.get_close_matches(module, sorted(names), n=3, cutoff=0.0)
    count = f"{len(missing)} modules of the adapter match" if len(missing) > 1 else "one module of the adapter matches"
    return Permanent(
        FaultCode.ADAPTER_KEY_UNMATCHED,
        OPERATION,
        f"{count} nothing in the base, for example {module}; the most similar names there are {', '.join(nearest)}",
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
