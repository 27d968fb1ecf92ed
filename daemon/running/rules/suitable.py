"""Which stages of a job can't be made of its model, by config.json alone: refused at the job's start, before anything is loaded. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.stages import StageSpec
from daemon.contract.jobs.options import Work
from daemon.contract.models.caches import kept_besides
from daemon.contract.models.configs import rope_type, shown
from daemon.contract.models.media import NOUNS, media_of
from daemon.contract.models.widths import as_wide_as_vocabulary
from daemon.contract.values import Json


def unsuited(specs: Iterable[StageSpec], config: Json, work: Work, asked: Sequence[str]) -> dict[str, Fault]:
    """Stage → why it can't be made of a model with this configuration, one fault for all that have the same cause.

    `specs`: in plan order. `asked`: the variants that are wanted, in plan order; the fault says which of them can be made.
    """
    causes = dict[str, _Cause]()
    for spec in specs:
        cause = _cause(spec, config, work) or next((causes[need] for need in spec.needs if need in causes), None)
        if cause and not spec.checks:
            causes[spec.name] = cause
    left = [name for name in asked if name not in causes]
    names: dict[_Cause, list[str]] = {}
    for name, cause in causes.items():
        if name in asked:
            names.setdefault(cause, []).append(name)
    return {name: _fault(names.get(cause) or [name], cause, left) for name, cause in causes.items()}


class _Cause(NamedTuple):
    """Why a stage can't be made, and what of the configuration would let it be made, as a clause; "" for nothing."""

    text: str
    way: str = ""


def _fault(names: Sequence[str], cause: _Cause, left: Sequence[str]) -> Fault:
    rest = f"; of what was asked for, {_listed(left)} can be made" if left else ""
    way = f", or {cause.way}" if cause.way else ""
    return Fault(
        code=FaultCode.FORM_NOT_POSSIBLE, operation=f"make the variant{'s' if names[1:] else ''} {_listed(names)}", cause=cause.text,
        remedy=f"leave {_listed(names)} out of export.variants{way}{rest}",
    )  # fmt: skip


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _cause(spec: StageSpec, config: Json, work: Work) -> _Cause | None:
    """Why a stage can't be made of the model; None where it can, or config.json does not tell."""
    nested = config.get("text_config")
    types = {kind for part in (config, nested) if isinstance(part, Mapping) and isinstance(kind := part.get("model_type"), str)}
    kind = shown(config.get("model_type"))
    if spec.text_only and spec.media_types.isdisjoint(types) and (media := media_of(config)):
        return _Cause(f"it can't be made of models of the type {kind}, which read {NOUNS[media]}")
    if spec.model_types and types and spec.model_types.isdisjoint(types):
        return _Cause(f"it is made of models of the types {', '.join(sorted(spec.model_types))}, and this one is of the type {kind}")
    if why := next((why for name, why in spec.not_types if name in types), None):
        return _Cause(f"this model is of the type {kind}: {why}")
    if why := next((why for name, why in spec.failing_types if name in types), None):
        if work.validation.on_failed_check == "publish":
            return None
        way = 'set validate.on_failed_check = "publish", with which it is published as failed'
        return _Cause(f"this model is of the type {kind}: {why}, so that its check would fail", way)
    if spec.apart_from_vocabulary and (width := as_wide_as_vocabulary(config)):
        return _Cause(
            f"it would take layers inside the model for the output layer, since they have {width:,} outputs, as many as vocab_size"
        )
    scaling = rope_type(config)
    if known := next((known for name, known in spec.ropes if name in types and scaling not in known), None):
        return _Cause(
            f"it is made of models of the type {kind} whose rotary angles have the scaling {' or '.join(known)}, not {shown(scaling)}"
        )
    if not spec.kv_cache or not (clause := kept_besides(config)):
        return None
    if spec.kv_cache != "always" and not work.setting(spec.kv_cache):
        return None
    way = "" if spec.kv_cache == "always" else f"set {spec.kv_cache} = false, with which each new token costs a pass over all before it"
    return _Cause(f"it decodes with a cache of keys and values, but this model is of the type {kind}, and {clause}", way)


def useless(name: str) -> Fault:
    """What is said of a stage of a job of whose variants none can be made."""
    return Fault(
        code=FaultCode.SKIPPED, operation=f"run the stage {name}", cause="nothing that was asked for can be made of the model",
        remedy="ask for variants that can be made of it",
    )  # fmt: skip
