"""What trainers and libraries say in adapter_config.json and config.json, held against its types once, where it enters.

Called by the daemon's look at a checkpoint and by the stages that read an adapter or a model. Such files come from wherever they were
copied from: behind this border a rank is a whole number and a name is text. What does not fit is permanent, and said with the field, its
value and what to do. Only fields that something here computes with are typed; what PEFT and transformers alone read is theirs to refuse.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.records import Length, Record, Within, read_json
from daemon.contract.values import Json

Kind = TypeVar("Kind", bound="_Typed")

MOST = 1 << 31
"""Bound of whole numbers that are sizes: no rank, token or layer of a model comes near it."""
LARGEST = 10**30
"""Bound of factors such as lora_alpha: their quotient with any rank is a number of fp32."""
_SHOWN = 60
_REPEATED = re.compile(r"(?:num|n)_\w*(?:layers?|experts|blocks)|\w*_layers")
MOST_REPEATED = 10_000
"""Of layers or experts: a model's class makes an object for each."""
_DEPTH = 64

Text = Annotated[str, Length(4096, barred="\0")]
Count = Annotated[int, Within(1, MOST - 1)]
Index = Annotated[int, Within(0, MOST - 1)]
Factor = Annotated[int, Within(-LARGEST, LARGEST)] | Annotated[float, Within(-LARGEST, LARGEST)]
Names = str | tuple[str, ...] | None
Short = Annotated[tuple[str, ...], Length(1000)]
_NAMES = "text, a list of texts, or null"
_LIST = "a list of at most 1,000 texts, or null"
_SWITCH = "true or false"
_COUNT = "a whole number of at least 1"
_WORDS = "words"


def _typed(words: str, default: Any = None) -> Any:
    """A field with what its value must be, in words."""
    return field(default=default, metadata={_WORDS: words})


class _Typed(Record):
    """Fields that are typed, each with what it must be in words; others are taken as they are."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"strict": True, "extra": "ignore"}


class AdapterConfig(_Typed):
    """What every adapter_config.json says, whatever its method."""

    peft_type: Text = field(metadata={_WORDS: "PEFT's name of a method, as text"})
    base_model_name_or_path: Text | None = _typed("the base's name or folder as text, or null")
    revision: Text | None = _typed("text, or null")
    task_type: Text | None = _typed("text, or null")
    target_modules: Names = _typed(_NAMES)
    exclude_modules: Names = _typed(_NAMES)
    modules_to_save: Short | None = _typed(_LIST)
    layers_to_transform: Index | tuple[Index, ...] | None = _typed("a layer's number, a list of them, or null")
    layers_pattern: str | Short | None = _typed("text, a list of at most 1,000 texts, or null")


class LoraConfig(AdapterConfig):
    """That of a LoRA, which the merge computes with."""

    r: Count = _typed(_COUNT, 8)
    lora_alpha: Factor = _typed("a finite number", 8)
    rank_pattern: dict[str, Count] | None = _typed("an object of names with whole numbers of at least 1, or null")
    alpha_pattern: dict[str, Factor] | None = _typed("an object of names with finite numbers, or null")
    bias: Literal["none", "all", "lora_only"] | None = _typed('"none", "all" or "lora_only"', "none")
    init_lora_weights: bool | Text | None = _typed("true, false or the name of an initializer", default=True)
    fan_in_fan_out: bool | None = _typed(_SWITCH, default=False)
    use_rslora: bool | None = _typed(_SWITCH, default=False)
    use_dora: bool | None = _typed(_SWITCH, default=False)
    lora_bias: bool | None = _typed(_SWITCH, default=False)
    ensure_weight_tying: bool | None = _typed(_SWITCH, default=False)
    trainable_token_indices: tuple[Index, ...] | dict[str, tuple[Index, ...]] | None = _typed(
        "a list of tokens' numbers, or an object of names with such lists"
    )
    target_parameters: Short | None = _typed(_LIST)


class AdaLoraConfig(LoraConfig):
    """That of an AdaLoRA, whose rank_pattern says which of a module's ranks are left."""

    init_r: Count = _typed(_COUNT, 12)
    rank_pattern: dict[str, tuple[bool, ...]] | None = _typed("an object of names with lists of true and false, or null")  # type: ignore[assignment]


class ModelConfig(_Typed):
    """What the stages read of a config.json; the same on its top level and in text_config."""

    model_type: Text | None = _typed("text")
    architectures: tuple[Text, ...] | None = _typed("a list of names")
    vocab_size: Index | None = _typed("a whole number of at least 0")
    hidden_size: Index | tuple[Index, ...] | None = _typed("a whole number of at least 0")
    tie_word_embeddings: bool | None = _typed(_SWITCH)
    is_encoder_decoder: bool | None = _typed(_SWITCH)
    quantization_config: dict[str, Any] | None = _typed("an object, or null")
    text_config: dict[str, Any] | None = _typed("an object, or null")
    id2label: dict[str, Any] | None = _typed("an object of labels")
    torch_dtype: Text | dict[str, Any] | None = _typed("the name of a data type")
    dtype: Text | dict[str, Any] | None = _typed("the name of a data type")


_METHODS: dict[str, type[AdapterConfig]] = {"LORA": LoraConfig, "ADALORA": AdaLoraConfig}


def adapter_config(value: Any, path: Path, operation: str = "read the adapter's configuration") -> AdapterConfig:
    """The content of the adapter_config.json at `path`. Permanent, with the field and its value, where it does not fit."""
    named = value.get("peft_type") if isinstance(value, dict) else None
    kind = _METHODS.get(named.upper(), AdapterConfig) if isinstance(named, str) else AdapterConfig
    problem = _problem(kind, value, path.name)
    if problem is None:
        return _read(kind, value)
    raise Permanent(
        FaultCode.BAD_ADAPTER_CONFIG, operation, problem,
        f"set it in {path.name} to its value in training, or save the adapter again with PEFT", path=path,
    )  # fmt: skip


def model_config(value: Any, path: Path, operation: str = "read the model's configuration") -> Json:
    """The content of the config.json at `path`. Permanent, with the field and its value, where it is no model's."""
    nested = value.get("text_config") if isinstance(value, dict) else None
    problem = _problem(ModelConfig, value, path.name)
    if problem is None and nested is not None:
        problem = _problem(ModelConfig, nested, path.name, "text_config.")
    if problem is not None:
        raise Permanent(
            FaultCode.BAD_MODEL_CONFIG, operation, problem, f"correct it in {path.name}, or copy that file again from its source", path=path
        )
    config: Json = value
    return config


def rope_type(config: Json) -> str:
    """How a model scales its rotary angles, by its configuration; "default" where it doesn't, or scales each kind of layer its own way."""
    nested = config.get("text_config")
    for part in (config, nested if isinstance(nested, dict) else {}):
        if isinstance(parameters := part.get("rope_parameters") or part.get("rope_scaling"), dict):
            return str(parameters.get("rope_type", parameters.get("type")) or "default")
    return "default"


def _problem(kind: type[_Typed], value: Any, name: str, above: str = "") -> str | None:
    """What of `value` does not fit, as a clause; None where all of it does."""
    if not isinstance(value, dict):
        return f"{name} contains {shown(value)}, not a JSON object"
    if "peft_type" in kind.model_fields and not value.get("peft_type"):
        return "it names no peft_type"
    for key, entry in value.items():
        if why := _unwritable(key, entry):
            return f"{above}{shown(key)} is {why}"
    try:
        _read(kind, value)
    except ValueError as error:
        from pydantic import ValidationError  # takes longer to import than all of `ckptd explain` may, and is needed here alone

        assert isinstance(error, ValidationError)
        first = min(error.errors(include_url=False, include_context=False, include_input=False), key=lambda detail: str(detail["loc"][:1]))
        name = str(first["loc"][0])
        description = kind.model_fields[name].metadata[_WORDS]
        return f"{above}{_in_words(name, value.get(name), first['loc'])}, and it must be {description}"
    if kind is ModelConfig:
        many = [key for key, count in value.items() if _REPEATED.fullmatch(key) and type(count) is int and not 0 <= count <= MOST_REPEATED]
        if many:
            return f"{above}{many[0]} is {shown(value[many[0]])}, and it must be a whole number up to {MOST_REPEATED:,}"
    return None


def _read(kind: type[Kind], value: Json) -> Kind:
    """The fields that are typed. As JSON, in which a strict reader takes an object for a record and a list for a tuple."""
    return read_json(kind, json.dumps(value, ensure_ascii=False))


def _in_words(field: str, value: Any, place: tuple[int | str, ...]) -> str:
    """What a field says; of an object or a list, the entry at `place` that is wrong."""
    if isinstance(value, dict) and len(place) > 1:
        inner = next((key for key in place[1:] if isinstance(key, str) and key in value), None)
        if inner is not None:
            return f"{field} says {shown(value[inner])} for {shown(inner)}"
    return f"{field} is {shown(value)}"


def _unwritable(key: str, value: Any) -> str | None:
    """Why a value can't be written again, as a journal and a report do: nested without end, or text that is no Unicode."""
    if _depth(value) > _DEPTH:
        return f"nested deeper than {_DEPTH} levels"
    try:
        json.dumps({key: value}, ensure_ascii=False).encode()
    except ValueError:  # a lone half of a surrogate pair, or a number of thousands of digits
        return "neither text nor a number that JSON can hold"
    return None


def _depth(value: Any) -> int:
    """Levels of lists and objects in a JSON value, counted up to one more than may be."""
    level, inside = 0, [value]
    while inside and level <= _DEPTH:
        inside = [item for part in inside if isinstance(part, dict | list) for item in (part.values() if isinstance(part, dict) else part)]
        level += 1
    return level


def shown(value: Any) -> str:
    """A value of a file for a sentence: bounded, in ASCII, and without characters that act on a terminal."""
    if isinstance(value, str):
        text = ascii(value[:_SHOWN])
        return text + "…" if len(value) > _SHOWN else text
    if isinstance(value, dict | list):
        what = "an object" if isinstance(value, dict) else "a list"
        return f"{what} of {len(value)} entries" if len(value) != 1 else f"{what} of one entry"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinite"
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a number of {value.bit_length()} bits"
    return repr(value)
