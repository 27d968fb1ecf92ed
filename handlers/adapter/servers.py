"""Which servers can load an adapter over their base, and why others can't. Pure.

Called by the stage, for the export's README and the report. What is said here was read in the servers' own source: vLLM's
`vllm/lora/peft_helper.py`, `lora_model.py` and `config/lora.py` (0.27), TGI's and LoRAX's `adapters/lora.py` and `utils/adapter.py`.
Servers change; only what makes an adapter's answers wrong or its load fail is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from daemon.contract.values import Json
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.plan.matcher import PLAIN_INITIALIZERS
from handlers.models.tasks import Kind

VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What --max-lora-rank may be."""
VLLM_DEFAULT = 16
HEADS = frozenset({"classifier", "score"})
_FACTOR = re.compile(r"\.lora_(A|B)\.weight$|\.lora_embedding_(A|B)$")
_SKIPPED = re.compile(r"(embed_tokens|lm_head)\.base_layer\.weight$")
"""The base's own embeddings, which PEFT may save beside the factors and vLLM passes over."""
_TGI_MODULES = frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"})


def unsuited(adapter: Adapter, kind: Kind | None) -> dict[str, list[str]]:
    """Server → why it can't use the adapter, as clauses; servers that can are left out. `kind`: of the merged model."""
    by_server = {"vLLM": list(_vllm(adapter)), "TGI and LoRAX": list(_tgi(adapter, kind))}
    return {name: reasons for name, reasons in by_server.items() if reasons}


def max_lora_rank(adapter: Adapter) -> int | None:
    """What vLLM's --max-lora-rank must be; None where its default is enough, or where none is."""
    rank = max(_ranks(adapter), default=0)
    return None if rank <= VLLM_DEFAULT else next((choice for choice in VLLM_RANKS if choice >= rank), None)


def _vllm(adapter: Adapter) -> Iterator[str]:
    yield from _for_all(adapter)
    if adapter.method != "LORA":
        return
    config = adapter.config
    if config.get("use_dora"):
        yield "it refuses DoRA"
    if saved := config.get("modules_to_save"):
        heads = " (some releases take a classifier's head)" if HEADS.issuperset(saved) else ""
        yield f"it refuses modules_to_save{heads}"
    if _bias(config):
        yield "it refuses adapters that bring biases"
    others = [key for key in adapter.shapes if not (_FACTOR.search(key) or _SKIPPED.search(key))]
    if others and not (config.get("use_dora") or saved or _bias(config)):
        yield f"it refuses tensors that are not LoRA factors, here {_short(others)}"
    if (rank := max(_ranks(adapter), default=0)) > VLLM_RANKS[-1]:
        yield f"it supports ranks up to {VLLM_RANKS[-1]}, and this adapter has rank {rank}"


def _tgi(adapter: Adapter, kind: Kind | None) -> Iterator[str]:
    yield from _for_all(adapter)
    if kind is not None and kind != "causal":
        yield "they load adapters only over decoder-only language models"
    if adapter.method != "LORA":
        return
    others = sorted(key for key in adapter.shapes if not key.endswith((".lora_A.weight", ".lora_B.weight")))
    if others:
        yield f"they ignore everything except LoRA's two factors, here {_short(others)}, so their outputs are different"
    modules = _modules(adapter)
    if unknown := sorted({module.rpartition(".")[2] for module in modules} - _TGI_MODULES):
        yield f"they ignore adapters on {', '.join(unknown)}, so their outputs are different"
    if adapter.config.get("layers_to_transform") is not None:
        yield "they support a kind of module only in all layers or in none, and this adapter changes it only in some layers"


def _for_all(adapter: Adapter) -> Iterator[str]:
    """What no server of the three can do."""
    if adapter.method != "LORA":
        yield f"LoRA is the only supported method, and this is {adapter.method}"
        return
    config = adapter.config
    if config.get("init_lora_weights") not in PLAIN_INITIALIZERS:
        yield (
            f"its initializer {config['init_lora_weights']} changed the base; PEFT repeats this change, but a server does not"
            " (to save it as a plain LoRA, use path_initial_model_for_weight_conversion)"
        )
    modules = _modules(adapter)
    scales = {round(adapter.scale(module), 9) for module in modules}
    if scales - {round(adapter.plain_scale, 9)}:
        yield (
            "rank_pattern and alpha_pattern are ignored: every module gets the same scale, from r and lora_alpha, which is wrong"
            " for this adapter"
        )


def _bias(config: Json) -> bool:
    return config.get("bias", "none") != "none" or bool(config.get("lora_bias"))


def _modules(adapter: Adapter) -> set[str]:
    """Modules that the adapter has factors for."""
    return {key.removeprefix("base_model.model.").partition(".lora_")[0] for key in adapter.shapes if ".lora_" in key}


def _ranks(adapter: Adapter) -> set[int]:
    return {adapter.rank(module) for module in _modules(adapter)} if adapter.method == "LORA" else set()


def _short(keys: list[str]) -> str:
    name = keys[0].removeprefix("base_model.model.")
    return name if len(keys) == 1 else f"{name} and {len(keys) - 1} more"
