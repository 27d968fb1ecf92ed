"""A model's structure without its weights: which modules the class named in config.json really builds.

Called by the merge when names do not fit, and before PEFT loads a model. It imports transformers (seconds), but
allocates no weight: modules live on torch's meta device. Custom code of a model folder is never executed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from daemon.errors import Permanent
from handlers.model_files import read_json


def model_class(folder: Path) -> Any:
    """The transformers class that config.json names first; Permanent when transformers has none of that name."""
    import transformers

    config = read_json(folder / "config.json", "read the model's configuration")
    names = config.get("architectures") or ["none"]
    found = getattr(transformers, str(names[0]), None)
    if found is None or not hasattr(found, "from_pretrained"):
        raise Permanent(
            "unknown-architecture",
            "load the base model",
            f"transformers {transformers.__version__} has no class {names[0]}, which config.json names",
            "install a transformers release that knows the architecture; code from model folders is never executed",
            path=folder,
        )
    return found


def module_names(folder: Path) -> set[str] | None:
    """Paths of all modules of the model; None when transformers does not know the architecture or can't build it."""
    import torch

    try:
        cls = model_class(folder)
        with torch.device("meta"):
            model = cls(cls.config_class.from_pretrained(folder))
    except (Permanent, ValueError, TypeError, KeyError, AttributeError, ImportError, OSError):
        return None
    return {name for name, _ in model.named_modules() if name}
