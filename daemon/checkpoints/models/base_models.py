"""Finds the folder of the base model that an adapter names, without a network.

Called by the runner before a job's first stage. Order: `base.map`, the name itself where it is a folder's absolute path,
`base.search`, the caches of Hugging Face and ModelScope. A base is a folder with a config.json and weights. Name and revision come from
the trainer's files: neither leads out of the folders that are searched. Where a link in one leads is for that folder's owner to say.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from daemon.checkpoints.completeness import read_json
from daemon.contract.disk import away
from daemon.contract.faults.advice import MOST_OF_NAME, quoted
from daemon.contract.faults.errors import CkptdError, Fault, Permanent, Retryable, from_oserror
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.stages import ModelSize
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.jobs.plan import SHARDED
from daemon.contract.models.safetensors import model_size, parse_header
from daemon.contract.sharded.forms import is_sharded, is_torchtitan, read_tensors
from daemon.contract.values import Json
from daemon.system.filesystems import access

UNNAMED = ""
"""Key of `base.map` for the base of checkpoints that name none."""
REMEMBERED = 64
"""Sizes of models that are kept."""


def is_model(folder: Path) -> bool:
    """Whether a folder looks like a transformers model: a config and weights."""
    if not os.path.isfile(folder / "config.json"):  # False too for a name that no file system takes
        return False
    try:
        return any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))
    except OSError:
        return False


def _is_plain(name: str) -> bool:
    """Whether a name that the trainer's files give stays below the folder that it is looked for in."""
    parts = name.split("/")
    return bool(name) and "\0" not in name and not any(part in ("", ".", "..") for part in parts)


def _stays_inside(folder: Path, candidate: Path) -> bool:
    """Whether `candidate`, a plain name below `folder`, lies in it, or a link of somebody who may say so leads out of it.

    These are root, this user and the owner of `folder`; in a folder that others may write to, anybody else's link could name any directory
    that this user can read.
    """
    try:
        trusted = {0, os.geteuid(), os.stat(folder).st_uid}
        path = folder
        for part in candidate.relative_to(folder).parts:
            path = path / part
            status = os.lstat(path)
            if (
                stat.S_ISLNK(status.st_mode)
                and status.st_uid not in trusted
                and Path(os.path.realpath(folder)) not in Path(os.path.realpath(path)).parents
            ):
                return False
    except (OSError, RuntimeError, ValueError):  # gone, links that go round, a name that is none
        return False
    return True


def _cached_snapshots(name: str, revision: str | None) -> list[Path]:
    """Candidate folders in the Hugging Face cache: `hub/models--ORG--NAME/snapshots/COMMIT`."""
    if not _is_plain(revision or "main"):
        return []
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    repository = hub / f"models--{name.replace('/', '--')}"
    wanted = revision or "main"
    reference = repository / "refs" / wanted
    try:
        commit = reference.read_text(encoding="utf-8").strip() if os.path.isfile(reference) else wanted
    except (OSError, ValueError):  # not readable, or no text
        return []
    if not _is_plain(commit):
        return []
    return [repository / "snapshots" / commit]


def _in_modelscope(folder: Path, name: str, revision: str | None) -> list[Path]:
    """Candidate folders in a folder `models` of ModelScope's cache: `ORG--NAME/snapshots/REVISION`, and before 1.38 `ORG/NAME` with `___`
    for each dot (modelscope/hub/utils/utils.py, `find_reusable_legacy_repo_dir`). Of several revisions the main one, `master`, counts."""
    owner, _, own = name.partition("/")
    if not _is_plain(name) or not own or "/" in own or not _is_plain(revision or "master"):
        return []
    snapshots = folder / f"{owner}--{own}" / "snapshots"
    try:
        there = sorted(os.listdir(snapshots))
    except (OSError, ValueError):
        there = []
    wanted = revision or (there[0] if len(there) == 1 else "master")
    return [snapshots / wanted, folder / owner / own.replace(".", "___")]


def _modelscope_caches() -> list[Path]:
    """The folders in which ModelScope keeps models: of its present releases and of those up to 1.37."""
    home = Path(os.environ.get("MODELSCOPE_CACHE") or Path.home() / ".cache" / "modelscope")
    return [home / "models", home / "hub" / "models"]


def base_wanted(method: str, layout: str | None, name: str | None, mapped: Mapping[str, Path], *, configured: bool = True) -> str | None:
    """The name by which a checkpoint's base is looked for; None for a full fine-tune that needs none.

    Of a full fine-tune in pieces the base, if `base.map` has one for checkpoints that name none, says what its tensors are called; without
    a config.json (`configured`) nothing else does.
    """
    if method == "full" and (layout not in SHARDED or (configured and UNNAMED not in mapped)):
        return None
    return name or UNNAMED


def says_its_model(folder: Path) -> bool:
    """Whether the files of a full fine-tune in pieces say what model it is, or that no base helps: then its first stage says it."""
    if (folder / "config.json").is_file():
        return True
    try:
        return is_torchtitan(read_tensors(folder))
    except (CkptdError, OSError, ValueError):  # damaged, or not whole yet
        return True


def find_base(name: str, revision: str | None, search: Sequence[Path], mapped: Mapping[str, Path]) -> Path:
    """The folder of the base model `name`. Raises Permanent that says where it looked and which key would map it."""
    if name in mapped:
        if is_model(mapped[name]):
            return mapped[name]
        cause = f"base.map gives {mapped[name]} for it, which has no config.json with weights"
        raise Permanent(
            FaultCode.BASE_NOT_FOUND, f"find the base model {quoted(name)}", cause,
            f'correct base.map.{quoted(name)} or put the model there', path=mapped[name],
        )  # fmt: skip
    if name == UNNAMED:
        raise Permanent(
            FaultCode.BASE_NOT_FOUND, "find the base model", "the checkpoint does not name it",
            'set base.map."" = "/folder/of/the/model", the base of checkpoints that name none (or, for one export, use `ckptd export --base'
            " FOLDER`); of a full fine-tune, the config.json and tokenizer of the training, in the checkpoint's directory or its run's, do"
            " as well",
        )  # fmt: skip
    candidates = [Path(os.path.normpath(name))] if os.path.isabs(name) else []
    below = os.path.normpath(name).lstrip("/") if ".." not in name.split("/") else ""
    parts = [part for part in name.split("/") if part not in ("", ".")]  # a trainer's path ends in NAME or ORG/NAME, wherever it begins
    ends = ["/".join(parts[-2:]), parts[-1] if parts else "", *(["/".join(parts[-3:])] if "snapshots" in parts[-2:-1] else [])]
    for folder in search:
        candidates += [folder / inner for inner in (below, *ends) if _is_plain(inner)]
        candidates += [] if os.path.isabs(name) else [place for place in _in_modelscope(folder, name, revision) if is_model(place)]
    if not os.path.isabs(name):
        candidates += _cached_snapshots(name, revision)
        candidates += [place for cache in _modelscope_caches() for place in _in_modelscope(cache, name, revision) if is_model(place)]
    strange = [
        candidate for candidate in candidates if (home := _searched(candidate, search)) is not None and not _stays_inside(home, candidate)
    ]
    for candidate in candidates:
        if candidate not in strange and is_model(candidate):
            return candidate
    looked = ", ".join(_listed(candidate) for candidate in dict.fromkeys(candidates)) or "nowhere: base.search is empty"
    led = ""
    if led_out := [candidate for candidate in strange if os.path.lexists(candidate)]:
        why = "leads out of base.search through a link, and the link's owner is not root, this user or that folder's owner"
        led = f"{_listed(led_out[0])} {why}; "  # first: a long list is cut
    ours = [candidate for candidate in candidates if _searched(candidate, search) is not None and candidate not in strange]
    closed = next(filter(None, (access.denial(candidate, "list") for candidate in ours)), None)
    if closed is not None:
        raise Permanent(
            FaultCode.BASE_NOT_FOUND, f"find the base model {quoted(name)}", f"{led}{closed.cause}; looked in {looked}",
            access.remedy(closed, Path(closed.path)), path=closed.path,
        )  # fmt: skip
    unseen = (
        " that this user can read" if any(access.denial(candidate, "list") for candidate in candidates if candidate not in ours) else ""
    )
    raise Permanent(
        FaultCode.BASE_NOT_FOUND, f"find the base model {quoted(name)}",
        f"{led}no folder with its config.json and weights exists{unseen}; looked in {looked}",
        f'set base.map.{quoted(name)} = "/folder/of/the/model", or add the folder that contains it to base.search (or, for one export, use'
        " `ckptd export --base FOLDER`)",
    )  # fmt: skip


def _listed(candidate: Path) -> str:
    """A folder that was looked in; one with odd characters, or a long one, in quotation marks."""
    name = str(candidate)
    return name if name.isprintable() and len(name) <= MOST_OF_NAME else quoted(name)


def _searched(candidate: Path, search: Sequence[Path]) -> Path | None:
    """The folder of base.search that a candidate is looked for in; None for every other candidate."""
    return next((folder for folder in search if folder in candidate.parents), None)


def config_of(folder: Path) -> Json:
    """config.json of a model; {} where there is none that can be read: a stage that needs it says what is wrong."""
    try:
        config = read_json(folder / "config.json")
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def measure(folder: Path) -> ModelSize:
    """Stored bytes and parameters from the headers. Raises Permanent for weights that are damaged.

    For `.bin` weights the headers can't be had without unpickling: 2 bytes a parameter are assumed.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        if folder.is_dir() and is_sharded(folder):
            return _measure_shards(folder)
        stored = sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin"))
        return ModelSize(stored, stored // 2)
    headers = []
    for file in files:
        try:
            headers.append(parse_header(file))
        except ValueError as error:
            raise Permanent(
                FaultCode.BASE_DAMAGED, "read the base model", f"{file.name}: {error}", "download or copy that model again", path=file
            ) from None
    return ModelSize(*model_size(headers))


def _measure_shards(folder: Path) -> ModelSize:
    try:
        tensors = read_tensors(folder).values()
    except ValueError as error:
        raise Permanent(FaultCode.CHECKPOINT_DAMAGED, "read the checkpoint", str(error), "take another checkpoint", path=folder) from None
    return ModelSize(sum(tensor.size for tensor in tensors), sum(tensor.elements for tensor in tensors))


class Bases:
    """Finds bases and remembers their sizes: ten checkpoints of a run have one base. May be used by several threads."""

    def __init__(self, search: Sequence[Path], mapped: Mapping[str, Path]) -> None:
        self._search = search
        self._mapped = mapped
        self._sizes: dict[Path, ModelSize] = {}
        self._writing = threading.Lock()
        """Held for a moment, never while a file system is asked."""

    def find(self, checkpoint: CheckpointRef, pin: Path | None = None) -> tuple[Path | None, Fault | None]:
        """(folder, None), (None, None) for a full fine-tune, (None, fault) for a base that can't be used.

        `pin`: its files, which show whether a full fine-tune needs one; without them it does not.
        Raises Retryable where that can't be found out now, as on a disk that does not read.
        """
        configured = pin is None or checkpoint.layout not in SHARDED or says_its_model(pin)
        name = base_wanted(checkpoint.method, checkpoint.layout, checkpoint.base_name, self._mapped, configured=configured)
        if name is None:
            return None, None
        try:
            folder = find_base(name, checkpoint.base_revision, self._search, self._mapped)
            self._remember(folder)
        except Permanent as error:
            return None, error.fault
        except OSError as error:
            ours = from_oserror(error, "read the base model")
            if isinstance(ours, Retryable):
                raise ours from error
            return None, away.fault_of(error.filename or name, error, "read the base model") if away.is_away(error) else ours.fault
        return folder, None

    def size(self, folder: Path) -> ModelSize:
        """Size of the model in `folder`; nothing for one that can't be read, which only the report is left to run for."""
        known = self._sizes.get(folder)
        try:
            return known or self._remember(folder)
        except Permanent:
            return ModelSize(0, 0)

    def _remember(self, folder: Path) -> ModelSize:
        """A full fine-tune is its own base, so the table would grow with every job."""
        size = measure(folder)
        with self._writing:
            self._sizes.pop(folder, None)
            while len(self._sizes) >= REMEMBERED:
                del self._sizes[next(iter(self._sizes))]
            self._sizes[folder] = size
        return size
