"""Which stages of a job can't be made of its model, by config.json alone: refused at the job's start, before anything is loaded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.stages import StageSpec
from daemon.contract.models.configs import shown
from daemon.contract.values import Json


def unsuited(specs: Iterable[StageSpec], config: Json, asked_by: str) -> dict[str, Fault]:
    """Stage → why it can't be made of a model with this configuration. `asked_by`: the key or option that names variants."""
    nested = config.get("text_config")
    types = {kind for part in (config, nested) if isinstance(part, Mapping) and isinstance(kind := part.get("model_type"), str)}
    return {
        spec.name: Fault(
            code=FaultCode.FORM_NOT_POSSIBLE, operation=f"make the variant {spec.name}",
            cause=f"it is made of models of the types {', '.join(sorted(spec.model_types))}, and this one is of the type"
            f" {shown(config.get('model_type'))}",
            remedy=f"leave {spec.name} out of {asked_by}",
        )
        for spec in specs
        if spec.model_types and types and spec.model_types.isdisjoint(types)
    }  # fmt: skip


def useless(name: str) -> Fault:
    """What is said of a stage of a job of whose variants none can be made."""
    return Fault(
        code=FaultCode.SKIPPED, operation=f"run the stage {name}", cause="nothing that was asked for can be made of the model",
        remedy="ask for variants that can be made of it",
    )  # fmt: skip
