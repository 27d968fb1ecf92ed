"""PEFT's own loading of an adapter, from its folder as the trainer wrote it, and what PEFT reports of it.

Called by the live model's engines. Which weight a key means, with which rank and scale, is PEFT's decision alone.
`PeftModel.from_pretrained` drops the lists of what it did not use and did not find: here they are read, since a model that lacks a part of
its adapter is no reference.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from peft import __version__ as peft_version
from safetensors import safe_open

from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.child import foreign

OPERATION = "load the live model"
NAME = "default"
"""PEFT's name of an adapter that has been given none."""
SHOWN = 3
"""Keys that a sentence names."""
_INSIDE = re.compile(r"\.(base_layer|token_adapter|modules_to_save|original_module)(?=\.)")
"""Wrappers of PEFT inside of which a file has a weight of the base itself."""


_MISMATCH = re.compile(r"size mismatch for (\S+)\.lora_([AB])\.\S+: .*Size\(\[(\d+), (\d+)\]\).*Size\(\[(\d+), (\d+)\]\)")
"""torch's words of a factor that has other sizes in the file (first) than in the model."""


def in_base(key: str) -> str:
    """Give the name in the base of a tensor that the adapter's file holds whole."""
    return _INSIDE.sub("", key.removeprefix("base_model.model."))


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """Give key → shape of every tensor in the adapter's file; of none where there is no file that PEFT reads."""
    path = folder / "adapter_model.safetensors"
    if path.is_file():
        with safe_open(path, framework="pt") as stream:
            return {key: tuple(stream.get_slice(key).get_shape()) for key in stream.keys()}  # noqa: SIM118
    return {key: tuple(value.shape) for key, value in _tensors(folder).items()}


def wrap(model: Any, folder: Path) -> tuple[Any, list[str]]:
    """Give the model with the adapter, as `PeftModel.from_pretrained` makes it, and what there is to tell of that.

    Permanent where PEFT can't load the adapter, or left out a tensor of it whose values are nowhere in the model.
    """
    with _reports() as reports:
        try:
            wrapped = PeftModel.from_pretrained(model, str(folder), config=_config(folder), is_trainable=False)
        except Exception as error:  # whatever PEFT and torch raise for an adapter that does not fit
            if isinstance(error, CkptdError) or foreign.of_machine(error):
                raise
            raise (_of_older_peft(folder, str(error)) or _not_loadable(folder, foreign.in_words(error))) from error
    report = reports[-1]
    if lost := _lost(report.unexpected_keys, NAME, folder):
        raise _not_loadable(folder, f"it leaves {_some(lost)} of the adapter out, for which it has no place in the model")
    return wrapped, _missing(report.missing_keys, wrapped)


def _config(folder: Path) -> Any:
    """Give adapter_config.json as PEFT reads it, without dropout: that acts in training alone, but PEFT takes no adapter that names it over
    the parameters of stacked experts, as it reads those that were trained on experts with layers of their own."""
    config = PeftConfig.from_pretrained(str(folder))
    if getattr(config, "lora_dropout", 0.0):
        config.lora_dropout = 0.0
    return config


def add(wrapped: Any, folder: Path, name: str) -> None:
    """Load one more adapter beside those that are there. Permanent where PEFT does not take it, or has no place for a tensor of it."""
    try:
        unplaced = _lost(wrapped.load_adapter(str(folder), name, is_trainable=False).unexpected_keys, name, folder)
    except Exception as error:
        if isinstance(error, CkptdError) or foreign.of_machine(error):
            raise
        unplaced = [foreign.in_words(error)]
    if unplaced:
        raise Permanent(
            FaultCode.ADAPTERS_NOT_ADDITIVE, OPERATION,
            f"PEFT can't load this adapter together with the checkpoint's: {unplaced[0]}", "leave it out of merge.add", path=folder,
        )  # fmt: skip


@contextlib.contextmanager
def _reports() -> Iterator[list[Any]]:
    """Inside, the results of PEFT's `load_adapter` are noted."""
    plain, results = PeftModel.load_adapter, list[Any]()

    def noting(self: Any, *given: Any, **named: Any) -> Any:
        results.append(plain(self, *given, **named))
        return results[-1]

    PeftModel.load_adapter = noting  # type: ignore[method-assign]
    try:
        yield results
    finally:
        PeftModel.load_adapter = plain  # type: ignore[method-assign]


def _lost(unexpected: Collection[str], name: str, folder: Path) -> list[str]:
    """Give the keys that PEFT did not use and whose values it did not take from another key either.

    PEFT writes some tensors twice: an embedding of a resized vocabulary that was trained whole, and trained rows of tied weights. It reads
    them under one name alone. A wrapper's `original_module` is the base as it was before the training.
    """
    if not unexpected:
        return []
    tensors = _tensors(folder)
    unused = {key: key if key in tensors else key.replace(f".{name}", "", 1) for key in unexpected}
    used = [value for key, value in tensors.items() if key not in unused.values()]
    lost = []
    for key in sorted(unused.values()):
        mine = tensors.get(key)
        taken = mine is not None and any(value.shape == mine.shape and torch.equal(value, mine) for value in used)
        if not taken and ".original_module." not in key:
            lost.append(key)
    return lost


def _missing(keys: Collection[str], model: torch.nn.Module) -> list[str]:
    """Give what to tell of parameters that the configuration names and the file does not hold.

    A parameter that layers share (VB-LoRA's vectors) is saved once, and is missing under its other names alone.
    """
    named = {name: id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)} if keys else {}
    loaded = {parameter for name, parameter in named.items() if name not in keys}
    names = sorted(key.removeprefix("base_model.model.") for key in keys if named.get(key) not in loaded)
    if not names:
        return []
    return [
        f"The adapter's file has no weights for {_some(names)}, which its configuration names: there PEFT keeps the values with which a"
        " training begins."
    ]


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Give the tensors of the adapter's file, which PEFT would read too; none where there is no file."""
    path = folder / "adapter_model.safetensors"
    if path.is_file():
        with safe_open(path, framework="pt") as stream:
            return {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118
    path = path.with_suffix(".bin")
    if not path.is_file():
        return {}
    try:
        table: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        if foreign.of_machine(error):
            raise
        raise _not_loadable(folder, foreign.in_words(error)) from error
    return {key: value for key, value in table.items() if isinstance(value, torch.Tensor)}


def _some(names: Collection[str]) -> str:
    first = ", ".join(list(names)[:SHOWN])
    return first if len(names) <= SHOWN else f"{len(names)} tensors (for example {first})"


def _not_loadable(folder: Path, why: str) -> Permanent:
    return Permanent(
        FaultCode.ADAPTER_NOT_LOADABLE, OPERATION, f"PEFT itself can't put this adapter on its base: {why}",
        "give the base that it was trained on, or save the adapter again with an adapter_config.json that fits its weights", path=folder,
    )  # fmt: skip


def _of_older_peft(folder: Path, said: str) -> Permanent | None:
    """Give the error for factors of stacked experts that PEFT saved before 0.19; None where torch's error `said` is about anything else."""
    settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    version = settings.get("peft_version")  # releases before 0.18 wrote none; PeftConfig would give the installed one
    if not settings.get("target_parameters") or not re.match(r"0\.(\d|1[0-8])\.", version or "0.17.") or not _swapped(said):
        return None
    return Permanent(
        FaultCode.ADAPTER_NOT_LOADABLE, OPERATION,
        f"the adapter was saved by PEFT {version or 'before 0.18'}, which laid out the factors of stacked experts (target_parameters) the"
        f" other way round than PEFT does since 0.19: PEFT {peft_version} can't load it, so there is no live model to compare with",
        "merge it with the PEFT that trained it (merge_and_unload) and export the result as a full fine-tune", path=folder,
    )  # fmt: skip


def _swapped(said: str) -> bool:
    """Tell whether all factors of which torch says that sizes differ have those of a weight whose inputs and outputs are exchanged."""
    sizes = {(module, factor): tuple(map(int, rest)) for module, factor, *rest in _MISMATCH.findall(said)}
    modules = {module for module, _ in sizes}
    if not modules or not len(sizes) == 2 * len(modules) == said.count("size mismatch for"):
        return False
    pairs = [(sizes[module, "A"], sizes[module, "B"]) for module in modules]  # each: stored rows and columns, those in the model
    return all(a[1] == b[2] and b[0] == a[3] and a[0] == a[2] and b[1] == b[3] for a, b in pairs)
