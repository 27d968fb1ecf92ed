"""What lies in a model folder: weights as their headers describe them, configuration, tokenizer, chat template.

Called by the merge and pytorch stages and by whoever needs a model's size before anything is loaded. Only
headers and JSON are read, so it imports neither torch nor safetensors. A `.bin` file is recognized by name; what is
in it can't be told without unpickling, which is not done here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from daemon.contract.safetensors import DTYPES, TensorInfo, open_regular, read_header

__all__ = [
    "BIN_INDEX", "BIN_SINGLE", "CONV1D_MODELS", "DTYPES", "INDEX", "SINGLE", "TensorInfo", "TokenizerCopy", "WeightFiles", "copy_config",
    "copy_tokenizer", "edited", "file_key", "main_dtype", "parameters", "read_header", "read_json", "setting", "stored_bytes", "tensors",
    "weight_files",
]  # fmt: skip

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
BIN_SINGLE = "pytorch_model.bin"
BIN_INDEX = "pytorch_model.bin.index.json"
MAX_JSON = 64 << 20
"""Bytes of an index or a configuration; the largest known index has a few million."""

CONV1D_MODELS = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
"""Model types whose linear layers are Conv1D: their weights lie as (in, out)."""

_PLAIN = re.compile(r"[\w-][\w. +=@-]*\.(safetensors|bin)")
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tekken.json", "source.spm", "*.model")
TOKENIZER = (
    *VOCABULARIES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "target.spm", "target_vocab.json"
)  # fmt: skip
TEMPLATES = ("chat_template.jinja", "chat_template.json", "chat_templates", "additional_chat_templates")
PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "image_processor_config.json")


@dataclass(frozen=True)
class WeightFiles:
    """The files that hold a model's weights, as transformers would choose them."""

    kind: str
    """"safetensors" or "bin"."""
    names: tuple[str, ...]
    index: str | None = None


@dataclass(frozen=True)
class TokenizerCopy:
    """What `copy_tokenizer` did."""

    source: str | None
    """"checkpoint", "base", or None when neither has a vocabulary."""
    chat_template: bool
    files: tuple[str, ...]


def read_json(path: Path, operation: str) -> Any:
    """The JSON value in a file; Permanent when it is missing, is not JSON, or is too large to be one of a model."""
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


def _bad_index(path: Path, cause: str) -> Permanent:
    return Permanent(FaultCode.BAD_INDEX, "read the weights' index", cause, "restore the model's index file", path=path)


def weight_files(folder: Path) -> WeightFiles:
    """The weight files of `folder`, in transformers' order of preference; Permanent when there is none."""
    for kind, single, index in (("safetensors", SINGLE, INDEX), ("bin", BIN_SINGLE, BIN_INDEX)):
        if (folder / single).is_file():
            return WeightFiles(kind, (single,))
        if (folder / index).is_file():
            table = read_json(folder / index, "read the weights' index")
            mapping = table.get("weight_map") if isinstance(table, dict) else None
            if not isinstance(mapping, dict) or not mapping:
                raise _bad_index(folder / index, "it has no weight_map")
            names = {name if isinstance(name, str) else repr(name) for name in mapping.values()}
            # The same names are written below the output: a path would lead out of it.
            if wrong := sorted(name for name in names if not _PLAIN.fullmatch(name)):
                raise _bad_index(folder / index, f"it names the file {wrong[0][:80]!r}, which is no plain name of a weight file")
            return WeightFiles(kind, tuple(sorted(names)), index)
    raise Permanent(
        FaultCode.NO_WEIGHTS,
        "find the model's weights",
        f"there is no {SINGLE}, {INDEX}, {BIN_SINGLE} or {BIN_INDEX}",
        "point to a folder that holds a transformers model",
        path=folder,
    )


def tensors(folder: Path) -> dict[str, TensorInfo]:
    """Name → tensor of a folder's safetensors weights, single or sharded, without reading any weight.

    Permanent when a file is missing or cut short, when index and headers differ, or when the weights are `.bin`.
    """
    files = weight_files(folder)
    if files.kind != "safetensors":
        raise Permanent(
            FaultCode.NOT_SAFETENSORS,
            "read the weights' headers",
            "the weights are pickled .bin files",
            "convert them to safetensors",
            path=folder,
        )
    found: dict[str, TensorInfo] = {}
    for name in files.names:
        header = read_header(folder / name)
        if twice := sorted(found.keys() & header.keys()):
            raise _bad_index(folder / str(files.index), f"{found[twice[0]].file} and {name} both hold {twice[0]}")
        found.update(header)
    if files.index:
        mapping = read_json(folder / files.index, "read the weights' index")["weight_map"]
        wrong = sorted(name for name in mapping if name not in found or found[name].file != mapping[name])
        wrong += sorted(found.keys() - mapping.keys())
        if wrong:
            raise Permanent(
                FaultCode.BAD_INDEX,
                "check the weights against their index",
                f"{len(wrong)} of {len(found)} tensors are not where the index says, for example {wrong[0]}",
                "copy or download the model again",
                path=folder / files.index,
            )
    return found


def parameters(infos: Iterable[TensorInfo]) -> int:
    """Number of elements of all tensors."""
    return sum(info.elements for info in infos)


def stored_bytes(infos: Iterable[TensorInfo]) -> int:
    """Bytes of all tensors, headers left out."""
    return sum(info.size for info in infos)


def main_dtype(infos: Iterable[TensorInfo]) -> str:
    """Torch's name of the dtype that holds most of the bytes, "bfloat16" for example; "none" without tensors."""
    sizes: Counter[str] = Counter()
    for info in infos:
        sizes[info.dtype] += info.size
    if not sizes:
        return "none"
    name = sizes.most_common(1)[0][0]
    return DTYPES.get(name, (name.lower(), 0))[0]


def setting(config: Mapping[str, Any], key: str) -> Any:
    """A model-wide setting of config.json: from the top level, else from `text_config`; None when unset."""
    if key in config:
        return config[key]
    nested = config.get("text_config")
    return nested.get(key) if isinstance(nested, dict) else None


def edited(config: Mapping[str, Any], edits: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with `edits` at the level where each key stands; a value of None removes the key.

    A key that stands nowhere is added at the top level, and in `text_config` too where there is one.
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


def copy_config(source: Path, target: Path, edits: Mapping[str, Any] | None = None) -> None:
    """Put config.json and generation_config.json of `source` into `target`: byte by byte, or edited as JSON.

    They never go through transformers' own classes: those drop or rename what another release relies on.
    """
    config = read_json(source / "config.json", "read the model's configuration")
    if edits:
        (target / "config.json").write_text(json.dumps(edited(config, edits), indent=2, ensure_ascii=False) + "\n")
    else:
        shutil.copyfile(source / "config.json", target / "config.json")
    if (source / "generation_config.json").is_file():
        shutil.copyfile(source / "generation_config.json", target / "generation_config.json")


def _present(folder: Path | None, patterns: Iterable[str]) -> list[Path]:
    return [] if folder is None else sorted({path for pattern in patterns for path in folder.glob(pattern)})


def _template_inside(folder: Path | None) -> bool:
    """Whether the tokenizer's own configuration carries a chat template, as transformers wrote it before 4.52."""
    if folder is None or not (folder / "tokenizer_config.json").is_file():
        return False
    config = read_json(folder / "tokenizer_config.json", "read the tokenizer's configuration")
    return isinstance(config, dict) and bool(config.get("chat_template"))


def _copy(path: Path, target: Path) -> None:
    if path.is_dir():
        shutil.copytree(path, target / path.name, dirs_exist_ok=True, copy_function=shutil.copyfile)
    else:
        shutil.copyfile(path, target / path.name)


def copy_tokenizer(checkpoint: Path, base: Path | None, target: Path) -> TokenizerCopy:
    """Copy tokenizer, chat template and processor files into `target`; the checkpoint's win over the base's.

    A checkpoint with a vocabulary gives the whole tokenizer: files of two tokenizers don't mix. The base's chat template is
    taken only when the checkpoint brings none, neither as a file nor inside tokenizer_config.json. Nothing else is copied,
    so optimizer state, RNG state and other leftovers of training stay behind.
    """
    whole = bool(_present(checkpoint, VOCABULARIES))
    chosen: dict[str, Path] = {}
    for folder in (None if whole else base, checkpoint):
        chosen.update({path.name: path for path in _present(folder, TOKENIZER)})
    own_template = bool(_present(checkpoint, TEMPLATES)) or _template_inside(checkpoint)
    chosen.update({path.name: path for path in _present(checkpoint if own_template else base, TEMPLATES)})
    for folder in (base, checkpoint):
        chosen.update({path.name: path for path in _present(folder, PROCESSORS)})
    for path in chosen.values():
        _copy(path, target)
    source = "checkpoint" if whole else "base" if _present(base, VOCABULARIES) else None
    return TokenizerCopy(source, bool(_present(target, TEMPLATES)) or _template_inside(target), tuple(sorted(chosen)))


def file_key(path: Path) -> str:
    """What tells one state of a file from another without reading it: device, inode, size, mtime in nanoseconds."""
    found = os.stat(path)
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"
