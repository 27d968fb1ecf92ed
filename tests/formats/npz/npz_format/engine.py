"""The engine that checks the format: the arrays in the model's own class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from handlers.models.tasks import BY_NAME
from handlers.validate.engines.pytorch.torch_causal import TorchEngine
from handlers.validate.engines.registry import EngineSpec


class NpzEngine(TorchEngine):
    """A language model of arrays."""

    def _load(self, spec: EngineSpec) -> Any:
        config = transformers.AutoConfig.from_pretrained(spec.folder)
        model = getattr(transformers, BY_NAME[spec.task].auto).from_config(config).float()
        with np.load(Path(spec.folder, "weights.npz")) as stored:
            lost, unknown = model.load_state_dict({name: torch.from_numpy(stored[name]) for name in stored}, strict=False)
        model.tie_weights()
        assert not unknown and set(lost) <= {"lm_head.weight"}
        model.generation_config = transformers.GenerationConfig.from_pretrained(spec.folder)
        return model
