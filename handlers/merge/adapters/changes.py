"""What an adapter asks of each parameter: its keys gathered by the parameter that they change.

Called by `handlers.merge.plan.matcher`. A wish is still free of the base: it says what to do, not where the base stores it. Half pairs,
ranks that contradict the configuration and adapters saved in shards are refused here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.merge.adapters.adapter import Adapter, rank_of, scale_of
from handlers.merge.adapters.keys import Factors, Keys
from handlers.merge.adapters.name_mapping import OPERATION


@dataclass
class Wish:
    """What is asked of one parameter: at most one of these is the main change; `base` comes before it."""

    parameter: str
    module: str
    factors: Factors | None = None
    saved: str | None = None
    base: str | None = None
    tokens: str | None = None
    bias: str | None = None
    scale: float = 1.0

    @property
    def changes(self) -> bool:
        """Whether more than the base's own value is in the adapter."""
        return bool(self.factors or self.saved or self.tokens or self.bias)


def sides(factors: Factors) -> tuple[str, str, bool]:
    """Keys of A and of B, and whether they are an embedding's."""
    embedding = "embedding_A" in factors.roles
    prefix = "embedding_" if embedding else ""
    return factors.roles[f"{prefix}A"], factors.roles[f"{prefix}B"], embedding


def _check_pair(adapter: Adapter, factors: Factors) -> None:
    roles = set(factors.roles)
    for a, b in (("A", "B"), ("embedding_A", "embedding_B")):
        if len({a, b} & roles) == 1:
            raise Permanent(
                FaultCode.HALF_A_PAIR,
                OPERATION,
                f"{factors.module} has lora_{({a, b} & roles).pop()} but not its counterpart",
                "take another checkpoint; this one was saved while parameters were sharded or was cut",
                path=adapter.file,
            )
    if not {"A", "embedding_A"} & roles:
        raise Permanent(
            FaultCode.HALF_A_PAIR,
            OPERATION,
            f"{factors.module} has {', '.join(sorted(roles))} but no lora_A and lora_B",
            "take another checkpoint",
            path=adapter.file,
        )


def check_ranks(adapter: Adapter, factors: Factors, experts: int = 1) -> None:
    """Permanent when the factors' shapes are not those of the module's rank."""
    module, (key_a, key_b, _) = factors.module, sides(factors)
    a, b = adapter.shapes[key_a], adapter.shapes[key_b]
    pruned = adapter.method == "ADALORA"
    if len(a) < 2 or len(b) < 2 or (not pruned and 0 in a + b):
        raise Permanent(
            FaultCode.ADAPTER_SHARDED,
            OPERATION,
            f"lora_A and lora_B of {module} have the shapes {list(a)} and {list(b)}",
            "save the adapter with its parameters gathered (DeepSpeed ZeRO-3 and FSDP keep shards)",
            path=adapter.file,
        )
    rank = a[0] if pruned else rank_of(adapter.config, module) * experts
    if a[0] != rank or b[1] != rank:
        raise Permanent(
            FaultCode.RANK_MISMATCH,
            OPERATION,
            f"{module} has rank {a[0]} (lora_A) and {b[1]} (lora_B) in the weights, but {rank} by adapter_config.json",
            "use weights and adapter_config.json of one and the same save",
            path=adapter.folder,
        )


def gather(adapter: Adapter, keys: Keys) -> dict[str, Wish]:
    """Parameter → wish, for every key but those of fused experts, which `handlers.merge.plan.fused_experts` takes out first."""
    found: dict[str, Wish] = {}

    def wish(module: str, leaf: str) -> Wish:
        parameter = f"{module}.{leaf}" if module else leaf
        return found.setdefault(parameter, Wish(parameter, module))

    for factors in keys.factors.values():
        _check_pair(adapter, factors)
        one = wish(factors.module, "weight")
        one.factors = factors
        if "B.bias" in factors.roles:
            bias = wish(factors.module, "bias")
            bias.bias, bias.scale = factors.roles["B.bias"], scale_of(adapter.config, factors.module)
    for module, key in keys.tokens.items():
        wish(module, "weight").tokens = key
    for kind, table in (("saved", keys.saved), ("base", keys.base)):
        for parameter, key in table.items():
            module, _, leaf = parameter.rpartition(".")
            setattr(wish(module, leaf), kind, key)
    return found


def named_in(config: dict[str, Any], setting: str, module: str) -> bool:
    """Whether a list in adapter_config.json names the module or one that holds it."""
    names: Iterable[str] = config.get(setting) or ()
    return any(f".{name}." in f".{module}." for name in names)


def digest(adapter: Adapter, key: str, *, turned: bool = False) -> str:
    """What tells the values of one tensor from another's; `turned` takes a matrix transposed."""
    whole = hashlib.sha256(repr(adapter.shapes[key][::-1] if turned else adapter.shapes[key]).encode())
    if turned:
        whole.update(adapter.tensor(key).T.contiguous().numpy().tobytes())
        return whole.hexdigest()
    total, step = 1, 1 << 20
    for size in adapter.shapes[key]:
        total *= size
    for first in range(0, total, step):
        whole.update(adapter.part(key, first, min(step, total - first)).float().numpy().tobytes())
    return whole.hexdigest()


def signature(adapter: Adapter, wish: Wish | None) -> tuple[str, ...]:
    """Equal for two ends of a shared weight exactly when the live adapter gives both the same values."""
    if wish is None or not wish.changes:
        return ()
    if wish.saved:
        return ("saved", digest(adapter, wish.saved))
    if wish.tokens:
        return ("tokens", digest(adapter, wish.tokens))
    if wish.bias:
        return ("bias", digest(adapter, wish.bias), repr(wish.scale))
    assert wish.factors is not None
    a, b, embedding = sides(wish.factors)
    first, second = (digest(adapter, b, turned=True), digest(adapter, a, turned=True)) if embedding else (
        digest(adapter, a), digest(adapter, b),
    )  # fmt: skip
    magnitude = wish.factors.roles.get("magnitude_vector")
    # The norm of an embedding is taken over another dimension than a head's: with a magnitude the ends differ.
    rest = (digest(adapter, magnitude), str(embedding)) if magnitude else ()
    return ("factors", first, second, repr(scale_of(adapter.config, wish.module)), *rest)
