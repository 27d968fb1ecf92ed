"""Tied weights: which tensors have to be written so that the merged model computes what base and adapter compute.

Called by `handlers.merge.plan.matcher`. A weight that several modules share, for example embedding and head, has several parameter names.
The live adapter changes one of these modules, or each by itself. Where all would end with the same values the weight stays shared;
otherwise each module gets a tensor of its own, and the configuration says that they are no longer tied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.models.safetensors import DTYPES, TensorInfo
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.changes import Change, digest, named_in, signature
from handlers.merge.adapters.name_mapping import OPERATION, Names, NeedsPeft
from handlers.merge.weights.changed import equal
from handlers.merge.weights.model_structure import Structure, build, model_class, structure
from handlers.models.files import Edits
from handlers.models.folder import ModelFolder

SHARED = (
    "embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings", "shared", "embeddings", "embedding", "lm_head", "embed_out",
    "output", "decoder",
)  # fmt: skip
"""Names of modules whose weights are shared in some models: the last part of their path."""
SCALED = ("umt5", "udop", "switch_transformers")
"""Model types that scale the input of the head if, and only if, its weight is tied: without the tie they compute something else."""
SCALED_BY_KEY = ("t5", "longt5", "pop2piano")
"""Model types of which the same is true where `scale_decoder_outputs` is not set."""
Unmatched = Callable[[list[str]], Exception]


@dataclass
class TensorChange:
    """A change, and the tensor into which it is written."""

    change: Change
    tensor: str
    stored: str
    """The base's tensor that holds the values before the change."""
    info: TensorInfo
    """That of `stored`."""
    base: str | None = None
    """The adapter's key with the values before the change, where they are not those of `stored`."""
    edits: Edits = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def _may_be_tied(model: ModelFolder, names: Names, change: Change) -> bool:
    last = change.module.rpartition(".")[2]
    return names.info(change.parameter) is None or (last in SHARED and model.setting("tie_word_embeddings") is not False)


def _structure(model: ModelFolder, names: Names, changes: dict[str, Change], unmatched: Unmatched) -> Structure | None:
    """Return the model's structure, when weights that the adapter changes may be tied; None when they certainly are not."""
    unsure = [name for name, change in changes.items() if _may_be_tied(model, names, change)]
    built = structure(model) if unsure else None
    if unsure and built is None:
        missing = [changes[name].module for name in unsure if names.info(name) is None]
        if missing:
            raise unmatched(missing)
        raise NeedsPeft(f"{changes[unsure[0]].module} may share its weight with another module")
    return built


def _tie_tokens(built: Structure, changes: dict[str, Change]) -> None:
    """Give all modules that share the input embedding's weight the rows of its trained tokens: PEFT ties them, and saves them once.

    Trained tokens of another module of the group change that module alone, and so do those that name other rows than the embedding's.
    """
    own = f"{built.embedding}.weight"
    if own in changes and changes[own].tokens:
        for name in built.group(own):
            if name not in changes:
                changes[name] = replace(changes[own], parameter=name, module=name.rpartition(".")[0])


def _changes_of(adapter: Adapter, group: tuple[str, ...], changes: dict[str, Change]) -> tuple[dict[str, Change], str | None]:
    """Member of the group → its change, and the adapter's key that replaces the values that all members share, if there is one.

    An embedding that was saved because the vocabulary was resized is the shared weight itself, and not a change of one member.
    """
    mine = {name: changes[name] for name in group if name in changes}
    if len(group) == 1:
        return mine, None
    resized = [change for change in mine.values() if change.saved and not named_in(adapter.config, "modules_to_save", change.module)]
    named = [change for change in mine.values() if change.saved and change not in resized]
    if resized and not named and len({digest(adapter, str(change.saved)) for change in resized}) == 1:
        for change in resized:
            change.base, change.saved = change.saved, None
    bases = [change.base for change in mine.values() if change.base]
    return mine, bases[0] if bases and len({digest(adapter, key) for key in bases}) == 1 else None


@dataclass
class _Group:
    """The parameter names of one shared weight, or a single parameter."""

    members: tuple[str, ...]
    stored: list[str]
    """Members that the base stores."""
    changes: dict[str, Change]
    """By member."""
    base: str | None
    """The adapter's key that replaces the values that all members share."""
    same: bool
    """Whether all members end with the same values."""

    def written(self, names: Names, name: str) -> TensorChange:
        """Return the tensor to write for one member. A member without a change gets that of the others if all end with the same values."""
        change = self.changes.get(name)
        if change is None:
            common = next(iter(self.changes.values()), None) if self.same else None
            change = common or Change(name, name.rpartition(".")[0])
        source = names.tensor(name if name in self.stored else self.stored[0])
        return TensorChange(change, names.tensor(name), source, names.stored[source], self.base)


def _group(adapter: Adapter, model: ModelFolder, names: Names, members: tuple[str, ...], changes: dict[str, Change]) -> _Group:
    mine, base = _changes_of(adapter, members, changes)
    stored = [name for name in members if names.info(name) is not None]
    same = len(members) == 1 or len({signature(adapter, mine.get(name)) for name in members}) == 1
    if not same and stored and base is None:
        # A module that was saved and is not used by the model, as T5's `shared`, has the base's values: no training changed it.
        idle = [
            name
            for name, change in mine.items()
            if change.saved and _as_stored(adapter, change.saved, model, names.stored[names.tensor(stored[0])])
        ]
        mine = {name: change for name, change in mine.items() if name not in idle}
        same = len({signature(adapter, mine.get(name)) for name in members}) == 1
    return _Group(members, stored, mine, base, same)


def _as_stored(adapter: Adapter, key: str, model: ModelFolder, info: TensorInfo) -> bool:
    """Return whether the adapter's tensor, in the dtype of the base's tensor, has the same values."""
    import torch

    if adapter.shapes[key] != info.shape or info.dtype not in ("F32", "F16", "BF16"):
        return False
    dtype: torch.dtype = getattr(torch, DTYPES[info.dtype][0])
    with open(model.path_of(info), "rb") as file:
        file.seek(info.start)
        for first in range(0, info.elements, 1 << 20):
            count = min(1 << 20, info.elements - first)
            stored = torch.frombuffer(bytearray(file.read(count * dtype.itemsize)), dtype=dtype)
            if not torch.equal(stored, adapter.part(key, first, count).to(dtype)):
                return False
    return True


def _really_tied(model: ModelFolder, names: Names, members: tuple[str, ...], changes: dict[str, Change]) -> list[tuple[str, ...]]:
    """Return the members of a group that the class ties, by those that transformers ties on loading: it leaves apart what is stored with
    different values, as mT5 and T5 1.1 store their heads. Members that are not stored share the first that is.
    """
    stored = [name for name in members if names.info(name) is not None]
    parts: list[list[str]] = []
    for name in stored if changes.keys() & set(members) else stored[:1]:
        info = names.stored[names.tensor(name)]
        same = (part for part in parts if equal(model, info, model, names.stored[names.tensor(part[0])]))
        part = next(same, None)
        if part is None:
            parts.append([name])
        else:
            part.append(name)
    if len(parts) < 2:
        return [members]
    parts[0] += [name for name in members if name not in stored]
    return [tuple(name for name in members if name in part) for part in parts]


def refuse_scaled(adapter: Adapter, kind: str) -> None:
    """Raise Permanent for a model type that computes something else when its tied weights are separate."""
    if kind in SCALED:
        raise Permanent(
            FaultCode.ADAPTER_NOT_MERGEABLE,
            OPERATION,
            f"the adapter changes one of the modules that share a weight, and a {kind} model in which they are separate"
            " computes different outputs",
            "serve it with PEFT beside its base instead, or train without the embeddings and the head",
            path=adapter.folder,
        )


def _untied(adapter: Adapter, model: ModelFolder, names: Names, groups: list[_Group]) -> list[TensorChange]:
    """Every member of every group as a tensor of its own, with the edits of config.json that make transformers load them so."""
    kind = model.config.get("model_type")
    refuse_scaled(adapter, str(kind))
    untied = build(model, model_class(model), tie_word_embeddings=False)
    written: list[TensorChange] = []
    for group in groups:
        missing = [name for name in group.members if name not in group.stored]
        if untied is None or (missing and names.renames):
            raise NeedsPeft(f"{group.members[0].rpartition('.')[0]} shares its weight, and how to untie it is not known")
        remaining = {untied.group(name) for name in group.members}
        for members in sorted(remaining):
            if len({signature(adapter, group.changes.get(name)) for name in members}) > 1:
                modules = " and ".join(name.rpartition(".")[0] for name in members)
                raise NeedsPeft(f"{modules} share a weight that can't be untied, and the adapter changes one of them")
            kept = [name for name in members if name in group.stored] or [members[0]]
            written.extend(group.written(names, name) for name in kept)
    changed = next(group for group in groups if not group.same)
    written[0].edits["tie_word_embeddings"] = False
    if kind in SCALED_BY_KEY and "scale_decoder_outputs" not in model.config:
        written[0].edits["scale_decoder_outputs"] = model.setting("tie_word_embeddings") is not False
    written[0].warnings.append(_said(adapter, changed))
    return written


def _said(adapter: Adapter, group: _Group) -> str:
    """Return why the members of a group are no longer tied, for the report."""
    names = " and ".join(name.rpartition(".")[0] for name in group.members)
    trained = [change for change in group.changes.values() if change.trained]
    if adapter.config.get("ensure_weight_tying") and len(trained) == len(group.members):
        # Seen with PEFT 0.21: over a base in 16 bits it casts the adapter's tensors to fp32 one by one, and what was shared is no longer.
        return (
            f"{names} are no longer tied: the adapter was trained with ensure_weight_tying, but PEFT saved different values for its two"
            " parts, and the live model uses both, so each is written; to train only one, call get_peft_model with"
            " autocast_adapter_dtype=False or load the base in float32"
        )
    return f"{names} are no longer tied: the adapter changed one of them, or changed them differently, so each is written"


def tensor_changes(
    adapter: Adapter, model: ModelFolder, names: Names, changes: dict[str, Change], unmatched: Unmatched
) -> list[TensorChange]:
    """Return the tensors to write for all changes. Raises what `unmatched` returns for parameters that the base does not store."""
    built = _structure(model, names, changes, unmatched)
    if built:
        _tie_tokens(built, changes)
        _check_token_biases(adapter, model, names, changes, built)
    tied = [
        part for members in (built.groups if built else ()) if any(names.info(name) is not None for name in members)
        for part in _really_tied(model, names, members, changes)
    ]  # fmt: skip
    shared = {name for members in tied for name in members}
    groups = [_group(adapter, model, names, members, changes) for members in tied]
    groups += [_group(adapter, model, names, (name,), changes) for name in changes if name not in shared]
    absent = [change.module for group in groups for change in group.changes.values() if not group.stored]
    if absent:
        _check_bias(adapter, names, changes, absent)
        raise unmatched(absent)
    if all(group.same for group in groups):
        return [group.written(names, name) for group in groups if group.changes for name in group.stored]
    several = [group for group in groups if len(group.members) > 1]
    single = [group.written(names, name) for group in groups if len(group.members) == 1 for name in group.stored]
    return _untied(adapter, model, names, several) + single


def _check_token_biases(adapter: Adapter, model: ModelFolder, names: Names, changes: dict[str, Change], built: Structure) -> None:
    """Raise Permanent when trained tokens act on a head with a bias, which PEFT's layer for them leaves out while the adapter is active."""
    for change in changes.values():
        biases = [names.info(name) for name in built.group(f"{change.module}.bias")] if change.tokens else []
        info = next((bias for bias in biases if bias is not None), None)
        if info is None:
            continue
        with open(model.path_of(info), "rb") as file:
            file.seek(info.start)
            if not any(file.read(info.size)):
                continue
        raise drops_bias(adapter, change.module)


def drops_bias(adapter: Adapter, module: str) -> Permanent:
    """Return the error for trained tokens on a head with a bias."""
    return Permanent(
        FaultCode.ADAPTER_NOT_MERGEABLE, OPERATION,
        f"trainable_token_indices acts on {module}, and PEFT leaves out its bias while such an adapter is active, so that the live model is"
        " not base + adapter",
        "merge it with PEFT (merge_and_unload) and export the result as a full fine-tune, if that is the model that you want",
        path=adapter.folder,
    )  # fmt: skip


def _check_bias(adapter: Adapter, names: Names, changes: dict[str, Change], absent: list[str]) -> None:
    """Raise Permanent when what is missing is the bias to which lora_bias would have to be added."""
    for module in absent:
        change = changes.get(f"{module}.bias")
        if change is not None and change.bias and names.info(f"{module}.weight") is not None:
            raise Permanent(
                FaultCode.ADAPTER_NOT_MERGEABLE,
                OPERATION,
                f"the adapter has a bias for {module} (lora_bias), but the base's layer has no bias to add it to",
                "serve it with PEFT beside its base instead, or train without lora_bias",
                path=adapter.folder,
            )
