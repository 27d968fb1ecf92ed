"""The modules of sentence-transformers go along with the merged weights. Called by the stage `merge` once these are written.

The checkpoint's modules win; an adapter that was trained without the library, on a base that is a folder of it, gets the base's.
"""

from __future__ import annotations

import json
from pathlib import Path

from daemon.contract.jobs.figures import MergeFigures
from handlers.merge.full_finetune import place_weights
from handlers.models import sentence
from handlers.models.files import read_json
from handlers.models.folder import BIN_SINGLE, SINGLE, ModelFolder
from handlers.models.tasks import TASKS, task_of_config

VECTORS = "feature-extraction"
_OPERATION = "take the modules of sentence-transformers along"
_HEADS = ("fill-mask", "text-generation")
"""Tasks whose heads the library leaves out when it loads a base that names one."""


def take_along(pin: Path, base: Path | None, merged: Path, figures: MergeFigures) -> tuple[MergeFigures, list[str]]:
    """Put the modules that count into the merged folder; give the figures with the task that this makes, and warnings.

    A model without modules is left as it is.
    """
    source = next((folder for folder in (pin, base) if folder is not None and sentence.read(folder) is not None), None)
    if source is None:
        return figures, []
    config = read_json(merged / "config.json", _OPERATION)
    task = task_of_config(config)
    name = task.name if task else None
    if source != pin and not (name == VECTORS or (name in _HEADS and _trained_for_vectors(pin))):
        kind = name or "a task that is not known here"
        return figures, [f"the base is a folder of sentence-transformers; its modules were left out, since the merged model is for {kind}"]
    warnings = sentence.place(source, merged)
    for folder in sorted(path.parent for path in merged.glob(f"*/{BIN_SINGLE}")):
        _as_safetensors(folder)
    chain = sentence.read(merged)
    if name not in _HEADS or chain is None or not chain.makes_vectors:
        return figures, warnings
    # The library reads the model without its head, and so must everything that reads this folder by its architecture.
    bare = _bare(str(config["architectures"][0]))
    (merged / "config.json").write_text(
        json.dumps({**config, "architectures": [bare]}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    warnings.append(
        f"config.json names {bare} instead of {config['architectures'][0]}: sentence-transformers reads the model without a head"
    )
    return figures.plus(task=VECTORS), warnings


def _trained_for_vectors(pin: Path) -> bool:
    """Return whether an adapter was trained on a model without a head."""
    config = read_json(pin / "adapter_config.json", _OPERATION)
    return isinstance(config, dict) and config.get("task_type") in (None, "FEATURE_EXTRACTION")


def _bare(architecture: str) -> str:
    """Return the class of the model without its head, whose name follows from that of the one with it."""
    ending = max((suffix for task in TASKS for suffix in task.endings if architecture.endswith(suffix)), key=len)
    return f"{architecture.removesuffix(ending)}Model"


def _as_safetensors(folder: Path) -> None:
    """Convert a module's pickled weights, which are then gone."""
    if not (folder / SINGLE).is_file():
        place_weights(ModelFolder(folder, "module"), folder)
    (folder / BIN_SINGLE).unlink()
