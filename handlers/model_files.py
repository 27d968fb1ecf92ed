"""What lies in a model folder: weights as their headers describe them, configuration, tokenizer, chat template.

Called by the merge and pytorch stages and by whoever needs a model's size before anything is loaded. Only
headers and JSON are read, so it imports neither torch nor safetensors. A `.bin` file is recognized by name; what is
in it can't be told without unpickling, which is not done here.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.errors import Permanent

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
BIN_SINGLE = "pytorch_model.bin"
BIN_INDEX = "pytorch_model.bin.index.json"
MAX_HEADER = 100_000_000
"""Bytes; the limit that the safetensors format itself sets for a header."""

DTYPES: dict[str, tuple[str, int]] = {
    "F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2),
    "I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1), "U8": ("uint8", 1), "BOOL": ("bool", 1),
    "U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "C64": ("complex64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1),
}  # fmt: skip
"""Name in a header → (torch's name, bytes an element)."""

VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tekken.json", "source.spm", "*.model")
TOKENIZER = (
    *VOCABULARIES, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "target.spm", "target_vocab.json"
)  # fmt: skip
TEMPLATES = ("chat_template.jinja", "chat_template.json", "chat_templates", "additional_chat_templates")
PROCESSORS = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json", "image_processor_config.json")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a safetensors file; `start` and `end` are byte positions in the file."""

    file: str
    dtype: str
    """As the header names it: "BF16", "F32"…"""
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start


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
    """The JSON value in a file; Permanent when it is missing or is not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise Permanent("file-missing", operation, "the file does not exist", "check that the folder is complete", path=path) from None
    except ValueError as error:
        raise Permanent("not-json", operation, f"the file is not JSON ({error})", "restore the file from its source", path=path) from None


def weight_files(folder: Path) -> WeightFiles:
    """The weight files of `folder`, in transformers' order of preference; Permanent when there is none."""
    for kind, single, index in (("safetensors", SINGLE, INDEX), ("bin", BIN_SINGLE, BIN_INDEX)):
        if (folder / single).is_file():
            return WeightFiles(kind, (single,))
        if (folder / index).is_file():
            table = read_json(folder / index, "read the weights' index")
            mapping = table.get("weight_map") if isinstance(table, dict) else None
            if not isinstance(mapping, dict) or not mapping:
                raise Permanent(
                    "bad-index", "read the weights' index", "it has no weight_map", "restore the model's index file", path=folder / index
                )
            return WeightFiles(kind, tuple(sorted({str(name) for name in mapping.values()})), index)
    raise Permanent(
        "no-weights",
        "find the model's weights",
        f"there is no {SINGLE}, {INDEX}, {BIN_SINGLE} or {BIN_INDEX}",
        "point to a folder that holds a transformers model",
        path=folder,
    )


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Name → tensor of one safetensors file. Permanent when the header is unsound or the file is cut short."""
    operation = "read the safetensors header"

    def broken(cause: str) -> Permanent:
        return Permanent("truncated-weights", operation, cause, "copy or download the file again, or take another checkpoint", path=path)

    try:
        size = path.stat().st_size
        with open(path, "rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 0 < length <= MAX_HEADER:
                raise broken(f"the file has {size:,} bytes and no sound header length")
            text = stream.read(length)
    except FileNotFoundError:
        raise Permanent("file-missing", operation, "the file does not exist", "check that the folder is complete", path=path) from None
    if len(text) < length:
        raise broken(f"the header has {length:,} bytes, but the file only {size:,}")
    try:
        table = json.loads(text)
        found = {
            name: TensorInfo(path.name, str(entry["dtype"]), tuple(entry["shape"]), *(8 + length + at for at in entry["data_offsets"]))
            for name, entry in table.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise broken(f"the header is not sound ({type(error).__name__}: {error})") from None
    expected = max((info.end for info in found.values()), default=8 + length)
    if size != expected:
        raise broken(f"the file has {size:,} bytes, its header describes {expected:,}")
    for name, info in found.items():
        if info.dtype in DTYPES and info.size != info.elements * DTYPES[info.dtype][1]:
            raise broken(f"{name} has {info.size:,} bytes, its shape {list(info.shape)} as {info.dtype} another number")
    return found


def tensors(folder: Path) -> dict[str, TensorInfo]:
    """Name → tensor of a folder's safetensors weights, single or sharded, without reading any weight.

    Permanent when a file is missing or cut short, when index and headers differ, or when the weights are `.bin`.
    """
    files = weight_files(folder)
    if files.kind != "safetensors":
        raise Permanent(
            "not-safetensors", "read the weights' headers", "the weights are pickled .bin files", "convert them to safetensors", path=folder
        )
    found: dict[str, TensorInfo] = {}
    for name in files.names:
        found.update(read_header(folder / name))
    if files.index:
        mapping = read_json(folder / files.index, "read the weights' index")["weight_map"]
        wrong = sorted(name for name in mapping if name not in found or found[name].file != mapping[name])
        wrong += sorted(found.keys() - mapping.keys())
        if wrong:
            raise Permanent(
                "bad-index",
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
