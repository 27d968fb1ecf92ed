"""What trainers divide a step into: which folder of it is the checkpoint, and where pieces find the configuration that they lack.

The folders are those of verl (`global_step_N/actor/{lora_adapter,huggingface,dist_ckpt}`, `critic`), NeMo AutoModel
(`epoch_E_step_S/model/{consolidated,.hf_metadata}`, `optim`), VeOmni (`checkpoints/global_step_N/hf_ckpt`, `model_assets`), prime-rl
(`checkpoints/step_N/trainer`, `weights/step_N`, `broadcasts`) and OpenRLHF (`global_stepN_hf`, `_actor`, `_critic`). Their marks of a
finished save are only believed where they say that it is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from daemon.checkpoints.names import ADAPTERS, PARTS, run_of, step_folder
from daemon.contract.sharded import dcp_safetensors
from daemon.contract.sharded.deepspeed import LATEST
from daemon.contract.sharded.forms import is_ranks

UNFINISHED = ".incomplete"
"""NeMo AutoModel has this file in a step's directory until all of it is written (nemo_automodel/components/checkpoint/utils.py)."""
STABLE = "STABLE"
"""prime-rl writes this file when a step is whole (prime_rl/utils/utils.py, `get_latest_ckpt_step`)."""
_MERGED = "-merged"
"""ms-swift puts the model with the adapter of `checkpoint-N` into `checkpoint-N-merged` (swift/megatron/trainers/base.py)."""
_WEIGHTS = re.compile(r"(?:model|pytorch_model).*\.(?:safetensors|bin)")
_TAG = re.compile(r"global_step[0-9]{1,12}")
_TAG_HF = re.compile(r"global_step[0-9]{1,12}_hf")
_KEPT = {
    "broadcasts": (re.compile(r"step_[0-9]+"), "prime-rl gives the weights in it to its inference, and deletes them"),
    "_critic": (re.compile(r"latest|(?:best_)?global_step[0-9]+"), "it is the critic of OpenRLHF; the actor is exported"),
}
"""Folder → what lies in it, and why nothing of that is exported."""


def kept_back(folder: str, name: str) -> str:
    """Why nothing below a directory is taken, though checkpoints lie there; "" where that is not so."""
    known = _KEPT.get(name)
    return known[1] if known and any(known[0].fullmatch(entry) for entry in _names(folder)) else ""


def belongs_to(folder: str, name: str, entries: Mapping[str, bool]) -> str:
    """Why a directory with weights is no checkpoint of its own, but a part of one or beside one; "" where it may be one.

    `entries`: name → whether it is a folder.
    """
    if "lora_adapter" in entries and any(map(is_ranks, entries)) and _holds(folder, "lora_adapter", ADAPTERS):
        return "its adapter in lora_adapter/ is exported"
    if "consolidated" in entries and any(map(dcp_safetensors.NAME.fullmatch, entries)) and _has_weights(f"{folder}/consolidated"):
        return "the model in consolidated/ is exported"
    if "hf_ckpt" in entries and _has_weights(f"{folder}/hf_ckpt") and _holds(folder, "hf_ckpt", ("config.json",)):  # written last
        return "the model in hf_ckpt/ is exported"
    if LATEST in entries and any(map(_TAG.fullmatch, entries)) and any(map(_TAG_HF.fullmatch, (*entries, *_beside(folder, name)))):
        return "OpenRLHF's global_stepN_hf are exported"
    if name.endswith(_MERGED) and _holds(os.path.dirname(folder), name.removesuffix(_MERGED), ADAPTERS):
        return "the adapter beside it, with which it was merged, is exported"
    if name.startswith("iter_") and os.path.dirname(folder).endswith(_MERGED):
        return "the model around it is exported"
    if name not in ("critic", "optim", "huggingface", "dist_ckpt", "trainer"):
        return ""
    around = _names(os.path.dirname(folder))
    if name == "trainer" and any(entry.startswith("step_") for entry in _names(str(run_of(Path(folder)).parent / "weights"))):
        return "the models in prime-rl's weights/ are exported"
    if name == "critic" and "actor" in around:
        return "it is a critic; the actor is exported"
    if name == "optim" and "model" in around:
        return "it is an optimizer's state"
    if name == "huggingface" and any(map(is_ranks, around)):
        return "the pieces around it are exported"
    if name == "dist_ckpt" and _has_weights(f"{os.path.dirname(folder)}/huggingface"):
        return "the model in huggingface/ is exported"
    return ""


def earlier_forms(path: Path) -> list[Path]:
    """The directories around a part of a step that may have held the same model before it, as `global_step_20` for VeOmni's `hf_ckpt`."""
    step = step_folder(path)
    return [folder for folder in path.parents if folder.is_relative_to(step)] if step != path else []


def unfinished_step(path: Path) -> list[str]:
    """What the step's directory says of a save that has not ended; that nothing is said proves nothing."""
    marks = marks_of(path)
    if UNFINISHED in marks:
        return [f"{UNFINISHED} in {step_folder(path).name} says that it is still being written"]
    if path.name == "model" and os.path.isdir(path / "consolidated") and not _has_weights(str(path / "consolidated")):
        return ["consolidated/ has no weights yet"]
    if STABLE not in marks and _others_are_stable(step_folder(path)):
        return [f"{STABLE}, which its trainer writes last, is not there yet, as it is in other steps of this run"]
    return []


def marks_of(path: Path) -> list[str]:
    """The marks that are there, of those that `unfinished_step` goes by."""
    step = step_folder(path)
    mark = UNFINISHED if step.name.startswith("epoch_") else STABLE if step.name.startswith("step_") else ""
    return [mark] if mark and os.path.exists(step / mark) else []


def config_folders(path: Path) -> list[Path]:
    """Where the configuration of pieces may lie that have none beside them: their trainer's folders for it, then the run's."""
    run, step = run_of(path), step_folder(path)
    folders = [path / "huggingface", path / ".hf_metadata"]
    if run != path:
        folders += [run, run.parent / "model_assets", run.parent / "weights" / step.name]
    return folders


def has_begun(folder: str, name: str, entries: Mapping[str, bool]) -> bool:
    """Whether a save has begun of which the names don't tell: DeepSpeed's, which ends with `latest`, or a model in a part of a step."""
    if name in PARTS and any(map(_WEIGHTS.fullmatch, entries)) and step_folder(Path(folder)) != Path(folder):
        return True
    tags = [tag for tag in filter(_TAG.fullmatch, entries) if entries[tag]]
    return any(entry.endswith("_model_states.pt") for tag in tags for entry in _names(f"{folder}/{tag}"))


def _has_weights(folder: str) -> bool:
    return any(map(_WEIGHTS.fullmatch, _names(folder)))


def _others_are_stable(step: Path) -> bool:
    return step.name.startswith("step_") and any(
        entry.startswith("step_") and os.path.exists(step.parent / entry / STABLE) for entry in _names(str(step.parent))
    )


def _beside(folder: str, name: str) -> Iterable[str]:
    return _names(os.path.dirname(folder)) if name == "_actor" else ()


def _holds(folder: str, inner: str, names: Iterable[str]) -> bool:
    return any(os.path.isfile(f"{folder}/{inner}/{name}") for name in names)


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
