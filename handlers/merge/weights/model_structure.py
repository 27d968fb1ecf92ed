"""A model's structure without its weights: which modules and parameters the class named in config.json really builds, and which are one.

Called by the merge when names do not fit or weights may be shared, and before PEFT loads a model. It imports transformers (seconds),
but allocates no weight: modules live on torch's meta device. Custom code of a model folder is never executed.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.models.files import read_json

HEADED = {"SEQ_CLS": "SEQUENCE_CLASSIFICATION", "TOKEN_CLS": "TOKEN_CLASSIFICATION", "QUESTION_ANS": "QUESTION_ANSWERING"}
"""PEFT's task type → the part of transformers' table of classes that has a head for it."""


@dataclass(frozen=True)
class Structure:
    """What a class builds. `shapes` has every name of every parameter; `groups` the names that share one."""

    modules: frozenset[str]
    shapes: dict[str, tuple[int, ...]]
    groups: tuple[tuple[str, ...], ...]
    turned: frozenset[str]
    """Modules whose weights lie as inputs × outputs."""
    state: frozenset[str]
    """All names of a state dict: parameters and the buffers that are saved."""

    def group(self, parameter: str) -> tuple[str, ...]:
        """All names of the parameter."""
        return next((group for group in self.groups if parameter in group), (parameter,))


def model_class(folder: Path) -> Any:
    """The transformers class that config.json names first; Permanent when transformers has none of that name."""
    import transformers

    config = read_json(folder / "config.json", "read the model's configuration")
    names = config.get("architectures") or ["none"]
    found = getattr(transformers, str(names[0]), None)
    if found is None or not hasattr(found, "from_pretrained"):
        raise Permanent(
            FaultCode.UNKNOWN_ARCHITECTURE,
            "load the base model",
            f"transformers {transformers.__version__} has no class {names[0]}, which config.json names",
            "install a transformers release that knows the architecture; code from model folders is never executed",
            path=folder,
        )
    return found


def headed_class(folder: Path, task: str) -> Any:
    """The class of the same architecture with a head for one of PEFT's task types; None when there is none."""
    import transformers
    from transformers.models.auto import modeling_auto

    if task not in HEADED:
        return None
    table = getattr(modeling_auto, f"MODEL_FOR_{HEADED[task]}_MAPPING_NAMES", {})
    config = read_json(folder / "config.json", "read the model's configuration")
    return getattr(transformers, str(table.get(config.get("model_type"))), None)


def build(folder: Path, cls: Any, **settings: Any) -> Structure | None:
    """The structure of `cls` with the folder's configuration and `settings`; None when it can't be built."""
    import torch

    try:
        with torch.device("meta"):
            model = cls(cls.config_class.from_pretrained(folder, **settings))
            model.tie_weights()
    except (Permanent, ValueError, TypeError, KeyError, AttributeError, ImportError, OSError, RuntimeError):
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        shapes[name] = tuple(parameter.shape)
        owners.setdefault(id(parameter), []).append(name)
    modules = dict(model.named_modules(remove_duplicate=False))
    turned = {name for name, module in modules.items() if type(module).__name__ == "Conv1D" or getattr(module, "is_transposed", False)}
    groups = tuple(tuple(names) for names in owners.values() if len(names) > 1)
    return Structure(frozenset(name for name in modules if name), shapes, groups, frozenset(turned), frozenset(model.state_dict()))


@functools.lru_cache(4)
def _structure(folder: Path, mtime: int) -> Structure | None:
    try:
        return build(folder, model_class(folder))
    except Permanent:
        return None


def structure(folder: Path) -> Structure | None:
    """What the class in config.json builds; None when transformers does not know the architecture or can't build it."""
    return _structure(folder, os.stat(folder / "config.json").st_mtime_ns)


def module_names(folder: Path) -> set[str] | None:
    """Paths of all modules of the model; None when transformers does not know the architecture or can't build it."""
    found = structure(folder)
    return None if found is None else set(found.modules)
