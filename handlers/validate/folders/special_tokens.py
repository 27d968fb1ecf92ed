"""Whether an artifact's files name the same special tokens as the live model's: the ids that begin, end and pad a text, and their texts.

Called by the stage `reference`, which reads what they must be, and by `examination`. A wrong one changes no logits: it shows in use,
as texts that never end, or end at once. Files in transformers' form are compared, and the ends of texts that a
runtime reads from a file of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from daemon.contract.values import Json
from handlers.models.files import has_tokenizer, setting
from handlers.texts.reading import values
from handlers.validate.folders.wording import NOTHING, instead

CONFIG = "config.json"
_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "forced_bos_token_id")
_NAMES = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
_TOKENIZER, _OLDER = "tokenizer_config.json", "special_tokens_map.json"


def expected(pin: Path, base: Path | None) -> Json:
    """Give what artifacts of a checkpoint must name: `ids` by the key of generation_config.json, `names` by that of tokenizer_config.json,
    and `config`, the ids that config.json has whatever generation_config.json says: some readers go by it alone.

    As the live model, they are the checkpoint's own where it has them, else the base's.
    """
    folders = [pin, *([base] if base else [])]
    generation = next((folder for folder in folders if (folder / "generation_config.json").is_file()), pin)
    tokenizers = [pin] if base is None or has_tokenizer(pin) else [base, pin]  # file by file, as the formats copy them
    files: dict[str, Json] = {}
    for folder in tokenizers:
        files |= {name: values(folder / name) for name in (_TOKENIZER, _OLDER) if (folder / name).is_file()}
    return {
        "ids": _ids(values(generation / "generation_config.json"), values(folders[-1] / CONFIG)),
        "names": _names(files.get(_TOKENIZER, {}), files.get(_OLDER, {})),
        "config": _ids({}, values(folders[-1] / CONFIG)),
    }


def difference(folder: Path, wanted: Json | None, ends: Collection[int] | None = None) -> str | None:
    """Say which special tokens of an artifact are not those of `wanted`, as a clause; None where all are. `ends`: those at which its
    runtime ends a text, where its file says so."""
    if wanted is None:
        return None
    wrong = []
    if (folder / CONFIG).is_file():
        numbers, own = (_ids(said, values(folder / CONFIG)) for said in (values(folder / "generation_config.json"), {}))
        wrong += [(key, numbers.get(key), value) for key, value in wanted["ids"].items() if numbers.get(key) != value]
        named = {key for key, *_ in wrong}
        wrong += [
            (f"config.json's {key}", own[key], value)
            for key, value in wanted.get("config", {}).items() if key in own and key not in named and own[key] != value
        ]  # fmt: skip
    config = values(folder / _TOKENIZER)
    names = _names(config, values(folder / _OLDER))
    whole = "tokenizer_class" in config  # what another program writes under this name may leave tokens out
    wrong += [(key, names.get(key), value) for key, value in wanted["names"].items() if names.get(key, None if whole else value) != value]
    if ends is not None:
        ids = wanted["ids"].get("eos_token_id", [])
        lost = [token for token in (ids if isinstance(ids, list) else [ids]) if token not in ends]
        wrong += [("the end of a text", list(ends)[:8], lost)] if lost else []
    if not wrong:
        return None
    clauses = instead([(key, NOTHING if own is None else own, value) for key, own, value in wrong], len(wrong))
    return f"its special tokens are not the live model's: {clauses}"


def _ids(generation: Json, config: Json) -> dict[str, Any]:
    """Give the ids that are set, a single one in a list as a number; generation_config.json goes before config.json."""
    ids = {key: generation[key] if generation.get(key) is not None else setting(config, key) for key in _IDS}
    return {
        key: value[0] if isinstance(value, list) and len(value) == 1 else value for key, value in ids.items() if value not in (None, [])
    }


def _names(config: Json, older: Json) -> dict[str, str]:
    """Give the texts of the special tokens that a tokenizer's files name."""
    tokens = {key: config[key] if config.get(key) is not None else older.get(key) for key in _NAMES}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in tokens.items()}
    return {key: value for key, value in texts.items() if isinstance(value, str)}
