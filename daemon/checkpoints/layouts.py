"""The table of layouts: what each trainer writes, when that is complete, and what cannot be exported as it is.

`daemon.checkpoints.inspection.inspect` asks `recognize` for the first row that fits a directory and applies its rules.
docs/checkpoints.md says the same in words, row by row, and a test compares the names. A layout is data and small
functions over a listing; the rules read headers and small files only.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.checkpoints.completeness import absent, archive_problems, module_problems, read_object, side_file_problems, weight_problems
from daemon.checkpoints.names import ADAPTERS, CHECKPOINT_NAME, is_staging_name, run_of
from daemon.checkpoints.unsupported import (
    refuse_deepspeed,
    refuse_lightning,
    refuse_litgpt,
    refuse_no_adapter_config,
    refuse_no_tensors,
    refuse_outside,
    refuse_unsafe,
)
from daemon.contract.configs import adapter_config
from daemon.contract.errors import CkptdError, Fault, Permanent
from daemon.contract.fault_codes import FaultCode
from daemon.contract.files import open_plain
from daemon.contract.sharded import dcp_safetensors, deepspeed
from daemon.contract.sharded.forms import FSDP, is_adapter, newest_module, read_tensors
from daemon.contract.sharded.lightning import SUFFIX, step_in
from daemon.contract.sharded.pickles import Unsafe
from daemon.contract.values import Json

TRAINER_STATE = "trainer_state.json"
ADAPTER_CONFIG = "adapter_config.json"
NO_ADAPTER_YET = "adapter_model.safetensors is not there yet"
SENTINELS = ("checkpoint-is-incomplete.txt",)
"""Files whose presence says that the trainer is still writing (transformers 5 on SIGTERM)."""
PATIENCE_SECONDS = 30.0
"""Extra quiet time for what has no last file to tell that it is done: longer than any pause between two files of one
`save_pretrained` that we met."""
_OF_MODEL = re.compile(
    r"(generation_config|config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab|preprocessor_config|processor_config)\.json"
    r"|chat_template\.(jinja|json)|vocab\.txt|merges\.txt|.+\.(model|spm|tiktoken)"
)
"""Files that a model in pieces takes from its run's directory where it has none of that name itself."""
_TRAINERS = re.compile(r"training_args\.bin|optimizer\.pt|scheduler\.pt|scaler\.pt|rng_state.*\.pth")
"""Files beside the model that only transformers' Trainer writes, all of them before trainer_state.json."""
_FULL_WEIGHTS = re.compile(r"(?:model|pytorch_model).*\.(?:safetensors|bin)")
_FEW = 256
"""Names of target modules that are shown."""
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
OPTIMIZER = "optimizer_0"
"""Folder beside FSDP's model in which accelerate keeps the optimizer's pieces."""
_GLOBAL_STEP = re.compile(r"global_step([0-9]{1,12})")


@dataclass(frozen=True)
class Look:
    """One listing of a directory: `names` that an export may read, and all files and folders at its top; no links."""

    path: Path
    names: frozenset[str]
    files: frozenset[str]
    folders: frozenset[str]

    @property
    def has_adapter(self) -> bool:
        """An adapter, or a part of one, is there."""
        return ADAPTER_CONFIG in self.names or any(name.startswith("adapter_model.") for name in self.names)

    @property
    def has_full_weights(self) -> bool:
        """Weights of a whole model, or a part of them, or their index are there."""
        return self._has_weight_files or any(name in self.names for name in _INDEXES)

    @property
    def _has_weight_files(self) -> bool:
        return any(_FULL_WEIGHTS.fullmatch(name) for name in self.names)

    @property
    def has_weights(self) -> bool:
        """Weights that are read as they are lie at the top."""
        return self._has_weight_files or any(name in self.names for name in ADAPTERS)

    @property
    def has_deepspeed(self) -> bool:
        """Whether DeepSpeed keeps its state here, or has begun to write it."""
        if any(_GLOBAL_STEP.fullmatch(name) for name in self.folders):
            return True
        return deepspeed.LATEST in self.files and ("zero_to_fp32.py" in self.files or self.path.suffix == SUFFIX)

    @property
    def of_trainer(self) -> bool:
        """Whether transformers' Trainer wrote it: its state is there, or files that come before its state."""
        if TRAINER_STATE in self.files:
            return True
        named = CHECKPOINT_NAME.fullmatch(self.path.name) is not None
        return named and (any(_TRAINERS.fullmatch(name) for name in self.files) or _has_trainers_sibling(self.path))


def _has_trainers_sibling(path: Path) -> bool:
    """Whether a `checkpoint-N` beside this one has a trainer's state: then this one is Trainer's too, half-made or half-deleted."""
    with os.scandir(path.parent) as entries:
        return any(
            CHECKPOINT_NAME.fullmatch(entry.name) and entry.path != str(path) and os.path.isfile(os.path.join(entry.path, TRAINER_STATE))
            for entry in entries
        )


@dataclass
class Weights:
    """What a rule found of a model: what is missing, and what it says of itself."""

    missing: list[str] = field(default_factory=list)
    method: str = ""
    base_name: str | None = None
    base_revision: str | None = None
    metadata: Json = field(default_factory=dict)
    borrowed: tuple[Path, ...] = ()
    """Files of the run's directory that it can't do without."""
    refusal: Fault | None = None
    """Why it is not exported, whatever else it lacks."""
    step: int | None = None
    """The step that the name of its file tells."""


@dataclass(frozen=True)
class Layout:
    """A row of the table."""

    name: str
    writer: str
    """Who writes it, for people."""
    fits: Callable[[Look], bool]
    weights: Callable[[Look], Weights]
    checks: tuple[Callable[[Look], list[str]], ...] = ()
    last_file: str | None = None
    """The file that the writer ends with. Without one, quiet is all that can be asked, and more of it."""
    refusal: Callable[[Path], Fault] | None = None
    """Why a complete one is not exported, and the command that makes one that is."""
    in_pieces: bool = False
    """Its weights must be put together first; their description is written last."""
    undescribed: bool = False
    """Of its pieces nothing is written last that tells of all."""
    goes_on: bool = False
    """After the description its writer goes on with the optimizer, and only Trainer says by its state that it is done."""

    def patience(self, look: Look) -> float:
        """Seconds of quiet beyond the settle time that it needs before it may be taken.

        A last file only tells in a directory that is written once: in a run's own one it may be that of an earlier training.
        """
        ended = self.last_file is not None and CHECKPOINT_NAME.fullmatch(look.path.name) is not None
        described = self.in_pieces and not self.undescribed and not (self.goes_on and TRAINER_STATE not in look.files)
        return 0.0 if ended or self.refusal or described else PATIENCE_SECONDS


def look_at(path: Path, names: list[str]) -> Look:
    """List `path`, in which an export would read `names`. Raises OSError when it is gone or can't be read."""
    with os.scandir(path) as entries:
        listed = list(entries)
    files = frozenset(entry.name for entry in listed if entry.is_file(follow_symlinks=False))
    folders = frozenset(entry.name for entry in listed if entry.is_dir(follow_symlinks=False))
    return Look(path, frozenset(names), files, folders)


def _adapter(look: Look) -> Weights:
    weights = Weights()
    config = read_object(look.path, ADAPTER_CONFIG, weights.missing)
    if config is not None:
        _describe(weights, config, look.path)
    file = next((name for name in ("adapter_model.safetensors", "adapter_model.bin") if name in look.names), None)
    if file is None:
        weights.missing.append(absent(look.path, *ADAPTERS))
    else:
        weights.missing += weight_problems(look.path, file)
    weights.missing += side_file_problems(look.path, look.names - {ADAPTER_CONFIG, TRAINER_STATE})
    return weights


def _describe(weights: Weights, config: Json, folder: Path) -> None:
    """Put down what an adapter says of itself, or why nobody can use what it says."""
    try:
        typed = adapter_config(config, folder / ADAPTER_CONFIG)
    except Permanent as error:
        weights.method, weights.refusal = "unknown", error.fault
        return
    targets = typed.target_modules
    few = isinstance(targets, str) or len(targets or ()) <= _FEW
    known = {"rank": config.get("r"), "alpha": config.get("lora_alpha"), "target_modules": targets if few else None}
    weights.method = typed.peft_type
    weights.base_name, weights.base_revision = typed.base_model_name_or_path, typed.revision
    weights.metadata = {key: value for key, value in known.items() if value is not None and not _unwritable(value)}


def _unwritable(value: Any) -> bool:
    """Whether a value of a method that is not typed here can't be shown as a number or names."""
    return not isinstance(value, str | list) and (isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30)


def refusal_by_config(look: Look) -> Fault | None:
    """Why a checkpoint is not exported, by an adapter's adapter_config.json or a model's index alone; None where that is no reason."""
    weights = Weights()
    if ADAPTER_CONFIG in look.names:
        if (config := read_object(look.path, ADAPTER_CONFIG, weights.missing)) is not None:
            _describe(weights, config, look.path)
        return weights.refusal
    index = _index_of(look)
    mapped = read_object(look.path, index, weights.missing) if index else None
    return _refusal_by_index(look, index, mapped) if index and mapped is not None else None


def _index_of(look: Look) -> str | None:
    return next((name for name in _INDEXES if name in look.names), None)


def _refusal_by_index(look: Look, index: str, mapped: Json) -> Fault | None:
    outside = _names_outside(mapped.get("weight_map"))
    return None if outside is None else refuse_outside(look.path, index, outside)


def _full(look: Look) -> Weights:
    missing: list[str] = []
    read_object(look.path, "config.json", missing)
    index = _index_of(look)
    if index:
        mapped = read_object(look.path, index, missing)
        if mapped is not None:
            if (refusal := _refusal_by_index(look, index, mapped)) is not None:
                return Weights(missing, "full", refusal=refusal)
            missing += _shard_problems(look, index, mapped.get("weight_map"))
    else:
        single = next((name for name in ("model.safetensors", "pytorch_model.bin") if name in look.names), None)
        if single is None:
            why = " or its index is not there yet"
            missing.append(absent(look.path, "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", why=why))
        else:
            missing += weight_problems(look.path, single)
    missing += side_file_problems(look.path, look.names - {"config.json", TRAINER_STATE, index or ""})
    return Weights(missing, "full")


def _names_outside(weight_map: Any) -> str | None:
    """The first name of an index that can be none of a file beside it: no file of that name will ever come."""
    names = weight_map.values() if isinstance(weight_map, dict) else ()
    return next((str(name) for name in names if not isinstance(name, str) or not _is_file_name(name)), None)


def _is_file_name(name: str) -> bool:
    return name.isprintable() and os.sep not in name and name not in ("", ".", "..") and len(os.fsencode(name)) <= _LONGEST_NAME


_LONGEST_NAME = 255
"""Bytes of a file's name."""


def _shard_problems(look: Look, index: str, weight_map: Any) -> list[str]:
    """Problems where a file of the index is missing or does not hold the names that are mapped to it."""
    if not isinstance(weight_map, dict) or not weight_map:
        return [f"{index} maps no weights to files"]
    wanted: dict[str, set[str]] = {}
    for tensor, name in weight_map.items():
        wanted.setdefault(str(name), set()).add(tensor)
    problems: list[str] = []
    for name, tensors in sorted(wanted.items()):
        if name in look.names:
            problems += weight_problems(look.path, name, tensors)
        else:
            problems.append(absent(look.path, name, why=f", which {index} names, is not there yet"))
        if len(problems) > MOST_PROBLEMS:
            return [*problems[:MOST_PROBLEMS], f"and more of the {len(wanted):,} files that {index} names"]
    return problems


MOST_PROBLEMS = 20
"""Files of an index that are said to be missing."""


def _nothing_to_read(look: Look) -> Weights:
    return Weights()


def _in_pieces(look: Look, refuse: Callable[[Path, str], Fault] | None = None) -> Weights:
    """An adapter or a model by the names of its tensors; what it lacks beside them may lie in the run's directory.

    `refuse`: gives the refusal of what its own tool reads and nothing here does.
    """
    weights = Weights(missing=side_file_problems(look.path, look.names - {TRAINER_STATE}))
    try:
        holds = _held(look.path, _state_of_pieces(look))
    except CkptdError as error:
        if error.fault.code != FaultCode.FILE_MISSING:  # what is not there yet, the row's checks say
            weights.missing.append(f"its parts can't be read: {error.fault.cause}")
        return weights
    if holds.unsafe is not None:
        weights.refusal = refuse(look.path, str(holds.unsafe)) if refuse else refuse_unsafe(look.path, holds.unsafe.name)
    elif holds.unsupported is not None:
        weights.refusal = refuse_deepspeed(look.path, holds.unsupported)
    elif holds.problem is not None:
        weights.missing.append(f"its parts can't be merged: {holds.problem}")
    elif holds.tensors == 0:
        weights.refusal = refuse_no_tensors(look.path)
    elif holds.adapter:
        _borrow_adapter_config(look, weights)
    else:
        weights.method, weights.borrowed = "full", tuple(_of_model(look))
    return weights


@dataclass(frozen=True)
class _Held:
    """What pieces hold, or why that can't be told: they ask to run something, or are of a kind that is not put together here."""

    tensors: int = 0
    adapter: bool = False
    problem: str | None = None
    unsafe: Unsafe | None = None
    unsupported: str | None = None


@functools.lru_cache(maxsize=1024)
def _held(path: Path, state: tuple[tuple[Any, ...], ...]) -> _Held:
    """What the pieces below `path` hold. Their description may take seconds to read, and every scan asks again: `state` tells whether
    they have changed. Raises CkptdError, which is not remembered."""
    try:
        tensors = read_tensors(path)
    except Unsafe as error:
        return _Held(unsafe=error)
    except deepspeed.Unsupported as error:
        return _Held(unsupported=str(error))
    except ValueError as error:
        return _Held(problem=str(error))
    return _Held(len(tensors), is_adapter(tensors))


def _state_of_pieces(look: Look) -> tuple[tuple[Any, ...], ...]:
    states = ((name, os.lstat(look.path / name)) for name in sorted(look.names))
    return tuple((name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns) for name, status in states)


def _lightning(look: Look) -> Weights:
    """The newest of Lightning's files; of a class in it that is not known nothing can be read."""
    name = newest_module(look.path)
    if name is None and not any(file.endswith(SUFFIX) for file in look.files):
        return Weights([f"nothing that Lightning ends a {SUFFIX} directory with is in it yet: DeepSpeed's latest, or torch's parts"])
    if name is None:
        return Weights(refusal=refuse_lightning(look.path, "it is not clear which of its .ckpt files is the newest"))
    weights = _in_pieces(look)
    weights.step = step_in(name)
    if weights.refusal is not None and weights.refusal.code == FaultCode.UNSAFE_PICKLE:
        weights.refusal = refuse_lightning(look.path / name, weights.refusal.cause)
    return weights


def _deepspeed(look: Look) -> Weights:
    """What `latest` names. A state of a kind that is not put together here, or with objects of unknown classes, is refused."""
    tag = deepspeed.tag_in(look.path)
    if tag is None:  # the row's check says so
        return Weights()
    weights = _in_pieces(look, refuse_deepspeed)
    matched = _GLOBAL_STEP.fullmatch(tag)
    weights.step = int(matched[1]) if matched else step_in(look.path.name)
    return weights


def _borrow_adapter_config(look: Look, weights: Weights) -> None:
    place = look.path if ADAPTER_CONFIG in look.names else run_of(look.path)
    if not (place / ADAPTER_CONFIG).is_file():
        weights.refusal = refuse_no_adapter_config(look.path, run_of(look.path))
        return
    config = read_object(place, ADAPTER_CONFIG, weights.missing)
    if config is not None:
        _describe(weights, config, place)
    weights.borrowed = () if place == look.path else (place / ADAPTER_CONFIG,)


def _of_model(look: Look) -> list[Path]:
    run = run_of(look.path)
    if run == look.path or "config.json" in look.names:
        return []
    with os.scandir(run) as entries:
        return sorted(
            Path(entry.path)
            for entry in entries
            if _OF_MODEL.fullmatch(entry.name) and entry.name not in look.names and entry.is_file(follow_symlinks=False)
        )


def _sentinel(look: Look) -> list[str]:
    return [f"{name} says that it is still being written" for name in SENTINELS if name in look.files]


def _modules(look: Look) -> list[str]:
    return module_problems(look.path, look.names, look.folders)


def _staging(look: Look) -> list[str]:
    if is_staging_name(look.path.name):
        return [f"{look.path.name} is the name under which older releases of transformers stage; they rename it when it is whole"]
    return []


def _deepspeed_latest(look: Look) -> list[str]:
    """DeepSpeed writes `latest`, the name of the folder with its state, after that folder."""
    try:
        with open_plain(look.path / "latest") as stream:
            named = stream.read(256).decode(errors="replace").strip()
    except ValueError as error:
        return [f"latest can't be read: {error}"]
    except FileNotFoundError:
        return ["latest, which DeepSpeed writes last, is not there yet"]
    return [] if named in look.folders else [f"latest names the folder {named!r}, which is not there"]


def _fsdp_metadata(look: Look) -> list[str]:
    """torch.distributed.checkpoint writes .metadata when every rank's part is written; the optimizer's folder comes after the model's."""
    begun = [FSDP, *(name for name in (OPTIMIZER,) if name in look.folders)]
    return [
        f"{name}/.metadata, which torch writes when every rank is done, is not there yet"
        for name in begun
        if not (look.path / name / ".metadata").is_file()
    ]


def _dcp_metadata(look: Look) -> list[str]:
    return [] if ".metadata" in look.files else [".metadata, which torch writes when every rank is done, is not there yet"]


def _archives(look: Look) -> list[str]:
    return [problem for name in sorted(look.files) if name.endswith(".ckpt") for problem in archive_problems(look.path, name)]


def _is_lightning(look: Look) -> bool:
    return look.path.suffix == SUFFIX or any(file.endswith(SUFFIX) for file in look.files)


def _is_torchtune(look: Look) -> bool:
    return look.has_adapter and bool({"adapter_model.pt", "recipe_state.pt"} & look.files or _numbered_otherwise(look.path))


def _numbered_otherwise(path: Path) -> bool:
    return re.fullmatch(r"(?:epoch|step)[-_][0-9]+", path.name) is not None


_DONE = (_staging, _sentinel, _modules)

TABLE = (
    Layout("fsdp-sharded", "transformers Trainer or accelerate with FSDP SHARDED_STATE_DICT",
           lambda look: FSDP in look.folders and not look.has_weights, _in_pieces, (*_DONE, _fsdp_metadata), in_pieces=True,
           goes_on=True),
    Layout("dcp-sharded", "torchtitan, or torch.distributed.checkpoint by itself",
           lambda look: any(name.endswith(".distcp") for name in look.files) and not look.has_weights, _in_pieces,
           (*_DONE, _dcp_metadata), in_pieces=True),
    Layout("dcp-safetensors", "torch.distributed.checkpoint's HuggingFaceStorageWriter without consolidation",
           lambda look: any(map(dcp_safetensors.NAME.fullmatch, look.files)) and not look.has_weights, _in_pieces, _DONE, in_pieces=True,
           undescribed=True),
    Layout("deepspeed-sharded", "DeepSpeed ZeRO without gathered weights", lambda look: look.has_deepspeed and not look.has_weights,
           _deepspeed, (*_DONE, _deepspeed_latest), in_pieces=True),
    Layout("lightning", "PyTorch Lightning", lambda look: _is_lightning(look) and not look.has_weights, _lightning, (_archives,),
           in_pieces=True),
    Layout("deepspeed-adapter", "transformers Trainer with DeepSpeed ZeRO and PEFT", lambda look: look.has_adapter and look.has_deepspeed,
           _adapter, (*_DONE, _deepspeed_latest), TRAINER_STATE),
    Layout("deepspeed-full", "transformers Trainer with DeepSpeed ZeRO", lambda look: look.has_full_weights and look.has_deepspeed,
           _full, (*_DONE, _deepspeed_latest), TRAINER_STATE),
    Layout("trainer-adapter", "transformers Trainer 4.x and 5.x with PEFT, and TRL", lambda look: look.has_adapter and look.of_trainer,
           _adapter, _DONE, TRAINER_STATE),
    Layout("torchtune-adapter", "torchtune, adapter in PEFT's form", _is_torchtune, _adapter, _DONE),
    Layout("adapter", "save_pretrained of PEFT", lambda look: look.has_adapter, _adapter, _DONE),
    Layout("trainer-full", "transformers Trainer 4.x and 5.x", lambda look: look.has_full_weights and look.of_trainer, _full, _DONE,
           TRAINER_STATE),
    Layout("full", "save_pretrained of transformers", lambda look: look.has_full_weights, _full, _DONE),
    Layout("litgpt", "litgpt", lambda look: any(name.startswith("lit_model.pth") for name in look.files), _nothing_to_read,
           refusal=refuse_litgpt),
)  # fmt: skip
"""First match wins."""


def recognize(look: Look) -> Layout | None:
    """The row of the table that fits, None where nothing of a checkpoint is there yet."""
    return next((layout for layout in TABLE if layout.fits(look)), None)
