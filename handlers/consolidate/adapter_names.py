"""What PEFT calls the tensors of an adapter, found from what a training's state calls them.

A wrapped model's state has the wrappers' names before and within each name, and the adapter's own name behind `lora_A`;
`PeftModel.save_pretrained` (peft/utils/save_and_load.py, `get_peft_model_state_dict`) writes neither.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.sharded.forms import is_adapters
from daemon.contract.values import Json

OPERATION = "put the checkpoint's pieces together"
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})
_PEFT = "base_model.model."
_SAVE = "load it in the trainer, save the adapter with save_pretrained and export the result"
Shape = tuple[int, ...]
_NAMED = re.compile(
    r"(?P<before>.*\.(?:lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|hada_\w+|lokr_\w+|ia3_l|oft_\w+|boft_\w+|vera_lambda_\w+"
    r"|randlora_\w+|bone_\w+|c3a_kernel|trainable_tokens_delta))\.(?P<adapter>(?!weight$|bias$)[^.]+)(?P<after>\.weight|\.bias)?"
)
_SAVED = re.compile(r"(?P<before>.*)\.modules_to_save\.(?P<adapter>[^.]+)\.(?P<after>.+)")


def unwrapped(name: str) -> str:
    """Return a name without those of the wrappers that torch and Lightning put around modules."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return ".".join(parts)


def peft_names(names: Collection[str], modules: Collection[str]) -> dict[str, str]:
    """Name in the checkpoint → PEFT's, for the tensors of the adapter; those of the base beside them are left out.

    `modules`: paths of the base's modules, by which a prefix is found where PEFT's own is not there. Permanent where the tensors are
    those of several adapters, or where no prefix, or more than one, makes them fit.
    """
    plain = {name: unwrapped(name) for name in names}
    with_base = any(".base_layer." in name or ".original_module." in name for name in plain.values())
    mine = {name: said for name, said in plain.items() if not with_base or is_adapters(said) or ".modules_to_save." in said}
    adapters = {match["adapter"] for said in mine.values() if (match := _NAMED.fullmatch(said) or _SAVED.fullmatch(said))}
    chosen = next(iter(adapters)) if len(adapters) == 1 else "default"
    if adapters and chosen not in adapters:
        raise _refused(f"it holds several adapters ({', '.join(sorted(adapters)[:5])}), and none of them is called default",
                       "save the adapter that you want with save_pretrained and export the result")  # fmt: skip
    short_names = {name: short for name, said in mine.items() if (short := _without_adapter(said, chosen)) is not None}
    named = _prefixed(short_names, modules)
    _refuse_twice(named)
    return named


def _refuse_twice(named: Mapping[str, str]) -> None:
    """Raise Permanent where two tensors would get one name: which of them is meant nothing says."""
    first = dict[str, str]()
    for name, said in named.items():
        if first.setdefault(said, name) != name:
            raise _refused(f"{first[said]} and {name} both get the name {said}, and only one of them can have it", _SAVE)


def refuse_trained_beside(left_out: Mapping[str, Shape], config: Json, base: Mapping[str, Shape]) -> None:
    """Raise Permanent where what would be left out as the base's was trained, and belongs to the adapter.

    `left_out`: name in the checkpoint → shape; `config`: adapter_config.json; `base`: name → shape of the base's own tensors.
    """
    for name, shape in sorted(left_out.items()):
        own = re.sub(r"\.(?:base_layer|original_module|token_adapter)(?=\.)", "", unwrapped(name).rpartition(_PEFT)[2])
        if name.endswith(".bias") and config.get("bias", "none") != "none":
            raise _refused(
                f"its adapter_config.json says that biases were trained ({config['bias']}), but {name} is among the base's tensors", _SAVE
            )
        if own in base and base[own] != shape:
            raise _refused((
                f"{name} has the shape {list(shape)}, but {own} of the base has {list(base[own])}: it was changed for this"
                " training"
            ),
                           _SAVE)  # fmt: skip


def _without_adapter(name: str, adapter: str) -> str | None:
    """Return the name without the adapter's; None for a tensor of another adapter, or one that is the base's."""
    if match := _SAVED.fullmatch(name):
        return f"{match['before']}.{match['after']}" if match["adapter"] == adapter else None
    if match := _NAMED.fullmatch(name):
        if match["adapter"] != adapter:
            return None
        dora = match["before"].endswith("lora_magnitude_vector")  # PEFT keeps it as a plain parameter's name
        return match["before"] + ("" if dora else match["after"] or "")
    return name


def _prefixed(names: dict[str, str], modules: Collection[str]) -> dict[str, str]:
    heads = {said.partition(_PEFT)[0] for said in names.values() if _PEFT in said}
    if heads:
        strays = [said for said in names.values() if _PEFT not in said]
        if len(heads) > 1 or strays:
            raise _unmatched([*sorted(heads)[:2], *strays[:3]])
        (head,) = heads
        return {name: said.removeprefix(head) for name, said in names.items()}
    fitting = [prefix for prefix in prefixes(names.values()) if all(_is_in(said.removeprefix(prefix), modules) for said in names.values())]
    if len(fitting) != 1:
        raise _unmatched(sorted(names.values())[:5])
    return {name: _PEFT + said.removeprefix(fitting[0]) for name, said in names.items()}


def _is_in(name: str, modules: Collection[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:end]) in modules for end in range(1, len(parts) + 1))


def prefixes(names: Iterable[str]) -> list[str]:
    """Return what may have been put before all names: "", and the leading parts that the names have in common."""
    common: list[str] | None = None
    for name in names:
        parts = name.split(".")[:-1]
        if common is None:
            common = parts
        while common and parts[: len(common)] != common:
            common = common[:-1]
    return ["", *(".".join((common or [])[:end]) + "." for end in range(1, len(common or []) + 1))]


def _unmatched(names: Collection[str]) -> Permanent:
    return _refused(
        f"its tensors ({', '.join(names)} …) do not match the base, or match it in more than one way",
        "save the adapter with save_pretrained and export the result, or name the base that it was trained on with --base",
    )


def _refused(cause: str, remedy: str) -> Permanent:
    return Permanent(FaultCode.SHARDS_UNMATCHED, OPERATION, cause, remedy)
