"""Finds the folder of the base model that an adapter names, without a network.

Called by the runner before a job's first stage. Order: `base.map`, the name itself where it is a folder,
`base.search`, the Hugging Face cache. A base is a folder with a config.json and weights.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from daemon.contract.errors import CkptdError, Fault, Permanent, from_oserror
from daemon.contract.fault_codes import FaultCode
from daemon.contract.formats.stages import ModelSize
from daemon.contract.jobs.messages import CheckpointRef
from daemon.contract.jobs.plan import SHARDED
from daemon.contract.safetensors import model_size, parse_header
from daemon.contract.sharded.forms import is_sharded, read_tensors
from daemon.system import access

UNNAMED = ""
"""Key of `base.map` for the base of checkpoints that name none."""
REMEMBERED = 64
"""Sizes of models that are kept."""


def is_model(folder: Path) -> bool:
    """Whether a folder looks like a transformers model: a config and weights."""
    if not os.path.isfile(folder / "config.json"):
        return False
    try:
        return any(folder.glob("*.safetensors")) or any(folder.glob("pytorch_model*.bin"))
    except OSError:
        return False


def _cached_snapshots(name: str, revision: str | None) -> list[Path]:
    """Candidate folders in the Hugging Face cache: `hub/models--ORG--NAME/snapshots/COMMIT`."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    repository = hub / f"models--{name.replace('/', '--')}"
    wanted = revision or "main"
    reference = repository / "refs" / wanted
    try:
        commit = reference.read_text().strip() if reference.is_file() else wanted
    except OSError:
        return []
    return [repository / "snapshots" / commit]


def find_base(name: str, revision: str | None, search: Sequence[Path], mapped: Mapping[str, Path]) -> Path:
    """The folder of the base model `name`. Raises Permanent that says where it looked and which key would map it."""
    if name in mapped:
        if is_model(mapped[name]):
            return mapped[name]
        cause = f"base.map sends it to {mapped[name]}, which holds no config.json with weights"
        raise Permanent(
            FaultCode.BASE_NOT_FOUND, f"find the base model {name!r}", cause,
            f'correct base.map."{name}" or put the model there', path=mapped[name],
        )  # fmt: skip
    leaf = name.rstrip("/").rsplit("/", 1)[-1]
    candidates = [Path(name)] if os.path.isabs(name) else []
    for folder in search:
        candidates += [folder / name.lstrip("/"), folder / leaf]
    if not os.path.isabs(name):
        candidates += _cached_snapshots(name, revision)
    for candidate in candidates:
        if is_model(candidate):
            return candidate
    looked = ", ".join(str(candidate) for candidate in dict.fromkeys(candidates)) or "nowhere: base.search is empty"
    closed = next(filter(None, (access.denial(candidate, "list") for candidate in candidates)), None)
    if closed is not None:
        raise Permanent(
            FaultCode.BASE_NOT_FOUND, f"find the base model {name!r}", f"{closed.cause}; looked in {looked}",
            access.remedy(closed, Path(closed.path)), path=closed.path,
        )  # fmt: skip
    raise Permanent(
        FaultCode.BASE_NOT_FOUND, f"find the base model {name!r}", f"no folder with its config.json and weights exists; looked in {looked}",
        f'set base.map."{name}" = "/folder/of/the/model", or add the folder that holds it to base.search',
    )  # fmt: skip


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
    return ModelSize(sum(one.size for one in tensors), sum(one.elements for one in tensors))


class Bases:
    """Finds bases and remembers their sizes: ten checkpoints of a run have one base."""

    def __init__(self, search: Sequence[Path], mapped: Mapping[str, Path]) -> None:
        self._search = search
        self._mapped = mapped
        self._sizes: dict[Path, ModelSize] = {}

    def find(self, checkpoint: CheckpointRef) -> tuple[Path | None, Fault | None]:
        """(folder, None), (None, None) for a full fine-tune, (None, fault) for a base that can't be used.

        Of a full fine-tune in pieces the base, if `base.map` has one for checkpoints that name none, says what its tensors are called.
        """
        if checkpoint.method == "full" and (checkpoint.layout not in SHARDED or UNNAMED not in self._mapped):
            return None, None
        try:
            folder = find_base(checkpoint.base_name or UNNAMED, checkpoint.base_revision, self._search, self._mapped)
            self._remember(folder)
        except CkptdError as error:
            return None, error.fault
        except OSError as error:
            return None, from_oserror(error, "read the base model").fault
        return folder, None

    def size(self, folder: Path) -> ModelSize:
        """Size of the model in `folder`; nothing for one that can't be read, which only the report is left to run for."""
        if folder not in self._sizes:
            try:
                self._remember(folder)
            except CkptdError:
                return ModelSize(0, 0)
        return self._sizes[folder]

    def _remember(self, folder: Path) -> None:
        """A full fine-tune is its own base, so the table would grow with every job."""
        self._sizes.pop(folder, None)
        while len(self._sizes) >= REMEMBERED:
            del self._sizes[next(iter(self._sizes))]
        self._sizes[folder] = measure(folder)
