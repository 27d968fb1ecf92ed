"""The engine of TensorRT-LLM's checkpoints: read back to transformers' names, and loaded into the model's own class.

Such a check proves that the files are right, not that TensorRT-LLM reads them so. The configuration is made of the checkpoint's own
config.json alone. Before that, every weight is compared with the merged model's, bit by bit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.models.folder import GENERATION, ModelFolder
from handlers.tensorrt.llm import mapping, readback
from handlers.tensorrt.llm.stage import CONFIG, WEIGHTS
from handlers.validate.engines.pytorch.torch_causal import TorchEngine
from handlers.validate.engines.registry import EngineSpec

_OPERATION, _AGAIN = "read the checkpoint back", "make the variant again"


class TrtLlmEngine(TorchEngine):
    """A language model."""

    @staticmethod
    def prepare(spec: EngineSpec) -> None:
        """Nothing: its configuration names no class of transformers."""

    @staticmethod
    def weights_difference(spec: EngineSpec, merged: Path) -> str | None:
        """Why its weights are not those of the merged model, to the bit, as a clause; None where they are."""
        folder = Path(spec.folder)
        clause = readback.difference(folder / WEIGHTS, _config(folder), ModelFolder(merged))
        return f"its weights are not those of the merge: {clause}. So it is damaged, or of another checkpoint" if clause else None

    def _load(self, spec: EngineSpec) -> Any:
        folder = Path(spec.folder)
        given = _config(folder)
        said = dict(mapping.config_back(given))
        config = AutoConfig.for_model(said.pop("model_type"), **said)
        state: dict[str, torch.Tensor] = {}
        try:
            with safe_open(str(folder / WEIGHTS), "pt") as file:
                for name in file.keys():  # noqa: SIM118  # it is no mapping
                    state |= mapping.apart(name, file.get_tensor(name).float(), given)
        except mapping.Unmapped as error:
            raise Permanent(FaultCode.MISSING_WEIGHTS, _OPERATION, str(error), _AGAIN, path=folder) from error
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        lost = sorted(set(model.state_dict()) ^ set(state))
        if lost:
            cause = f"{lost[0]} and {len(lost) - 1} more are missing or too many" if len(lost) > 1 else f"{lost[0]} is missing or too many"
            raise Permanent(FaultCode.MISSING_WEIGHTS, _OPERATION, cause, _AGAIN, path=folder)
        model.load_state_dict(state)
        if (folder / GENERATION).is_file():
            model.generation_config = GenerationConfig.from_pretrained(folder)
        return model


def _config(folder: Path) -> dict[str, Any]:
    given: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return given
