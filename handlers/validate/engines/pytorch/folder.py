"""Loads a transformers folder as the class of its task, every weight from its files. Imported only inside workers."""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.child import foreign
from handlers.models.folder import ModelFolder
from handlers.models.tasks import BY_NAME, task_of_config

POOLER = ("pooler.dense.weight", "pooler.dense.bias")
"""Weights of a bare encoder that vectors of tokens, and so of texts, don't depend on: a base that was saved with a head has none."""


def load_model(folder: Path, task: str, made: Container[str] = (), dtype: torch.dtype | str = torch.float32, **settings: Any) -> Any:
    """Give the model of a transformers folder, as its task's class; Permanent when it has no such class, and when weights would be made up,
    but for those `made` later.

    `dtype` is what it computes in, "auto" for what its configuration says; `settings` are keys of its configuration to change.
    """
    loader = _class_of(folder, task)
    try:
        with foreign.reading("load the model", folder, reader="transformers"):
            loaded: Any = loader.from_pretrained(folder, dtype=dtype, local_files_only=True, output_loading_info=True, **settings)
    except Permanent as error:
        if "Unrecognized configuration class" not in str(error.__cause__):
            raise
        config = json.loads((folder / "config.json").read_bytes())
        named = (config.get("architectures") or [config.get("model_type")])[0]
        raise Permanent(
            FaultCode.TASK_UNKNOWN, "load the model", f"it is a {named}, and ckptd has no check for models of this kind",
            "to publish it without a check, name the variant in validate.publish_unverified", path=folder,
        ) from error  # fmt: skip
    model, info = loaded
    lost = sorted(name for name in info["missing_keys"] if name not in made) + sorted(str(key) for key in info["mismatched_keys"])
    if lost:
        some = f"{len(lost)} weights are" if len(lost) != 1 else "1 weight is"
        cause = f"{some} missing from its files or of another shape, for example {lost[0]}"
        raise Permanent(FaultCode.MISSING_WEIGHTS, "load the model", cause, "restore the model's files", path=folder)
    if dtype == torch.float32:
        for weight in model.parameters():  # of a packed model transformers leaves norms and embeddings in the stored dtype
            if type(weight) is torch.nn.Parameter and weight.dtype in (torch.float16, torch.bfloat16):
                weight.data = weight.data.float()
    return model


def renamed_tensors(model: Any, folder: Path) -> dict[str, str]:
    """Give tensor in the files of `folder` → name in the loaded model, of those that transformers renames as it loads them.

    Tensors that a quantized layer has in place of its weight are renamed as that is (transformers 5.23, core_model_loading.py).
    """
    renamings = [change for change in get_model_conversion_mapping(model) if isinstance(change, WeightRenaming)]
    known = {f"{name}.weight": name for name, _ in model.named_modules()}
    stored = ModelFolder(folder).headers if any(folder.glob("*.safetensors")) else {}
    names = {}
    for name in stored:
        layer, _, part = name.rpartition(".")
        names[name] = rename_source_key(f"{layer}.weight", renamings, [], model.base_model_prefix, known)[0].removesuffix("weight") + part
    return {name: changed for name, changed in names.items() if name != changed}


def _class_of(folder: Path, task: str) -> Any:
    """Give what loads a folder for a task: of models of media the class that config.json names, since no auto class has them all; of
    others, and where transformers has no such class, the task's auto class."""
    config = json.loads((folder / "config.json").read_bytes())
    own = task_of_config(config)
    named = config["architectures"][0] if BY_NAME[task].media and own == BY_NAME[task] and "auto_map" not in config else ""
    return getattr(transformers, named or BY_NAME[task].auto, None) or getattr(transformers, BY_NAME[task].auto)
