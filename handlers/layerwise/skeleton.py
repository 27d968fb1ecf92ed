"""A model without its weights, and which part of it takes which tensors of the files.

`build` makes the model as transformers would, with placeholders for parameters; PEFT may then wrap it as usual (`adapters.py`). `furnish`
gives each placeholder its door. What can't be run this way is refused with its reason: a model of which one tensor would be read otherwise
than transformers reads it must not become a reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.child.process import small_pages
from handlers.layerwise.lockstep import Door
from handlers.layerwise.parts import Find, HeadDoor, PartDoor, Pool, Slot, StreamedWeight, read
from handlers.models.folder import ModelFolder
from handlers.models.releases.transformers_once import transformers
from handlers.models.tasks import BY_NAME
from handlers.tensors.sources import StoredSource

OPERATION = "run the model layer by layer"
_SMALL = 4 << 20
"""Elements up to which a parameter outside of the decoder layers stays in memory."""


def refuse(folder: Path, why: str) -> Permanent:
    """Return the error that says why a model that is too large for the memory can't be run in this way either."""
    return Permanent(
        FaultCode.MEMORY_NEVER, OPERATION, f"the model is too large to be held in memory, and can't be run layer by layer, because {why}",
        "export on a larger machine, or raise limits.memory_fraction", path=folder,
    )  # fmt: skip


@dataclass
class Skeleton:
    """A model whose parameters are placeholders, `stored` in the folder's files under these names."""

    model: Any
    folder: ModelFolder
    stored: dict[int, str]
    """id of a placeholder → name of the stored tensor."""
    placeholders: list[torch.nn.Parameter]
    """Keeps the ids taken."""

    @property
    def unread(self) -> frozenset[str]:
        """Names of tensors in the files that the model does not read."""
        return frozenset(self.folder.headers.keys() - set(self.stored.values()) - dict(self.model.named_buffers()).keys())


def build(path: Path, task: str, *, attention: str | None = None) -> Skeleton:
    """Return the model of a transformers folder, as its task's class, in evaluation mode, without weights.

    `attention`: transformers' implementation of it; None leaves it to transformers.
    Raises Permanent for one that is loaded in another way than name by name from safetensors files.
    """
    folder = ModelFolder.opened(path)
    if folder.pickled:
        raise refuse(path, "its weights are .bin files, of which no part can be read alone")
    if folder.config.get("auto_map"):
        raise refuse(path, "it brings code of its own")
    if folder.setting("quantization_config"):
        raise refuse(path, "its weights are stored quantized")
    loader: Any = getattr(transformers, BY_NAME[task].auto)
    config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    with init_empty_weights(include_buffers=False), small_pages():  # each parameter is allocated, and freed before it is written to
        model = loader.from_config(config, dtype=torch.float32, **({"attn_implementation": attention} if attention else {}))
    model.eval()
    model.tie_weights()
    if (path / "generation_config.json").is_file():
        model.generation_config = transformers.GenerationConfig.from_pretrained(path, local_files_only=True)
    skeleton = Skeleton(model, folder, {}, [])
    _place(skeleton)
    for name, buffer in model.named_buffers():
        if name in folder.headers and name in model.state_dict():
            read(StoredSource(name, folder.path_of(folder.headers[name]), folder.headers[name]), buffer)
    return skeleton


def _place(skeleton: Skeleton) -> None:
    """Put a placeholder for each parameter: a tensor of its shape that takes no memory, and poisons whatever is computed with it.

    Tied parameters share one, unless the files have a tensor for each: transformers does not tie them then where their values differ.
    """
    model, headers = skeleton.model, skeleton.folder.headers
    own: dict[str, str] = {}
    shared: dict[int, str] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        stored = next((candidate for candidate in _candidates(name, model.base_model_prefix) if candidate in headers), None)
        if stored is not None:
            own[name] = stored
            shared.setdefault(id(value), stored)
    taken: dict[tuple[int, str], torch.nn.Parameter] = {}
    for path, module in model.named_modules():
        for key, value in list(module._parameters.items()):
            if value is None:
                continue
            name = f"{path}.{key}" if path else key
            stored = own.get(name) or shared.get(id(value))
            if stored is None:
                cause = f"weights are missing from its files under the names of its class, for example {name}"
                raise refuse(skeleton.folder.path, f"{cause} (mixtures of experts are stored otherwise than they are run)")
            if headers[stored].shape != tuple(value.shape):
                raise refuse(skeleton.folder.path, f"{stored} is stored as {list(headers[stored].shape)}, not as {list(value.shape)}")
            if (id(value), stored) not in taken:
                placeholder = torch.nn.Parameter(torch.full((), float("nan")).expand(value.shape), requires_grad=False)
                taken[id(value), stored] = placeholder
                skeleton.stored[id(placeholder)] = stored
                skeleton.placeholders.append(placeholder)
            module._parameters[key] = taken[id(value), stored]


def _candidates(name: str, prefix: str) -> tuple[str, ...]:
    """Return the names under which a parameter may be stored: with the prefix of the model's body or without."""
    return name, name.removeprefix(f"{prefix}."), f"{prefix}.{name}"


def furnish(wrapped: Any, skeleton: Skeleton, find: Find, reads: Callable[[torch.nn.Module], bool] = lambda module: False) -> Door:
    """Put a door before each part of the model whose parameters are placeholders; give the last one that every pass comes to.

    `wrapped`: the model as it runs, PEFT's or not. `reads`: whether a module of it reads the weights of those inside of it, and doesn't
    only call them.
    """
    modules: dict[str, torch.nn.Module] = dict(wrapped.named_modules())
    layers = _layers(modules)
    parts: dict[str, list[Slot]] = {path: [] for path in layers}
    outside: dict[str, list[Slot]] = {}
    for path, module in modules.items():
        for name, value in module._parameters.items():
            if value is None or id(value) not in skeleton.stored:
                continue
            slot = Slot(module, name, skeleton.stored[id(value)], tuple(value.shape))
            layer = next((parent for parent in _above(path) if parent in layers), None)
            whole = layer or next((parent for parent in _above(path) if reads(modules[parent])), None)
            (parts if whole else outside).setdefault(whole or path, []).append(slot)
    head = set(skeleton.model.get_output_embeddings().modules())
    first = [path for path in parts if path not in layers and modules[path] not in head]
    last = [path for path in parts if path not in layers and modules[path] in head]
    layer_pool, final = Pool(), Door(-1)
    for number, path in enumerate([*first, *layers, *last]):
        for slot in parts[path]:
            slot.clear()
        final = PartDoor(number, parts[path], find, layer_pool if path in layers else Pool(keeps=False))
        final.guard(modules[path])
    for slot in (slot for inside in outside.values() for slot in inside):
        if slot.name == "weight" and (slot.module in head or isinstance(slot.module, torch.nn.Embedding)):
            door = HeadDoor(len(modules), slot, find) if slot.module in head else None
            final = door or final
            slot.module._parameters["weight"] = StreamedWeight.of(slot, find, door)  # type: ignore[assignment]  # it is a weight
        elif torch.Size(slot.shape).numel() <= _SMALL:
            values = torch.empty(slot.shape)
            read(find(slot.stored), values)
            slot.put(values)
        else:
            raise refuse(skeleton.folder.path, f"{slot.stored} belongs to none of its layers, its embedding or its head")
    return final


def _above(path: str) -> list[str]:
    """Return the path and those of all modules around it, the innermost first."""
    parts = path.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _layers(modules: Mapping[str, torch.nn.Module]) -> dict[str, None]:
    """Return the paths of the decoder's layers: the elements of the outermost lists of modules."""
    lists = {path: module for path, module in modules.items() if isinstance(module, torch.nn.ModuleList)}
    outermost = [path for path in lists if not any(other in lists for other in _above(path)[1:])]
    return {f"{path}.{number}": None for path in outermost for number in range(len(lists[path]))}
