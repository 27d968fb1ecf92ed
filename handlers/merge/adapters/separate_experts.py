"""Adapters over experts that were linear layers of their own, as transformers 4 built them: does PEFT still read what was trained?

Called by `handlers.merge.plan.prepare` before anything else is matched. transformers 5 stacks the experts of a layer in one parameter, and
PEFT (0.19 and later) converts such adapters when it loads them: A of both inputs one below the other, B in blocks, twice the rank and twice
alpha. It does so by the names in target_modules and for some model types alone, and the live model is what it makes of them. Where that is
not what was trained, the export would be verified against the wrong model, or fail without a reason; so it is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.keys import parse
from handlers.merge.adapters.name_mapping import OPERATION
from handlers.merge.weights.model_structure import structure
from handlers.models.folder import ModelFolder

OTHER_PATH = (".mlp.experts", ".block_sparse_moe.experts")
"""The path of the experts on disk is the one in memory, or that with the first of these replaced by the second."""
FUSED = {"gate_proj": "gate_up_proj", "up_proj": "gate_up_proj", "w1": "gate_up_proj", "w3": "gate_up_proj"}
FUSED |= {"down_proj": "down_proj", "w2": "down_proj"}
"""Layer of one expert → the parameter in which all experts' layers are now."""
_EXPERT = re.compile(r"(?P<holder>.+\.experts)\.\d+\.(?P<part>[^.]+)")


def holder_of(module: str) -> str | None:
    """The path in memory of the module that holds the stacked experts, for the path of a layer of one expert; None for other paths."""
    match = _EXPERT.fullmatch(module)
    return match["holder"].replace(*OTHER_PATH[::-1]) if match and match["part"] in FUSED else None


def check_separate_experts(adapter: Adapter, model: ModelFolder) -> None:
    """Raise Permanent when the adapter has factors for experts that were layers of their own, and PEFT would make another model of them."""
    if adapter.method != "LORA":
        return
    modules = sorted({module for module, _ in parse(adapter.shapes).factors})
    experts = {module: holder for module in modules if (holder := holder_of(module))}
    if not experts:
        return
    built = structure(model)
    fused = {module: holder for module, holder in experts.items() if built and f"{holder}.gate_up_proj" in built.shapes}
    why = next(_differences(adapter, model, fused, [module for module in modules if module not in fused]), None) if fused else None
    if why:
        raise Permanent(
            FaultCode.ADAPTER_NOT_MERGEABLE, OPERATION,
            "the adapter was trained with transformers 4, where each expert had layers of its own, and PEFT with transformers 5"
            f" {why}; so there is no live model with which a merge could be verified",
            "merge it with the releases that trained it (PEFT's merge_and_unload) and export the result as a full fine-tune",
            path=adapter.folder,
        )  # fmt: skip


def _differences(adapter: Adapter, model: ModelFolder, fused: dict[str, str], others: list[str]) -> Iterator[str]:
    """Return what PEFT reads otherwise, as clauses whose subject is PEFT."""
    kind = str(model.config.get("model_type"))
    if kind not in _converted():
        yield f"does not convert adapters of {kind}: it would leave out the experts' part"
    parts = {module.rpartition(".")[2] for module in fused}
    alone = sorted(part for part in parts if not _pair(part) <= parts)
    if alone:
        yield f"can't load one for {alone[0]} without {' and '.join(sorted(_pair(alone[0]) - set(alone)))}, with which it is fused now"
    left = [module for module in others if module.rpartition(".")[2] in parts]
    if left:
        yield f"would leave out {left[0]}, which is called as a layer of an expert"
    for module, holder in fused.items():
        part = module.rpartition(".")[2]
        rank, scale = _pefts(adapter, f"{holder}.{FUSED[part]}", len(_pair(part)))
        if rank != len(_pair(part)) * adapter.rank(module) or abs(scale / adapter.scale(module) - 1) > 1e-6:
            yield (
                f"would give {module} rank {rank / len(_pair(part)):g} and the factor {scale:.4g} instead of {adapter.rank(module)} and"
                f" {adapter.scale(module):.4g} (rank_pattern, alpha_pattern or use_rslora)"
            )


def _pair(part: str) -> set[str]:
    """Return the layers that are fused with this one, itself included."""
    same = {layer for layer, parameter in FUSED.items() if parameter == FUSED[part]}
    return same & ({"w1", "w2", "w3"} if part.startswith("w") else {"gate_proj", "up_proj", "down_proj"})


def _pefts(adapter: Adapter, parameter: str, layers: int) -> tuple[int, float]:
    """Return the rank and factor with which PEFT loads the fused factors: its own keys come after those of the adapter."""
    rank = int(adapter.chosen("rank_pattern", parameter) or layers * adapter.plain_rank)
    alpha = adapter.chosen("alpha_pattern", parameter)
    return rank, adapter.factor(layers * adapter.plain_alpha if alpha is None else alpha, rank)


def _converted() -> frozenset[str]:
    """Model types whose adapters PEFT converts."""
    from peft.utils import transformers_weight_conversion as conversion

    known = conversion._MOE_TARGET_MODULE_MAPPING
    patterns: dict[str, str] = vars(conversion)["_MODEL_TO_CONVERSION_PATTERN"]  # PEFT's copy, which has more than transformers' own
    return frozenset(kind for kind, pattern in patterns.items() if pattern in known)
