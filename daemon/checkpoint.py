"""Is this directory a checkpoint, is it complete, what is in it, and which one is it?

Completeness is structure, never time: what the trainer's format promises must be there, whole. Called by the
watcher on quiet directories and by `ckptd export`. Reads headers and small JSON files only; `identify` alone
reads whole files, from the pin.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.durable import sha256_file
from daemon.safetensors_header import find_hole, has_zero_tail, read_header

CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)")
TRAINER_STATE = "trainer_state.json"
ADAPTER_CONFIG = "adapter_config.json"
SENTINELS = ("checkpoint-is-incomplete.txt",)
"""Files whose presence says that the trainer is still writing (transformers 5 on SIGTERM)."""
_KEPT = re.compile(r".+\.(json|jinja|txt|model|safetensors)|(adapter_model|pytorch_model.*)\.bin")
_KEPT_FOLDERS = ("chat_templates",)
_WHOLE_JSON = 1 << 20

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""(name, inode, size, mtime in ns) of every file that an export reads. Without ctime: `link()` changes that."""


@dataclass(frozen=True)
class Inspection:
    """What a look into a directory found."""

    path: Path
    layout: str | None = None
    step: int = 0
    missing: tuple[str, ...] = ()
    """What keeps it from being complete, in words; empty when it is complete."""
    claims_done: bool = False
    """The trainer wrote its last file: what is still wrong now will not mend itself."""
    method: str = ""
    base_name: str | None = None
    base_revision: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether it may be taken."""
        return self.layout is not None and not self.missing


def step_of(path: Path) -> int | None:
    """N of `checkpoint-N`, None for every other name."""
    match = CHECKPOINT_NAME.fullmatch(path.name)
    return int(match[1]) if match else None


def export_files(path: Path) -> list[str]:
    """Names, relative to `path`, of the regular files that an export may read, sorted; links are not followed."""
    names = []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False) and _KEPT.fullmatch(entry.name) and entry.name not in SENTINELS:
                names.append(entry.name)
            elif entry.is_dir(follow_symlinks=False) and entry.name in _KEPT_FOLDERS:
                names += [f"{entry.name}/{inner.name}" for inner in os.scandir(entry.path) if inner.is_file(follow_symlinks=False)]
    return sorted(names)


def fingerprint(path: Path) -> Fingerprint:
    """The present state of a directory as far as an export is concerned. Raises OSError when it is gone."""
    rows = []
    for name in export_files(path):
        try:
            status = os.stat(path / name, follow_symlinks=False)
        except FileNotFoundError:
            continue  # renamed or rotated between listing and stat: the next look sees what is true then
        rows.append((name, status.st_ino, status.st_size, status.st_mtime_ns))
    for sentinel in SENTINELS:
        if (path / sentinel).exists():
            rows.append((sentinel, 0, 0, 0))
    return tuple(rows)


def inspect(path: Path) -> Inspection:
    """Look at one directory. Raises OSError when it is gone or can't be read."""
    names = set(export_files(path))
    if ADAPTER_CONFIG in names or any(name.startswith("adapter_model.") for name in names):
        found = _inspect_adapter(path, names)
    elif any(re.fullmatch(r"(model|pytorch_model).*\.(safetensors|bin)", name) for name in names):
        found = _inspect_full(path, names)
    else:
        return Inspection(path, step=step_of(path) or 0, missing=("no adapter and no model weights in it yet",))
    missing = [f"{name} says that it is still being written" for name in SENTINELS if (path / name).exists()]
    missing += found.missing
    state, step, claims = _trainer_state(path, names, missing)
    if state is not None:
        metadata = {**found.metadata, **_training_metadata(state)}
        return Inspection(
            path, f"trainer-{found.layout}", step, tuple(missing), claims, found.method, found.base_name, found.base_revision, metadata
        )
    return Inspection(path, found.layout, step, tuple(missing), claims, found.method, found.base_name, found.base_revision, found.metadata)


@dataclass(frozen=True)
class _Weights:
    layout: str
    missing: list[str]
    method: str
    base_name: str | None = None
    base_revision: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


def _read_object(path: Path, name: str, missing: list[str]) -> dict[str, Any] | None:
    value = _read_json(path, name, missing)
    if isinstance(value, dict):
        return value
    if not any(problem.startswith(name) for problem in missing):
        missing.append(f"{name} is not a JSON object")
    return None


def _read_json(path: Path, name: str, missing: list[str]) -> Any:
    try:
        return json.loads((path / name).read_bytes())
    except FileNotFoundError:
        missing.append(f"{name} is not there yet")
    except (ValueError, RecursionError) as error:
        missing.append(f"{name} is not valid JSON ({error})")
    return None


def _inspect_adapter(path: Path, names: set[str]) -> _Weights:
    missing: list[str] = []
    config = _read_object(path, ADAPTER_CONFIG, missing)
    weights = next((name for name in ("adapter_model.safetensors", "adapter_model.bin") if name in names), None)
    if weights is None:
        missing.append("adapter_model.safetensors is not there yet")
    else:
        missing += _weight_problems(path, weights)
    missing += _side_file_problems(path, names - {ADAPTER_CONFIG, TRAINER_STATE})
    if config is None:
        return _Weights("adapter", missing, "")
    known = {"rank": config.get("r"), "alpha": config.get("lora_alpha"), "target_modules": config.get("target_modules")}
    return _Weights(
        "adapter",
        missing,
        str(config.get("peft_type") or "unknown"),
        config.get("base_model_name_or_path"),
        config.get("revision"),
        {key: value for key, value in known.items() if value is not None},
    )


def _inspect_full(path: Path, names: set[str]) -> _Weights:
    missing: list[str] = []
    _read_object(path, "config.json", missing)
    index = next((name for name in ("model.safetensors.index.json", "pytorch_model.bin.index.json") if name in names), None)
    if index:
        mapped = _read_object(path, index, missing)
        wanted: dict[str, set[str]] = {}
        for tensor, name in ((mapped or {}).get("weight_map") or {}).items():
            wanted.setdefault(name, set()).add(tensor)
        for name, tensors in sorted(wanted.items()):
            if name not in names:
                missing.append(f"{name}, which {index} names, is not there yet")
            else:
                missing += _weight_problems(path, name, tensors)
    else:
        single = next((name for name in ("model.safetensors", "pytorch_model.bin") if name in names), None)
        if single is None:
            missing.append("model.safetensors or its index is not there yet")
        else:
            missing += _weight_problems(path, single)
    missing += _side_file_problems(path, names - {"config.json", TRAINER_STATE, index or ""})
    return _Weights("full", missing, "full")


def _weight_problems(path: Path, name: str, tensors: set[str] | None = None) -> list[str]:
    """Why a weight file is not whole; `tensors`: names that it must hold."""
    file = path / name
    try:
        if name.endswith(".bin"):
            with zipfile.ZipFile(file):  # torch.save writes a zip: its directory is at the end, so a cut file has none
                return []
        header = read_header(file)
        if (hole := find_hole(file)) is not None:
            return [f"{name} has a hole at byte {hole}: it was preallocated and not written yet"]
        if has_zero_tail(file, header):
            return [f"{name} ends in zeros in the middle of a tensor: it is not written to its end"]
    except (ValueError, zipfile.BadZipFile) as error:
        return [f"{name} {error}"]
    except FileNotFoundError:
        return [f"{name} is not there yet"]
    absent = sorted((tensors or set()) - set(header))
    return [f"{name} lacks {len(absent)} tensors that the index maps to it, the first {absent[0]!r}"] if absent else []


def _side_file_problems(path: Path, names: set[str]) -> list[str]:
    """Other JSON files must be whole too: small ones parse, large ones (tokenizers) at least end as JSON does."""
    problems: list[str] = []
    for name in sorted(names):
        if not name.endswith(".json"):
            continue
        if (path / name).stat().st_size <= _WHOLE_JSON:
            _read_json(path, name, problems)
            continue
        with open(path / name, "rb") as stream:
            stream.seek(-64, os.SEEK_END)
            if not stream.read().rstrip().endswith((b"}", b"]")):
                problems.append(f"{name} does not end as JSON does: it is not written to its end")
    return problems


def _trainer_state(path: Path, names: set[str], missing: list[str]) -> tuple[dict[str, Any] | None, int, bool]:
    """The parsed state, the step, and whether the trainer claims to be done. A `checkpoint-N` must have one."""
    named = step_of(path)
    if TRAINER_STATE not in names:
        if named is not None:
            missing.append(f"{TRAINER_STATE}, which the trainer writes last, is not there yet")
        return None, named or 0, False
    state = _read_object(path, TRAINER_STATE, missing)
    if state is None:
        return {}, named or 0, False
    step = state.get("global_step")
    if not isinstance(step, int):
        missing.append(f"{TRAINER_STATE} holds no global_step")
        return state, named or 0, False
    if named is not None and step != named:
        missing.append(f"{TRAINER_STATE} belongs to step {step}, the directory to step {named}")
        return state, named, False
    return state, step, True


def _training_metadata(state: dict[str, Any]) -> dict[str, Any]:
    """What training knew, for people to see."""
    logged = state.get("log_history")
    history = [row for row in logged if isinstance(row, dict)] if isinstance(logged, list) else []
    losses = [[row["step"], row["loss"]] for row in history if "loss" in row and "step" in row]
    metadata: dict[str, Any] = {name: state.get(name) for name in ("epoch", "max_steps", "best_metric", "best_model_checkpoint")}
    metadata["loss_history"] = losses[-500:]
    if losses:
        metadata["loss"] = losses[-1][1]
    evaluations = [row for row in history if any(key.startswith("eval_") for key in row)]
    if evaluations:
        metadata["evaluation"] = {key: value for key, value in evaluations[-1].items() if key.startswith("eval_")}
    return {key: value for key, value in metadata.items() if value is not None}


def identify(pin: Path, on_file: Callable[[str], None] | None = None) -> str:
    """Digest of the names and contents of the pinned files. What training merely logged is no part of it."""
    digest = hashlib.sha256()
    for name in export_files(pin):
        if name == TRAINER_STATE:
            continue
        if on_file:
            on_file(name)
        digest.update(f"{name}\0{sha256_file(pin / name)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
