"""A model's structure without its weights: the modules and parameters that the class named in config.json builds, and which are shared.

Called by the merge when names do not fit or weights may be shared, and before PEFT loads a model. It imports transformers (seconds),
but allocates no weight: modules live on torch's meta device. Custom code of a model folder is never executed.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.models.folder import ModelFolder

HEADED = {"SEQ_CLS": "SEQUENCE_CLASSIFICATION", "TOKEN_CLS": "TOKEN_CLASSIFICATION", "QUESTION_ANS": "QUESTION_ANSWERING"}
"""PEFT's task type → the part of transformers' table of classes that has a head for it."""


@dataclass(frozen=True)
class Structure:
    """What a class builds. `shapes` has every name of every parameter; `groups` the names that share one."""

    modules: frozenset[str]
    shapes: dict[str, tuple[int, ...]]
    groups: tuple[tuple[str, ...], ...]
    transposed: frozenset[str]
    """Modules whose weights are stored as inputs × outputs."""
    state: frozenset[str]
    """All names of a state dict: parameters and the buffers that are saved."""
    embedding: str = ""
    """Path of the module that the class calls its input embeddings."""

    def group(self, parameter: str) -> tuple[str, ...]:
        """Return all names of the parameter."""
        return next((group for group in self.groups if parameter in group), (parameter,))


def model_class(model: ModelFolder) -> Any:
    """Return the transformers class that config.json names first; Permanent when transformers has none of that name."""
    import transformers

    names = model.config.get("architectures")
    if not names:
        raise Permanent(
            FaultCode.UNKNOWN_ARCHITECTURE,
            "load the base model",
            "config.json names no architecture",
            'name the model\'s class there, for example "architectures": ["Qwen3ForCausalLM"]',
            path=model.path,
        )
    cls = getattr(transformers, str(names[0]), None)
    if cls is None or not hasattr(cls, "from_pretrained"):
        raise Permanent(
            FaultCode.UNKNOWN_ARCHITECTURE,
            "load the base model",
            f"transformers {transformers.__version__} has no class {names[0]}, which config.json names",
            "install a transformers release that knows the architecture; code from model folders is never executed",
            path=model.path,
        )
    return cls


def headed_class(model: ModelFolder, task: str) -> Any:
    """Return the class of the same architecture with a head for one of PEFT's task types; None when there is none."""
    import transformers
    from transformers.models.auto import modeling_auto

    if task not in HEADED:
        return None
    table = getattr(modeling_auto, f"MODEL_FOR_{HEADED[task]}_MAPPING_NAMES", {})
    return getattr(transformers, str(table.get(model.config.get("model_type"))), None)


def build(model: ModelFolder, cls: Any, **settings: Any) -> Structure | None:
    """Return the structure of `cls` with the model's configuration and `settings`; None when it can't be built."""
    import torch

    try:
        with torch.device("meta"):
            built = cls(cls.config_class.from_pretrained(model.path, **settings))
            built.tie_weights()
    except MemoryError:
        raise
    except Exception:  # transformers' own checks of a configuration raise a type that is none of Python's
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    owners: dict[int, list[str]] = {}
    for name, parameter in built.named_parameters(remove_duplicate=False):
        shapes[name] = tuple(parameter.shape)
        owners.setdefault(id(parameter), []).append(name)
    modules = dict(built.named_modules(remove_duplicate=False))
    transposed = {name for name, module in modules.items() if type(module).__name__ == "Conv1D" or getattr(module, "is_transposed", False)}
    groups = tuple(tuple(names) for names in owners.values() if len(names) > 1)
    embedding = _input_embeddings(built)
    return Structure(
        frozenset(name for name in modules if name), shapes, groups, frozenset(transposed), frozenset(built.state_dict()),
        next((name for name, module in modules.items() if module is embedding), ""),
    )  # fmt: skip


def _input_embeddings(model: Any) -> Any:
    try:
        return model.get_input_embeddings()
    except (NotImplementedError, AttributeError):  # a model that reads no tokens
        return None


@functools.lru_cache(4)
def _structure(folder: Path, mtime: int) -> Structure | None:
    # Cached by path, since a ModelFolder as the key would keep all its headers in memory.
    model = ModelFolder(folder)
    try:
        return build(model, model_class(model))
    except Permanent:
        return None


def structure(model: ModelFolder) -> Structure | None:
    """Return what the class in config.json builds; None when transformers does not know the architecture or can't build it."""
    return _structure(model.path, os.stat(model.path / "config.json").st_mtime_ns)


def module_names(model: ModelFolder) -> frozenset[str] | None:
    """Return the paths of all modules of the model; None when transformers does not know the architecture or can't build it."""
    built = structure(model)
    return None if built is None else built.modules
