"""Whether an artifact generates by the checkpoint's settings: generation_config.json, key by key, and settings of tokenizers. Pure.

A setting that is left out means what transformers takes for it, so that files which say the same in other words are equal.
"""

from __future__ import annotations

from typing import Any

from daemon.contract.values import Json
from handlers.validate.folders.wording import NOTHING, instead

_SILENT = ("transformers_version", "_from_model_config", "output_attentions", "output_hidden_states", "return_dict_in_generate")
"""Keys that decide nothing about what is generated."""
_ELSEWHERE = (
    "chat_template", "tokenizer_class", "transformers_version", "name_or_path", "_name_or_path", "_commit_hash", "is_local",
    "local_files_only",
)  # fmt: skip
"""Keys of tokenizer_config.json that decide nothing, and those that are compared by what they do."""
_USUAL = {"padding_side": "right", "truncation_side": "right"}
"""What transformers takes where a key is missing."""
GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")
"""Classes of tokenizers that do what tokenizer.json says; others of transformers 5 bring rules of their own."""


def difference(settings: Json, wanted: Json, defaults: Json) -> str | None:
    """Say which settings of generation are not `wanted`, as a clause; None where all are."""
    mine, theirs = (_meaning(side, defaults) for side in (settings, wanted))
    wrong = [key for key in dict.fromkeys((*theirs, *mine)) if mine.get(key) != theirs.get(key)]
    return instead([(key, settings.get(key, NOTHING), wanted.get(key, NOTHING)) for key in wrong]) or None


def tokenizer_difference(settings: Json, wanted: Json, also: Json) -> str | None:
    """Say which settings of tokenizer_config.json are neither those of `wanted` nor of `also`, its older form; None if all are."""
    keys = [key for key in dict.fromkeys((*wanted, *settings, *also)) if key not in _ELSEWHERE]
    wrong = [key for key in keys if all(_tokenizer_value(key, settings) != _tokenizer_value(key, form) for form in (wanted, also))]
    kinds = [_class(form) for form in (wanted, also)]
    if _class(settings) not in (*kinds, *GENERIC, None):
        wrong.append("tokenizer_class")
    return instead([(key, settings.get(key, NOTHING), wanted.get(key, NOTHING)) for key in wrong]) or None


def _tokenizer_value(key: str, settings: Json) -> Any:
    """Give what a key says: of a special token its text, of what is not set what it means then."""
    value = settings.get(key, _USUAL.get(key))
    if key.endswith("_token") and isinstance(value, dict):
        value = value.get("content")
    return value or None


def _class(settings: Json) -> str | None:
    """Give the class that reads a tokenizer; since transformers 5 the ones that are called fast are the others."""
    kind = settings.get("tokenizer_class")
    return kind.removesuffix("Fast") if isinstance(kind, str) else None


def _meaning(settings: Json, defaults: Json) -> dict[str, Any]:
    """Give the settings that mean something: not those of the defaults, a single token of a list as a number."""
    meanings = {}
    for key, value in settings.items():
        plain = value[0] if isinstance(value, list) and len(value) == 1 and not isinstance(value[0], list | dict) else value
        if key not in _SILENT and plain not in (None, [], {}) and (key not in defaults or defaults[key] != plain):
            meanings[key] = plain
    return meanings
