"""Is this directory a checkpoint, is it complete, what is in it, and which one is it?

Completeness is structure: all files that the layout (`daemon.checkpoints.layouts`) requires must be there and complete. Called by the
watcher on quiet directories, by `ckptd export` and by `ckptd explain`. Reads headers and small JSON files only; `identify` alone reads
whole files, from the pin.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shlex
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from daemon.checkpoints import training_log
from daemon.checkpoints.completeness import MODULE_FOLDER, MODULES, absent, hollow_adapters, no_file, read_object
from daemon.checkpoints.layouts import (
    ADAPTER_CONFIG,
    NO_ADAPTER_YET,
    OPTIMIZER,
    SENTINELS,
    TRAINER_STATE,
    Layout,
    Look,
    look_at,
    recognize,
    refusal_by_config,
)
from daemon.checkpoints.names import ADAPTERS, REFERENCE, counts_epochs, is_checkpoint_name, newest_step_beside, run_of, step_of
from daemon.checkpoints.trainer_state import step_in, training_metadata
from daemon.contract.errors import CkptdError, Fault
from daemon.contract.files import sha256_file
from daemon.contract.sharded import dcp
from daemon.contract.sharded.dcp import METADATA
from daemon.contract.sharded.deepspeed import LATEST
from daemon.contract.sharded.forms import FSDP, may_be_shard, shards_in
from daemon.contract.sharded.lightning import SUFFIX as MODULE
from daemon.contract.values import Json

_KEPT = re.compile(
    r".+\.(json|jinja|txt|model(\.v\w+)?|spm|tiktoken|vocab|codes|tokenizer|safetensors)|(adapter_model|pytorch_model.*)\.bin"
)
_CODE = re.compile(r"(configuration|modeling|modular|tokenization|(image_|video_)?processing|feature_extraction)_.+\.py")
"""A model's own code as transformers saves it. Beside it all Python files count: it imports them under any name."""
_KEPT_FOLDERS = ("chat_templates", "additional_chat_templates")
_UNREAD = re.compile(r"(?:all|train|eval|test|predict)_results\.json|tokens_state\.json|pytorch_model_fsdp.*")
"""What Trainer's `save_metrics` leaves in a run's directory, axolotl's count of tokens, and FSDP's second copy of the weights: no export
reads them."""
_MERGED = re.compile(r"(?:(?:ft-)?model|pytorch_model|consolidated).*\.(?:safetensors|bin)|model\.safetensors\.index\.json")
"""Weights of a whole model. Beside an adapter (torchtune writes both) they are no part of the checkpoint, but its merge is compared with
them: they count for the fingerprint, so that it is not taken while they are written, and not for the identity."""

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""(name, inode, size, mtime in ns) of every file that an export reads, or compares itself with. Without ctime: `link()` changes that."""


@dataclass(frozen=True)
class Inspection:
    """What a look into a directory found."""

    path: Path
    layout: str | None = None
    step: int = 0
    missing: tuple[str, ...] = ()
    """Why it is not complete, as sentences; empty when it is complete."""
    claims_done: bool = False
    """The trainer wrote its last file: what is missing now will not appear any more."""
    method: str = ""
    base_name: str | None = None
    base_revision: str | None = None
    metadata: Json = field(default_factory=dict)
    patience_seconds: float = 0.0
    """Seconds without a change, beyond the settle time, before the watcher may take it: used where no last file shows that it is done."""
    refusal: Fault | None = None
    """Why a complete one is not exported as it is, and what to do."""
    borrowed: tuple[Path, ...] = ()
    """Files of the run's directory that its export needs and that it lacks itself."""
    ending: bool = False
    """No name in it or of it has a step: it is what was written when training ended."""

    @property
    def complete(self) -> bool:
        """Whether all that the layout requires is there and complete."""
        return self.layout is not None and not self.missing


def export_files(path: Path) -> list[str]:
    """Names, relative to `path`, of the regular files that an export may read, sorted; links are not followed."""
    return _files(path)[0]


def weights_beside(path: Path) -> list[str]:
    """Names of the files that hold a whole model's weights beside an adapter, sorted: its merge is compared with them."""
    return [name for name in _files(path)[1] if not name.endswith(".json")]


def _files(path: Path) -> tuple[list[str], list[str]]:
    """The names that an export may read, and those of a whole model's weights beside an adapter."""
    names, code, modules, shards = [], [], [], []
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                code += [entry.name] if entry.is_file(follow_symlinks=False) else []
            elif entry.is_file(follow_symlinks=False) and _is_kept(entry.name):
                names.append(entry.name)
            elif entry.name in _KEPT_FOLDERS and entry.is_dir(follow_symlinks=False):
                names += _files_in(entry)
            elif MODULE_FOLDER.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
                modules.append(entry)
            elif may_be_shard(entry.name):
                shards.append(entry)
    if shards and not any(_MERGED.fullmatch(name) for name in names):
        hollow = hollow_adapters(path, names) if any(entry.name == LATEST for entry in shards) else []
        if not any(name in ADAPTERS and name not in hollow for name in names):
            names = [name for name in names if name not in hollow] + shards_in(shards)
    if any(_CODE.fullmatch(name) for name in code):
        names += code
    if MODULES in names:
        names += [name for entry in modules for name in _files_in(entry) if _is_kept(name.partition("/")[2])]
    if ADAPTER_CONFIG in names and any(name in ADAPTERS for name in names):
        return sorted(name for name in names if not _MERGED.fullmatch(name)), sorted(name for name in names if _MERGED.fullmatch(name))
    return sorted(names), []


def _files_in(folder: os.DirEntry[str]) -> list[str]:
    with os.scandir(folder.path) as entries:
        return [f"{folder.name}/{entry.name}" for entry in entries if entry.is_file(follow_symlinks=False)]


def _is_kept(name: str) -> bool:
    return _KEPT.fullmatch(name) is not None and name not in SENTINELS and not _UNREAD.fullmatch(name)


def fingerprint(path: Path) -> Fingerprint:
    """The present state of a directory as far as an export is concerned. Raises OSError when it is gone."""
    rows, folder = [], str(path)  # plain strings: scans take thousands of fingerprints
    read, beside = _files(path)
    for name in (*read, *beside):
        try:
            status = os.stat(f"{folder}/{name}", follow_symlinks=False)
        except FileNotFoundError:
            continue  # renamed or rotated between listing and stat: the next look sees what is true then
        rows.append((name, status.st_ino, status.st_size, status.st_mtime_ns))
    if any(name == f"{FSDP}/{METADATA}" for name, *_ in rows):  # its writer goes on with the optimizer, which no export reads
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.lstat(f"{folder}/{OPTIMIZER}/{METADATA}")
            rows.append((f"{OPTIMIZER}/{METADATA}", status.st_ino, status.st_size, status.st_mtime_ns))
    if any(name == LATEST or name.endswith((METADATA, MODULE)) for name, *_ in rows):
        rows += _configs_of_run(path, {name for name, *_ in rows})
    for sentinel in SENTINELS:
        if os.path.exists(f"{folder}/{sentinel}"):
            rows.append((sentinel, 0, 0, 0))
    return tuple(rows)


def _configs_of_run(path: Path, own: Collection[str]) -> list[tuple[str, int, int, int]]:
    """The states of the configurations that an adapter or a model in pieces, which lacks them, takes from its run's directory.

    So that one that is put there later makes the checkpoint be looked at again.
    """
    run, rows = run_of(path), []
    for name in (ADAPTER_CONFIG, "config.json"):
        if run != path and name not in own:
            with contextlib.suppress(FileNotFoundError):
                status = os.lstat(run / name)
                rows.append((f"../{name}", status.st_ino, status.st_size, status.st_mtime_ns))
    return rows


def weights_follow_state(seen: Fingerprint) -> bool:
    """Whether weights are newer than what is written last, Trainer's state or the description of pieces: then they may be written again."""
    state = next((mtime for last in (TRAINER_STATE, METADATA, LATEST) for name, _, _, mtime in seen if name.endswith(last)), None)
    weights = (".safetensors", ".bin", ".distcp", "_states.pt")
    return state is not None and any(mtime > state for name, _, _, mtime in seen if name.endswith(weights))


def inspect(path: Path) -> Inspection:
    """Look at one directory. Raises OSError when it is gone or can't be read."""
    look = look_at(path, export_files(path))
    layout = recognize(look)
    step = step_of(path)
    if layout is None:
        return Inspection(path, step=step or 0, ending=step is None, missing=(_nothing_yet(path),))
    weights = layout.weights(look)
    missing = [problem for check in layout.checks for problem in check(look)] + weights.missing
    state, recorded, claims = _trainer_state(look, layout, missing)
    known = [number for number in (recorded, weights.step, step) if number is not None]
    return Inspection(
        path,
        layout.name,
        known[0] if known else newest_step_beside(path),
        tuple(missing),
        claims,
        weights.method,
        weights.base_name,
        weights.base_revision,
        {**weights.metadata, **training_metadata(state)} if state else weights.metadata,
        patience_seconds=layout.patience(look),
        refusal=layout.refusal(path) if layout.refusal else weights.refusal,
        borrowed=weights.borrowed,
        ending=step is None and weights.step is None,
    )


def checkpoint_around(path: Path) -> Path | None:
    """The checkpoint in whose directory, or in a folder of whose, an absolute `path` lies; None where it lies in none.

    Raises OSError when a folder around it can't be read.
    """
    for folder in path.parents:
        if is_checkpoint_name(folder.name):
            return folder
    above = (folder for folder in list(path.parents)[:2] if inspect(folder).layout is not None)
    return next(above, None)


def _nothing_yet(path: Path) -> str:
    """What is missing of a directory without weights; where pieces are described and none is there, which ones."""
    with contextlib.suppress(OSError, CkptdError):
        status = os.lstat(path / METADATA)
        files = _pieces_named(path, (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        some = ", ".join(files[:4]) + (f" and {len(files) - 4:,} more" if len(files) > 4 else "")
        if files:
            return f"the pieces that its {METADATA} names are not there yet: {some}"
    wrong = no_file(path, *ADAPTERS, "model.safetensors", "pytorch_model.bin")
    if wrong is None and is_checkpoint_name(path.name) and (named := named_adapters(path)):
        return (
            f"no adapter and no model weights in it itself, but in {', '.join(f'{name}/' for name in named)}, where PEFT writes an adapter"
            f" that is not named default: name it default in the training, or run `ckptd export {shlex.quote(str(path / named[0]))}` before"
            " the trainer deletes it"
        )
    return "no adapter and no model weights in it yet" + (f": {wrong}" if wrong else "")


def named_adapters(path: Path) -> list[str]:
    """The folders in a directory that hold an adapter, last those that others are trained against; TRL's `ref` is none."""
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        names = (entry.name for entry in entries if entry.name != REFERENCE and entry.is_dir(follow_symlinks=False))
        ordered = sorted(names, key=lambda name: (name.startswith(REFERENCE), name))
        return [name for name in ordered if any(os.path.isfile(path / name / file) for file in ADAPTERS)]
    return []


@functools.lru_cache(maxsize=1024)
def _pieces_named(folder: Path, state: tuple[int, ...]) -> tuple[str, ...]:
    """The files that a description names, which every scan asks for again: `state` tells whether it has changed."""
    try:
        return tuple(dcp.files_named(folder))
    except ValueError:
        return ()


def refusal_of(path: Path) -> Fault | None:
    """Why a directory is not exported as it is, None where it is: without reading the headers of plain weights. Raises OSError."""
    look = look_at(path, export_files(path))
    layout = recognize(look)
    if layout is None:
        return None
    if layout.refusal:
        return layout.refusal(path)
    return layout.weights(look).refusal if layout.in_pieces else refusal_by_config(look)


def is_run_alone(inspection: Inspection) -> bool:
    """Whether what is not complete is a run's own directory, with checkpoints and an adapter's configuration in it and no weights.

    axolotl writes that configuration when training begins. Weights may come when it ends; until then, or without them, nothing is missing.
    Raises OSError when it is gone.
    """
    if inspection.missing != (NO_ADAPTER_YET,) or run_of(inspection.path) != inspection.path:
        return False
    with os.scandir(inspection.path) as entries:
        return any(is_checkpoint_name(entry.name) and entry.is_dir(follow_symlinks=False) for entry in entries)


def _trainer_state(look: Look, layout: Layout, missing: list[str]) -> tuple[Json | None, int | None, bool]:
    """The parsed state, its step, and whether the trainer claims to be done. What has a last file must have it."""
    if TRAINER_STATE not in look.names:
        if layout.last_file or ((layout.refusal or layout.in_pieces) and look.of_trainer):
            missing.append(absent(look.path, TRAINER_STATE, why=", which the trainer writes last, is not there yet"))
        return None, None, False
    state = read_object(look.path, TRAINER_STATE, missing, training_log.read)
    if state is None:
        return None, None, False
    step, named = step_in(state), None if counts_epochs(look.path) else step_of(look.path)
    if step is None:
        missing.append(f"{TRAINER_STATE} has no global_step")
        return state, None, False
    if named is not None and step != named:
        missing.append(f"{TRAINER_STATE} belongs to step {step}, but the directory to step {named}")
        return state, named, False
    return state, step, True


def identify(pin: Path) -> str:
    """Digest of the names and contents of the pinned files. What training merely logged is no part of it.

    Nor is a config.json beside an adapter: axolotl and torchtune write one, the base's counts, and it only tells a tokenizer its model.
    """
    digest, names = hashlib.sha256(), export_files(pin)
    left_out = {TRAINER_STATE, "config.json"} if ADAPTER_CONFIG in names else {TRAINER_STATE}
    for name in names:
        if name in left_out:
            continue
        digest.update(f"{name}\0{sha256_file(pin / name)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()
