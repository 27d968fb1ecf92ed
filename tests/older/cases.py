"""Tiny models as transformers 5 saves them: families, forms of the rotary embedding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from handlers.models.releases.older_readers import UntranslatableError, make_readable, translated
from tests import models
from tests.older.reader import inputs

SIZES: dict[str, Any] = {
    "vocab_size": 96, "max_position_embeddings": 64, "n_positions": 64, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
    "decoder_start_token_id": 0, "forced_eos_token_id": None, "sliding_window": 16, "query_pre_attn_scalar": 8, "initializer_factor": 1.0,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("head_dim", "d_kv", "rotary_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16), "num_key_value_heads": 2, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, **dict.fromkeys(("initializer_range", "init_std"), 0.2), "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
MOST_PARAMETERS = 3_000_000
HALF = 4
"""Frequencies of a rotary embedding whose heads have a width of 8."""
THETA = 70_013.0
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 30.0, "beta_slow": 2.0},
    "yarn-attention": {"factor": 4.0, "original_max_position_embeddings": 16, "attention_factor": 1.3},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    "longrope": {
        "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0], "original_max_position_embeddings": 16,
    },
}  # fmt: skip
UNSAYABLE = {("olmo2", scaling) for scaling in ("yarn", "yarn-attention", "llama3", "longrope")}
"""What transformers 4 has no names for, by family."""
ROTARY = ("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "olmo2", "phi", "phi3", "stablelm", "gpt_neox", "gemma3_text")
"""Families of decoders that are tried with every form of the rotary embedding that they know."""
REFUSED = {("phi3", scaling) for scaling in SCALINGS if scaling not in ("default", "longrope")}
"""What the family itself refuses in transformers 5."""


def kinds() -> dict[tuple[str, str], str]:
    """(task, model type) → the class, of every text model that transformers has for a language model's tasks."""
    from transformers.models.auto import modeling_auto

    tasks = {
        "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "seq2seq": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    }
    table = {(task, kind): name for task, table in tasks.items() for kind, name in table.items() if isinstance(name, str)}
    del table["causal", "bigbird_pegasus"]  # an encoder-decoder's decoder alone, which the releases compute otherwise and nobody publishes
    return table


def config_of(kind: str, rope: dict[str, Any] | None = None, **options: Any) -> Any:
    """A small configuration of a model type; its rotary embeddings have another base frequency than the type's own."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    made = CONFIG_MAPPING[kind]
    known = {key: value for key, value in {**SIZES, **options}.items() if key in made.default_config_fields()}
    if rope is None and (rope := getattr(made(**known), "rope_parameters", None)):
        for one in [value for value in rope.values() if isinstance(value, dict)] or [rope]:
            one["rope_theta"] = one["rope_theta"] * 7 + 13.0
    return made(**known, **({"rope_parameters": rope} if rope else {}))


def rotary(kind: str, scaling: str) -> dict[str, Any]:
    """`rope_parameters` of a family with this form; Gemma 3 scales those of its full attention alone."""
    rope = {"rope_type": scaling.partition("-")[0], "rope_theta": THETA, **SCALINGS[scaling]}
    if kind in ("phi", "phi3", "stablelm", "gpt_neox"):
        rope["partial_rotary_factor"] = 1.0 if scaling == "longrope" else 0.5
    if kind == "gemma3_text":
        return {"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 7013.0}}
    return rope


def is_small_text_model(kind: str, name: str) -> bool:
    """Whether a model type of text alone can be made small by the names of its sizes."""
    import torch
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        if {"vision_config", "audio_config", "text_config"} & set(CONFIG_MAPPING[kind].default_config_fields()):
            return False
        with torch.device("meta"):
            return sum(one.numel() for one in getattr(transformers, name)(config_of(kind)).parameters()) < MOST_PARAMETERS
    except Exception:  # a type with demands of its own is no case
        return False


def further() -> dict[str, tuple[str, str, str, Any]]:
    """Folder → (task, model type, class, configuration): what a type's usual models say otherwise than its defaults."""
    equal = {kind: {"rope_type": "default", "rope_theta": THETA} for kind in ("full_attention", "sliding_attention")}
    table, cases = kinds(), {}
    for kind in ("t5", "mt5", "umt5"):
        cases[f"untied.{kind}"] = ("seq2seq", kind, table["seq2seq", kind], config_of(kind, tie_word_embeddings=False))
    for kind in ("llama", "qwen3", "gpt2"):
        for tied in (False, True):
            cases[f"tied-{tied}.{kind}"] = ("causal", kind, table["causal", kind], config_of(kind, tie_word_embeddings=tied))
    kind = "modernbert-decoder"
    cases[f"equal.{kind}"] = ("causal", kind, table["causal", kind], config_of(kind, equal))
    return cases


def make(folder: Path, task: str, name: str, config: Any) -> dict[str, Any] | None:
    """A model as it is published: saved, made readable, and beside it what transformers 5 computes (logits.npy) and the case.

    None where transformers 5 itself can't run it with these sizes. What transformers 5 reads must be the same afterwards.
    """
    import torch
    import transformers

    torch.manual_seed(3)
    try:
        model = getattr(transformers, name)(config).eval()
        for key, parameter in model.named_parameters():
            if parameter.ndim == 1:
                torch.nn.init.normal_(parameter, 1.0 if "norm" in key.lower() and "weight" in key else 0.0, 0.1)
        model.save_pretrained(folder)
        before, wanted = _answer(folder, task, name)
        before_text = models.read_json(folder / "config.json")
    except Exception:  # sizes by name do not fit every type
        return None
    if not np.isfinite(wanted).all():
        return None
    said, sayable = make_readable(folder), _is_sayable(before_text)
    after, found = _answer(folder, task, name)
    np.save(folder / "logits.npy", wanted)
    (folder / "case.json").write_text(json.dumps({"name": name, "task": task}))
    return {"readers": said, "sayable": sayable, "error": float(np.abs(found - wanted).max()), "lost": lost(before, after)}


def _is_sayable(config: dict[str, Any]) -> bool:
    """Whether the configuration can be said to transformers 4 at all."""
    try:
        translated(config)
    except UntranslatableError:
        return False
    return True


def _answer(folder: Path, task: str, name: str) -> tuple[dict[str, Any], np.ndarray]:
    import torch
    import transformers

    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model.config.to_dict(), model(**inputs(task)).logits.numpy()


def lost(before: Any, after: Any) -> list[str]:
    """Keys of a configuration that are gone or say something else; more keys are no loss."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [f"{key}{'.' if rest else ''}{rest}" for key in before for rest in _lost_in(before, after, key)]
    return [] if before == after else [""]


def _lost_in(before: dict[str, Any], after: dict[str, Any], key: str) -> list[str]:
    return lost(before[key], after[key]) if key in after else [""]
