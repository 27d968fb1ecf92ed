"""What transformers 5 writes, made readable to transformers 4 as well: config.json and tokenizer_config.json with the names of both.

Called by the stages that publish a transformers folder or an ONNX folder, and inside toolchains that hold transformers 4. transformers 5
keeps the rotary embedding's facts in `rope_parameters`, of which transformers 4 knows nothing: it takes its own defaults without a word,
and the model computes something else. And it names tokenizer classes that transformers 4 does not have. Everything is added beside what is
there, so that transformers 5 reads what it read before. Imports the standard library and our own light modules alone.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.values import Json
from handlers.models.files import read_json
from handlers.models.releases.older_families import NOT_READ, READ, READ_EAGERLY

OLDEST = "4.57"
"""The release of transformers 4 that folders were read with, see tests/older/."""

_NESTED = {
    "gemma3": ("rope_theta", "rope_local_base_freq"),
    "gemma3_text": ("rope_theta", "rope_local_base_freq"),
    "gemma3n_text": ("rope_theta", "rope_local_base_freq"),
    "modernbert": ("global_rope_theta", "local_rope_theta"),
    "modernbert-decoder": ("global_rope_theta", "local_rope_theta"),
}
"""Model type → the names of the base frequency in its full and in its sliding attention."""
_UNSCALED = ("modernbert", "modernbert-decoder")
"""Model types with such names whose rotary embedding transformers 4 can't scale."""
_NEOX = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
_OWN_NAMES = {"gpt_neox": _NEOX, "gpt_neox_japanese": _NEOX}
"""Model type → names of its own."""
_RENAMED = {"qwen3_moe": {"num_local_experts": "num_experts"}}
"""Model type → what else has another name: its name in transformers 5, and in transformers 4."""
_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
_TOP = ("rope_theta", "partial_rotary_factor")
_TWO_KEYS = ("olmo", "olmo2", "olmo3", "fuyu", "chameleon")
"""Model types whose `rope_scaling` is exactly `type` and `factor` in transformers 4."""
_PHI3 = {"rope_type", "short_factor", "long_factor", "original_max_position_embeddings", *_TOP}

GENERIC = "PreTrainedTokenizerFast"
"""The class that reads tokenizer.json as it is, by the name that both releases know; transformers 5 writes `TokenizersBackend`."""
_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_PLAIN = ("TokenizersBackend", GENERIC, "AlbertTokenizer", "AlbertTokenizerFast")
"""Tokenizers that give `input_ids` and `attention_mask` in transformers 5 where nothing else is said, and `token_type_ids` too in 4."""
_MARKED = ("Llama", "CodeLlama", "Gemma", "Cohere")
"""Tokenizers that transformers 4 puts the first and the last token around anew, by `add_bos_token` and `add_eos_token`."""


_ODD = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What values of a wrong kind lead to."""


class UntranslatableError(Exception):
    """The configuration says something that transformers 4 has no names for."""


@dataclass(frozen=True)
class Readers:
    """Which releases of transformers read a folder."""

    minimum: str | None
    """The oldest that does; None where nobody tried one before transformers 5."""
    why: str | None = None
    """What transformers 4 lacks, or how it must be told to read it."""


def translated(config: Json) -> Json:
    """Return a config with everything that `rope_parameters` says under the older names too, in nested configs likewise.

    What is there under an older name already is overwritten, since transformers 5 goes by `rope_parameters`. Raises
    UntranslatableError.
    """
    answer = {key: translated(value) if key.endswith("_config") and isinstance(value, dict) else value for key, value in config.items()}
    if isinstance(config.get("dtype"), str):
        answer.setdefault("torch_dtype", config["dtype"])
    _check_scaled_outputs(config)
    answer |= {old: config[new] for new, old in _RENAMED.get(str(config.get("model_type")), {}).items() if new in config}
    rope = config.get("rope_parameters")
    return {**answer, **older_names(config)} if rope else answer


def _check_scaled_outputs(config: Json) -> None:
    """transformers 4 scales what a T5's decoder gives where its embeddings are tied, and only there. Raises UntranslatableError."""
    kind, tied = config.get("model_type"), config.get("tie_word_embeddings")
    if (kind == "mt5" and tied is True) or (kind == "t5" and tied is not False and config.get("scale_decoder_outputs") is False):
        raise UntranslatableError(
            f"transformers 4 scales the outputs of a {kind} with tied embeddings, and transformers 5 does not scale these"
        )


def older_names(config: Json) -> Json:
    """Return what `rope_parameters` of a config says, under the names of transformers 4. Raises UntranslatableError."""
    rope, kind = config["rope_parameters"], str(config.get("model_type"))
    if not any(isinstance(value, dict) for value in rope.values()):
        return _flat(rope, config)
    if not set(rope) <= {"full_attention", "sliding_attention"}:
        raise UntranslatableError(f"transformers 4 has no names for the rotary embeddings of {kind}: {', '.join(sorted(rope))}")
    full, sliding = rope.get("full_attention") or {}, rope.get("sliding_attention") or {}
    if kind in _NESTED:
        if sliding.get("rope_type", "default") != "default" or (kind in _UNSCALED and full.get("rope_type", "default") != "default"):
            raise UntranslatableError(f"the rotary embedding of {kind}'s sliding attention is scaled")
        if kind == "modernbert-decoder" and full.get("rope_theta") != sliding.get("rope_theta"):
            raise UntranslatableError(f"transformers 4 has one rotary embedding for all layers of {kind}, and they differ")
        names = _NESTED[kind]
        values = {name: settings["rope_theta"] for name, settings in zip(names, (full, sliding), strict=True) if "rope_theta" in settings}
        return {**values, **_scaling(full, config)}
    if full == sliding or not sliding or not full:
        return _flat(full or sliding, config)
    raise UntranslatableError(f"the layers of {kind} differ in their rotary embedding: {json.dumps(rope)}")


def _flat(rope: Json, config: Json) -> Json:
    kind = str(config.get("model_type"))
    values: dict[str, Any] = {key: rope[key] for key in _TOP if key in rope}
    own = {_OWN_NAMES[kind][key]: value for key, value in values.items() if key in _OWN_NAMES.get(kind, {})}
    return {**values, **own, **_scaling(rope, config)}


def _scaling(rope: Json, config: Json) -> Json:
    kind, model = rope.get("rope_type", rope.get("type", "default")), config.get("model_type")
    if kind not in _KINDS:
        raise UntranslatableError(f"transformers 4 does not know the rotary embedding {kind!r}")
    scaling = {"rope_type": kind, **{key: value for key, value in rope.items() if key not in _TOP}}
    if kind == "default" and set(scaling) <= {"rope_type", "type"}:
        return {}
    if model in _TWO_KEYS:
        if kind not in ("linear", "dynamic"):
            raise UntranslatableError(f"the rotary embedding of {model} can't be {kind!r} in transformers 4")
        return {"rope_scaling": {"type": kind, "factor": rope["factor"]}}
    if kind != "longrope":
        return {"rope_scaling": scaling}
    return _long(rope, scaling, config) if model != "phi3" else _phi3(rope, scaling, config)


def _long(rope: Json, scaling: Json, config: Json) -> Json:
    """transformers 4 has the length of the first training at the top level, and takes the factor from it."""
    original, most = scaling.get("original_max_position_embeddings"), config.get("max_position_embeddings")
    if original is None or not most:
        raise UntranslatableError("the rotary embedding 'longrope' does not say its original training length")
    if rope.get("factor") and rope["factor"] != most / original and rope.get("attention_factor") is None:
        raise UntranslatableError("the rotary embedding 'longrope' has a factor that is not the ratio of its lengths")
    return {"rope_scaling": scaling, "original_max_position_embeddings": original}


def _phi3(rope: Json, scaling: Json, config: Json) -> Json:
    """A Phi 3 of transformers 4 takes exactly three keys."""
    if unknown := sorted(set(rope) - _PHI3 - {"type"}):
        raise UntranslatableError(f"a Phi 3's rotary embedding has more than transformers 4 takes: {', '.join(unknown)}")
    original = config.get("original_max_position_embeddings", scaling.get("original_max_position_embeddings"))
    three = {"type": "longrope", "short_factor": rope["short_factor"], "long_factor": rope["long_factor"]}
    return {"rope_scaling": three, **({} if original is None else {"original_max_position_embeddings": original})}


def readable_tokenizer(config: Json, tokenizer: Json) -> Json:
    """tokenizer_config.json for both releases. `tokenizer`: tokenizer.json, {} where there is none.

    One that transformers 4 wrote stays as it is.
    """
    kind = str(config.get("tokenizer_class"))
    if "backend" not in config and kind != "TokenizersBackend":
        return config
    answer = dict(config)
    if kind == "TokenizersBackend":
        answer["tokenizer_class"] = GENERIC
    if kind in _PLAIN:  # `generate(**tokenizer(text))` of transformers 4 refuses inputs that a model doesn't take
        answer.setdefault("model_input_names", ["input_ids", "attention_mask"])
    named = {key: value for key, value in config.items() if key.endswith("_token") and key not in _NAMED and isinstance(value, str)}
    if isinstance(config.get("extra_special_tokens"), list):  # in transformers 4 this is the table of tokens with names of their own
        answer["additional_special_tokens"] = answer.pop("extra_special_tokens")
    if named:
        answer["extra_special_tokens"] = {**named, **(answer.get("extra_special_tokens") or {})}
    before = tokenizer.get("pre_tokenizer") or {}
    if before.get("add_prefix_space") is True and not config.get("add_prefix_space"):
        answer["add_prefix_space"] = True  # transformers 4 changes the tokenizer to what is said here, and takes silence for "no"
    if kind.removesuffix("Fast").removesuffix("Tokenizer") in _MARKED and tokenizer:
        first, last = _around(tokenizer, config)
        answer |= {"add_bos_token": first, "add_eos_token": last}
    return answer


def _around(tokenizer: Json, config: Json) -> tuple[bool, bool]:
    """Return whether tokenizer.json puts the first token before a text, and the last one behind it."""
    templates = json.dumps(
        [processor.get("single", []) for processor in _processors(tokenizer.get("post_processor") or {})], ensure_ascii=False
    )
    begin, end = (_content(config.get(name)) for name in ("bos_token", "eos_token"))
    return tuple(token is not None and json.dumps(token, ensure_ascii=False) in templates for token in (begin, end))  # type: ignore[return-value]


def _processors(processor: Json) -> list[Json]:
    return (
        [part for inner in processor["processors"] for part in _processors(inner)]
        if isinstance(processor.get("processors"), list)
        else [processor]
    )


def _content(token: Any) -> str | None:
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def measured(config: Json) -> Readers:
    """Return what was found out about a config's model type, see `older_families`; what is written in the config is not looked at."""
    kind = config.get("model_type")
    if kind in NOT_READ:
        return Readers("5", f"transformers {OLDEST} does not know {kind}, or computes something else than transformers 5")
    if kind in READ_EAGERLY:
        return Readers(OLDEST, 'before transformers 5 with attn_implementation="eager"')
    return Readers(OLDEST if kind in READ else None)


def make_readable(folder: Path) -> Readers:
    """Write config.json and tokenizer_config.json of a folder that is not published yet so that both releases read them.

    Gives which do. What can't be said to transformers 4 stays unsaid, with the reason.
    """
    config = read_json(folder / "config.json", "read the model's configuration")
    answer = measured(config)
    if answer.minimum != "5":
        try:
            _replace(folder / "config.json", config, translated(config))
        except UntranslatableError as error:
            answer = Readers("5", str(error))
        except _ODD:
            answer = Readers("5", "config.json has an unusual form of settings that transformers 4 knows by other names")
    path = folder / "tokenizer_config.json"
    if path.is_file():
        written = read_json(path, "read the tokenizer's configuration")
        text = folder / "tokenizer.json"
        if isinstance(written, dict):
            tokenizer = read_json(text, "read the tokenizer") if text.is_file() else {}
            with contextlib.suppress(*_ODD):  # it stays as it is: what transformers makes of it, the checks say
                _replace(path, written, readable_tokenizer(written, tokenizer))
    return answer


def _replace(path: Path, before: Json, after: Json) -> None:
    if after != before:
        path.write_text(json.dumps(after, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
