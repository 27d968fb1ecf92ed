"""The live model's base as the merge takes it: the weights as they are stored, or after nf4 and back as a QLoRA training saw them.

Called by `live_engine` inside the live worker. Which layers are packed, and what becomes of them, is the merge's own rule
(`handlers.merge.weights.nf4_round_trip`); one tensor at a time is read again from the base's files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.merge.adapters.adapter import read_adapter
from handlers.merge.adapters.name_mapping import NeedsPeft
from handlers.merge.plan.prepare import match_all
from handlers.merge.weights.nf4_round_trip import quantized_tensors, round_trip
from handlers.models.folder import ModelFolder
from handlers.tensors.sources import Source, StoredSource

_OPERATION = "give the live model the base that was merged into"


def rebase(base: Path, parameters: Mapping[str, torch.nn.Parameter], prefix: str, values: str, *, partly: bool = False) -> int:
    """Give the loaded base's linear layers the values that `merge.base` names; the number of tensors that were set.

    `parameters` are the base's by name, before PEFT wrapped it, `prefix` its class's base_model_prefix. With `partly`, where the model
    is of another class than the base's files, layers that it has not are left out. Permanent where the layers can't be found.
    """
    model = ModelFolder(base, "base")
    found = {name: _place(name, parameters, prefix) for name in quantized_tensors(model)}
    lost = sorted(name for name, place in found.items() if place is None)
    if lost and not (partly and len(lost) < len(found)):
        cause = f"{len(lost)} linear layers of the base are not in the loaded model under their names, for example {lost[0]}"
        raise Permanent(FaultCode.UNKNOWN_LAYOUT, _OPERATION, cause, 'set merge.base to "original"', path=base)
    for name, place in found.items():
        if place is None:
            continue
        source: Source
        if values == "original":
            info = model.headers[name]
            source = StoredSource(name, model.path_of(info), info)
        else:
            source = round_trip(model, name, double=values == "dequantized-double")
        exact = torch.empty(source.shape, dtype=torch.float32)
        source.rows(0, source.shape[0], exact)
        if exact.shape != parameters[place].shape:
            cause = f"{name} is stored as {list(exact.shape)} and loaded as {list(parameters[place].shape)}"
            raise Permanent(FaultCode.UNKNOWN_LAYOUT, _OPERATION, cause, 'set merge.base to "original"', path=base)
        parameters[place].data = exact  # not copied into the old memory, which may be the base's file
    return len(found) - len(lost)


def why_not(adapter: Path, base: Path) -> str | None:
    """Why the merge could not take another base than the original for this adapter, as a clause; None where it could."""
    try:
        match_all([(read_adapter(adapter), 1.0)], ModelFolder(base, "base"), "dequantized")
    except NeedsPeft as reason:
        return f"the adapter can be merged only into the original base, because {reason}"
    except Permanent as error:
        return f"the adapter can be merged only into the original base, because {error.fault.cause}"
    return None


def _place(name: str, parameters: Mapping[str, torch.nn.Parameter], prefix: str) -> str | None:
    """The loaded name of a stored tensor: a base may be saved with the prefix of its body or without, whatever class loads it."""
    candidates = (name, f"{prefix}.{name}", name.partition(".")[2])
    return next((one for one in candidates if one in parameters), None)
