"""The small files of a model folder: configuration, tokenizer, chat template.

Called by the stages that read or write model folders; `handlers.models.folder` reads the weights. It imports neither torch nor
safetensors.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.safetensors import open_regular
from daemon.contract.values import Json

MAX_JSON = 64 << 20
"""Bytes of an index or a configuration; the largest known index has a few million."""

VOCABULARIES = (
    "tokenizer.json", "vocab.json", "vocab.txt", "tekken.json", "source.spm", "*.model", "*.model.v*", "*.tiktoken", "vocab-src.json",
    "prophetnet.tokenizer", "byte_maps.json",
)  # fmt: skip
"""Files that make a tokenizer, one of them at least; the classes of transformers 5 read no others (a test compares the names)."""
TOKENIZER = (
    *VOCABULARIES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "bpe.codes", "dict.txt",
    "emoji.json", "entity_vocab.json", "normalizer.json", "target.spm", "target_vocab.json", "vocab-tgt.json", "word_pronunciation.json",
    "word_shape.json",
)  # fmt: skip
_WITHOUT_VOCABULARY = ("ByT5Tokenizer", "CanineTokenizer", "PerceiverTokenizer")
"""Tokenizers of bytes or characters, which are a tokenizer_config.json alone."""
FOREIGN_TOKENIZER = (
    "give the model the tokenizer that belongs to it; if the training added tokens, let it call"
    " model.resize_token_embeddings(len(tokenizer))"
)
"""What is to be done where a tokenizer gives tokens that the model does not have."""
TEMPLATES = ("chat_template.jinja", "chat_template.json", "chat_templates", "additional_chat_templates")
PROCESSORS = (
    "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "image_processor_config.json",
    "audio_tokenizer_config.json",
)  # fmt: skip


@dataclass(frozen=True)
class TokenizerCopy:
    """What `copy_tokenizer` did."""

    source: str | None
    """"checkpoint", "base", or None when neither has a tokenizer."""
    chat_template: bool
    """Whether the target has one, as a file or in tokenizer_config.json."""
    taken: dict[str, str]
    """Name of each file or folder that was copied → "checkpoint" or "base"."""


def read_json(path: Path, operation: str) -> Any:
    """Return the JSON value in a file; Permanent when it is missing, is not JSON, or is too large to be one of a model."""
    try:
        with open_regular(path, operation) as stream:
            text = stream.read(MAX_JSON + 1)
        if len(text) > MAX_JSON:
            raise ValueError(f"it has more than {MAX_JSON:,} bytes")
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Permanent(
            FaultCode.NOT_JSON, operation, f"the file is not JSON ({error})", "restore the file from its source", path=path
        ) from None


def setting(config: Json, key: str) -> Any:
    """Return a model-wide setting of config.json: from the top level, else from `text_config`; None when unset."""
    if key in config:
        return config[key]
    nested = config.get("text_config")
    return nested.get(key) if isinstance(nested, dict) else None


Edits: TypeAlias = dict[str, Any]
"""Key of config.json → its new value, None to remove the key."""


def edited(config: Json, edits: Edits) -> Json:
    """`config` with `edits` applied at the level where each key is.

    A key that is at neither level is added at the top level, and in `text_config` too if there is one.
    """
    result: dict[str, Any] = dict(config)
    nested = dict(result["text_config"]) if isinstance(result.get("text_config"), dict) else None
    for key, value in edits.items():
        holders = [level for level in (result, nested) if level is not None and key in level]
        for level in holders or [level for level in (result, nested) if level is not None and value is not None]:
            if value is None:
                del level[key]
            else:
                level[key] = value
    if nested is not None:
        result["text_config"] = nested
    return result


def _present(folder: Path | None, patterns: Iterable[str]) -> list[Path]:
    return [] if folder is None else sorted({path for pattern in patterns for path in folder.glob(pattern)})


def _template_inside(folder: Path | None) -> bool:
    """Return whether the tokenizer's own configuration carries a chat template, as transformers wrote it before 4.52."""
    if folder is None or not (folder / "tokenizer_config.json").is_file():
        return False
    config = read_json(folder / "tokenizer_config.json", "read the tokenizer's configuration")
    return isinstance(config, dict) and bool(config.get("chat_template"))


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds a tokenizer of its own: a vocabulary, or the configuration of one that needs none."""
    if _present(folder, VOCABULARIES):
        return True
    if not (folder / "tokenizer_config.json").is_file():
        return False
    config = read_json(folder / "tokenizer_config.json", "read the tokenizer's configuration")
    return isinstance(config, dict) and config.get("tokenizer_class") in _WITHOUT_VOCABULARY


def _copy(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, target / path.name, dirs_exist_ok=True, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(path, target / path.name)


def copy_tokenizer(checkpoint: Path, base: Path | None, target: Path) -> TokenizerCopy:
    """Copy tokenizer, chat template and processor files into `target`; the checkpoint's win over the base's.

    A checkpoint with a tokenizer of its own gives the whole tokenizer: files of two tokenizers don't mix. The base's chat template is
    taken only when the checkpoint brings none, neither as a file nor inside tokenizer_config.json. Processors' files win one by one.
    Nothing else is copied, so optimizer state, RNG state and other leftovers of training stay behind.
    """
    whole = has_tokenizer(checkpoint)
    chosen: dict[str, Path] = {}
    for folder in (None if whole else base, checkpoint):
        chosen.update({path.name: path for path in _present(folder, TOKENIZER)})
    own_template = bool(_present(checkpoint, TEMPLATES)) or _template_inside(checkpoint)
    chosen.update({path.name: path for path in _present(checkpoint if own_template else base, TEMPLATES)})
    for folder in (base, checkpoint):
        chosen.update({path.name: path for path in _present(folder, PROCESSORS)})
    for path in chosen.values():
        _copy(path, target)
    source = "checkpoint" if whole else "base" if base is not None and has_tokenizer(base) else None
    taken = {name: "checkpoint" if path.parent == checkpoint else "base" for name, path in sorted(chosen.items())}
    return TokenizerCopy(source, bool(_present(target, TEMPLATES)) or _template_inside(target), taken)
