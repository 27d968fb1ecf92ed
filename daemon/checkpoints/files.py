"""The files of a checkpoint: what lies in a directory, what an export reads of it, and the state that this is in.

Used by everything that looks at a checkpoint or pins one. Lists and asks for states only; no file is read, but for the head of an adapter
beside DeepSpeed's state. Links are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import stat
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from daemon.checkpoints.names import ADAPTERS
from daemon.checkpoints.parts import config_folders, marks_of
from daemon.contract.disk.files import open_plain
from daemon.contract.faults.text import printable
from daemon.contract.light import dataclass
from daemon.contract.sharded.accelerate import FSDP_WHOLE, is_state
from daemon.contract.sharded.dcp import METADATA
from daemon.contract.sharded.dcp_safetensors import NAME as SHARD
from daemon.contract.sharded.deepspeed import LATEST
from daemon.contract.sharded.forms import FSDP, is_ranks, may_be_shard, shards_in
from daemon.contract.sharded.lightning import SUFFIX as MODULE
from daemon.contract.values import digest_of

TRAINER_STATE = "trainer_state.json"
ADAPTER_CONFIG = "adapter_config.json"
SENTINELS = ("checkpoint-is-incomplete.txt",)
"""Files whose presence says that the trainer is still writing (transformers 5 on SIGTERM)."""
OPTIMIZER = "optimizer_0"
"""Folder beside FSDP's model in which accelerate keeps the optimizer's pieces."""
MODULES = "modules.json"
"""sentence-transformers' list of the modules that follow a model. Each lies in a folder of its own beside it."""
MODULE_FOLDER = re.compile(r"[0-9]{1,2}_\w+")
_KEPT = re.compile(
    r".+\.(json|jinja|txt|model(\.v\w+)?|spm|tiktoken|vocab|codes|tokenizer|safetensors)|(adapter_model|pytorch_model.*)\.bin"
)
_CODE = re.compile(r"(configuration|modeling|modular|tokenization|(image_|video_)?processing|feature_extraction)_.+\.py")
"""A model's own code as transformers saves it. Beside it all Python files count: it imports them under any name."""
_KEPT_FOLDERS = ("chat_templates", "additional_chat_templates")
_UNREAD = re.compile(
    r"(?:all|train|eval|test|predict)_results\.json|tokens_state\.json|pytorch_model_fsdp.*|[0-9]{7,12}_adapters\.safetensors"
)
"""What Trainer's `save_metrics` leaves in a run's directory, axolotl's count of tokens, FSDP's second copy of the weights, and mlx-lm's of
its earlier saves: no export reads them."""
_MERGED = re.compile(r"(?:(?:ft-)?model|pytorch_model|consolidated).*\.(?:safetensors|bin)|model\.safetensors\.index\.json")
"""Weights of a whole model. Beside an adapter (torchtune writes both) they are no part of the checkpoint, but its merge is compared with
them: they count for the fingerprint, so that it is not taken while they are written, and not for the identity."""

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""(name, inode, size, mtime in ns) of every file that an export reads, or compares itself with. Without ctime: `link()` changes that."""


class Touch(NamedTuple):
    """When the inodes of a directory's files last changed, by whatever: ns; and how many names they have together."""

    newest: int
    links: int


@dataclass(frozen=True)
class Look:
    """One listing of a directory; no links."""

    path: Path
    names: frozenset[str]
    """What an export may read, relative to the directory."""
    files: frozenset[str]
    folders: frozenset[str]
    """All files and folders at its top."""
    beside: frozenset[str] = frozenset()
    """A whole model's weights beside an adapter, and their index: its merge is compared with them."""


def look_at(path: Path) -> Look:
    """List a directory. Raises OSError when it is gone or can't be read."""
    names, files, folders, shards = [], [], [], []
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if entry.is_file(follow_symlinks=False):
                files.append(name)
                if _is_kept(name):
                    names.append(name)
                    continue
            elif entry.is_dir(follow_symlinks=False):
                folders.append(name)
                if name in _KEPT_FOLDERS:
                    names += _files_in(path, name)
            if may_be_shard(name):
                shards.append(entry)
    if shards and not any(_MERGED.fullmatch(name) for name in names):
        hollow = ADAPTERS[0] if LATEST in files and ADAPTERS[0] in files and _is_hollow(path / ADAPTERS[0]) else None
        if not any(name in ADAPTERS and name != hollow for name in names):
            names = [name for name in names if name != hollow] + shards_in(shards)
    if FSDP_WHOLE in files and not any(_MERGED.fullmatch(name) or name in ADAPTERS for name in names):
        names.append(FSDP_WHOLE)
    code = [name for name in files if name.endswith(".py")]
    if any(map(_CODE.fullmatch, code)):
        names += code
    if MODULES in names:
        modules = (name for folder in folders if MODULE_FOLDER.fullmatch(folder) for name in _files_in(path, folder))
        names += [name for name in modules if _is_kept(name.partition("/")[2])]
    beside: list[str] = []
    if ADAPTER_CONFIG in names and any(name in ADAPTERS for name in names):
        beside = [name for name in names if _MERGED.fullmatch(name)]
    return Look(path, frozenset(names).difference(beside), frozenset(files), frozenset(folders), frozenset(beside))


def export_files(path: Path) -> list[str]:
    """Names, relative to `path`, of the regular files that an export may read, sorted."""
    return sorted(look_at(path).names)


def fingerprint(path: Path) -> Fingerprint:
    """The present state of a directory as far as an export is concerned. Raises OSError when it is gone."""
    return fingerprint_and_touch(path)[0]


def fingerprint_and_touch(path: Path) -> tuple[Fingerprint, Touch]:
    """The same, and what else of its files tells of a change. Raises OSError when it is gone."""
    look, rows, folder = look_at(path), [], str(path)  # plain strings: scans take thousands of fingerprints
    newest = links = 0
    for name in (*sorted(look.names), *sorted(look.beside)):
        try:
            status = os.stat(f"{folder}/{name}", follow_symlinks=False)
        except FileNotFoundError:
            continue  # renamed or rotated between listing and stat: the next look sees what is true then
        rows.append((name, status.st_ino, status.st_size, status.st_mtime_ns))
        newest, links = max(newest, status.st_ctime_ns), links + status.st_nlink
    if any(name == f"{FSDP}/{METADATA}" for name, *_ in rows):  # its writer goes on with the optimizer, which no export reads
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.lstat(f"{folder}/{OPTIMIZER}/{METADATA}")
            rows.append((f"{OPTIMIZER}/{METADATA}", status.st_ino, status.st_size, status.st_mtime_ns))
    if is_state(look.files) or any(map(_is_piece, look.names)):
        rows += _configs_of_run(path, {name for name, *_ in rows})
    for sentinel in SENTINELS:
        if os.path.exists(f"{folder}/{sentinel}"):
            rows.append((sentinel, 0, 0, 0))
    rows += [(mark, 0, 0, 0) for mark in marks_of(path)]
    return tuple(rows), Touch(newest, links)


def digest_of_fingerprint(fingerprint: Fingerprint) -> str:
    """What the journal remembers of a directory's state."""
    return digest_of([list(row) for row in fingerprint])


def weights_follow_state(seen: Fingerprint) -> bool:
    """Whether weights are newer than what is written last, Trainer's state or the description of pieces: then they may be written again."""
    state = next((mtime for last in (TRAINER_STATE, METADATA, LATEST) for name, _, _, mtime in seen if name.endswith(last)), None)
    weights = (".safetensors", ".bin", ".distcp", "_states.pt")
    return state is not None and any(mtime > state for name, _, _, mtime in seen if name.endswith(weights))


def absent(path: Path, *names: str, why: str = " is not there yet") -> str:
    """Why there is no file of these names in a directory, as a sentence: the first and `why`, unless one names what is no file."""
    return no_file(path, *names) or f"{names[0]}{why}"


def no_file(path: Path, *names: str) -> str | None:
    """What has one of these names in a directory and is no file, as a sentence; None where nothing has."""
    for name in names:
        with contextlib.suppress(OSError):
            mode = os.lstat(path / name).st_mode
            if not stat.S_ISREG(mode):
                return f"{name} is {_what_it_is(path / name, mode)}"
    return None


def _files_in(path: Path, folder: str) -> list[str]:
    with os.scandir(path / folder) as entries:
        return [f"{folder}/{entry.name}" for entry in entries if entry.is_file(follow_symlinks=False)]


@functools.lru_cache(4096)
def _is_kept(name: str) -> bool:
    return _KEPT.fullmatch(name) is not None and name not in SENTINELS and not _UNREAD.fullmatch(name)


@functools.lru_cache(4096)
def _is_piece(name: str) -> bool:
    return name == LATEST or name.endswith((METADATA, MODULE)) or is_ranks(name) or SHARD.fullmatch(name) is not None


def _configs_of_run(path: Path, own: Collection[str]) -> list[tuple[str, int, int, int]]:
    """The states of the configurations that an adapter or a model in pieces, which lacks them, takes from its trainer's or run's folders.

    So that one that is put there later makes the checkpoint be looked at again.
    """
    rows = []
    for folder in config_folders(path):
        for name in (ADAPTER_CONFIG, "config.json"):
            if name not in own:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    status = os.lstat(folder / name)
                    place = ".." if folder == path.parent else folder.name
                    rows.append((f"{place}/{name}", status.st_ino, status.st_size, status.st_mtime_ns))
    return rows


def _is_hollow(adapter: Path) -> bool:
    """Whether a file has a header and not a byte of weights: Trainer leaves one beside ZeRO-3's state that was not gathered."""
    with contextlib.suppress(FileNotFoundError, ValueError), open_plain(adapter) as stream:
        head = stream.read(8)
        return len(head) == 8 and os.fstat(stream.fileno()).st_size == 8 + int.from_bytes(head, "little")
    return False


def _what_it_is(file: Path, mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory, not a file"
    if not stat.S_ISLNK(mode):
        return "not a regular file"
    target = printable(os.readlink(file))
    try:
        os.stat(file)
    except OSError as error:
        return (
            f"a link to {target}, which leads back to itself" if error.errno == errno.ELOOP else f"a link to {target}, which is not there"
        )
    return f"a link to {target}, and links are not followed: put the file itself there"
