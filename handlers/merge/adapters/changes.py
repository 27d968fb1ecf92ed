"""The changes that an adapter makes to the parameters of its model, one `Change` for each parameter.

Called by `handlers.merge.plan.matcher`. A change names a parameter of the adapter's model; which tensor of the base stores it is decided
later. Incomplete pairs of factors, ranks that contradict the configuration and adapters saved in shards are refused here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.values import Json
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.keys import Factors, Keys
from handlers.merge.adapters.name_mapping import OPERATION


@dataclass
class Change:
    """What the adapter does to one parameter. Factors, tokens, bias and saved values are keys of its weights."""

    parameter: str
    module: str
    factors: Factors | None = None
    """A low-rank delta to add."""
    saved: str | None = None
    """Values that replace the parameter."""
    base: str | None = None
    """The base's own values as they were in training; they replace the stored ones before anything else is done."""
    tokens: str | None = None
    """Rows of trained tokens, which replace those of the parameter."""
    bias: str | None = None
    """A bias to add."""
    scale: float = 1.0
    """Factor of the bias."""

    @property
    def trained(self) -> bool:
        """Whether the adapter holds more of the parameter than the base's own values."""
        return bool(self.factors or self.saved or self.tokens or self.bias)


def factor_keys(factors: Factors) -> tuple[str, str, bool]:
    """Return the keys of A and of B, and whether they belong to an embedding."""
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
                "take another checkpoint; this one was saved while parameters were sharded, or it is truncated",
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
    """Raise Permanent when the factors' shapes are not those of the module's rank."""
    module, (key_a, key_b, _) = factors.module, factor_keys(factors)
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
    rank = a[0] if pruned else adapter.rank(module) * experts
    if a[0] != rank or b[1] != rank:
        raise Permanent(
            FaultCode.RANK_MISMATCH,
            OPERATION,
            f"{module} has rank {a[0]} (lora_A) and {b[1]} (lora_B) in the weights, but {rank} in adapter_config.json",
            "use weights and adapter_config.json from the same save",
            path=adapter.folder,
        )


def gather(adapter: Adapter, keys: Keys) -> dict[str, Change]:
    """Parameter → change, for all keys but those of fused experts, which `handlers.merge.plan.fused_experts` takes out first."""
    changes: dict[str, Change] = {}

    def change_of(module: str, leaf: str) -> Change:
        parameter = f"{module}.{leaf}" if module else leaf
        return changes.setdefault(parameter, Change(parameter, module))

    for factors in keys.factors.values():
        _check_pair(adapter, factors)
        change_of(factors.module, "weight").factors = factors
        if "B.bias" in factors.roles:
            bias = change_of(factors.module, "bias")
            bias.bias, bias.scale = factors.roles["B.bias"], adapter.scale(factors.module)
    for module, key in keys.tokens.items():
        change_of(module, "weight").tokens = key
    for parameter, key in keys.saved.items():
        module, _, leaf = parameter.rpartition(".")
        change_of(module, leaf).saved = key
    for parameter, key in keys.base.items():
        module, _, leaf = parameter.rpartition(".")
        change_of(module, leaf).base = key
    return changes


def named_in(config: Json, setting: str, module: str) -> bool:
    """Return whether a list in adapter_config.json names the module or one that holds it."""
    names: Iterable[str] = config.get(setting) or ()
    return any(f".{name}." in f".{module}." for name in names)


def digest(adapter: Adapter, key: str, *, transposed: bool = False) -> str:
    """SHA-256 of the shape and values of one tensor, or of the transpose of a matrix."""
    whole = hashlib.sha256(repr(adapter.shapes[key][::-1] if transposed else adapter.shapes[key]).encode())
    if transposed:
        whole.update(adapter.tensor(key).T.contiguous().numpy().tobytes())
        return whole.hexdigest()
    total, step = 1, 1 << 20
    for size in adapter.shapes[key]:
        total *= size
    for first in range(0, total, step):
        whole.update(adapter.part(key, first, min(step, total - first)).float().numpy().tobytes())
    return whole.hexdigest()


def signature(adapter: Adapter, change: Change | None) -> tuple[str, ...]:
    """Return a key that is equal for two names of a shared weight exactly when the live adapter gives both the same values."""
    if change is None or not change.trained:
        return ()
    if change.saved:
        return ("saved", digest(adapter, change.saved))
    if change.tokens:
        return ("tokens", digest(adapter, change.tokens))
    if change.bias:
        return ("bias", digest(adapter, change.bias), repr(change.scale))
    assert change.factors is not None
    a, b, embedding = factor_keys(change.factors)
    first, second = (digest(adapter, b, transposed=True), digest(adapter, a, transposed=True)) if embedding else (
        digest(adapter, a), digest(adapter, b),
    )  # fmt: skip
    magnitude = change.factors.roles.get("magnitude_vector")
    # DoRA takes the norm of an embedding over another dimension than that of a head: with a magnitude the two differ.
    rest = (digest(adapter, magnitude), str(embedding)) if magnitude else ()
    return ("factors", first, second, repr(adapter.scale(change.module)), *rest)
