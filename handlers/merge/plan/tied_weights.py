"""Weights that several parts of a model share: which tensors have to be written so that every end does what the live adapter does.

Called by `handlers.merge.plan.matcher`. The live adapter acts on one end of a tied pair, or on each on its own. Where all ends would hold
the same values the pair stays tied; where not, each end is written as a tensor of its own, and the configuration says that they
are no longer tied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from daemon.contract.errors import Permanent
from daemon.contract.fault_codes import FaultCode
from handlers.merge.adapters.adapter import Adapter
from handlers.merge.adapters.changes import Wish, digest, named_in, signature
from handlers.merge.adapters.name_mapping import OPERATION, Names, NeedsPeft
from handlers.merge.weights.model_structure import Structure, build, model_class, structure
from handlers.models.files import TensorInfo, setting

SHARED = (
    "embed_tokens", "wte", "word_embeddings", "embed_in", "tok_embeddings", "shared", "embeddings", "embedding", "lm_head", "embed_out",
    "output", "decoder",
)  # fmt: skip
"""Last names of modules whose weights models share."""
SCALED = ("mt5", "umt5", "udop", "switch_transformers")
"""Model types that scale what the head gets exactly when its weight is tied, so that untying it changes more than the weight."""
SCALED_BY_KEY = ("t5", "longt5", "pop2piano")
"""Model types that do so unless `scale_decoder_outputs` says it by itself."""
Unmatched = Callable[[list[str]], Exception]


@dataclass
class End:
    """One tensor to write: `tensor` with what `wish` asks for, on the base values of `stored`, or of the adapter's key `base`."""

    wish: Wish
    tensor: str
    stored: str
    info: TensorInfo
    base: str | None = None
    edits: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def _may_share(config: dict[str, Any], names: Names, wish: Wish) -> bool:
    last = wish.module.rpartition(".")[2]
    return names.info(wish.parameter) is None or (last in SHARED and setting(config, "tie_word_embeddings") is not False)


def _look(folder: Path, config: dict[str, Any], names: Names, wishes: dict[str, Wish], unmatched: Unmatched) -> Structure | None:
    """The model's structure, when weights that the adapter changes may be shared; None when they certainly are not."""
    unsure = [name for name, wish in wishes.items() if _may_share(config, names, wish)]
    found = structure(folder) if unsure else None
    if unsure and found is None:
        missing = [wishes[name].module for name in unsure if names.info(name) is None]
        if missing:
            raise unmatched(missing)
        raise NeedsPeft(f"{wishes[unsure[0]].module} may share its weight with another module")
    return found


def _spread(adapter: Adapter, group: tuple[str, ...], wishes: dict[str, Wish]) -> tuple[dict[str, Wish], str | None]:
    """Member → its wish, and the adapter's key that overwrites what all members share.

    Trained tokens act on every end, though the file holds them once; an embedding that was saved because the vocabulary was resized is
    the shared weight itself and not one end's.
    """
    mine = {name: wishes[name] for name in group if name in wishes}
    if len(group) == 1:
        return mine, None
    tokens = [wish for wish in mine.values() if wish.tokens]
    if tokens:
        for name in group:
            if name not in mine:
                mine[name] = replace(tokens[0], parameter=name, module=name.rpartition(".")[0])
    loose = [wish for wish in mine.values() if wish.saved and not named_in(adapter.config, "modules_to_save", wish.module)]
    named = [wish for wish in mine.values() if wish.saved and wish not in loose]
    if loose and not named and len({digest(adapter, str(wish.saved)) for wish in loose}) == 1:
        for wish in loose:
            wish.base, wish.saved = wish.saved, None
    bases = [wish.base for wish in mine.values() if wish.base]
    return mine, bases[0] if bases and len({digest(adapter, key) for key in bases}) == 1 else None


@dataclass
class _Group:
    """Parameters that are one: those that the base stores, what is asked of each, and what overwrites them all."""

    members: tuple[str, ...]
    stored: list[str]
    wishes: dict[str, Wish]
    base: str | None
    same: bool
    """Whether all members end with the same values."""

    def end(self, names: Names, name: str) -> End:
        """The end `name`; where nothing is asked of it, it gets what all have in common."""
        wish = self.wishes.get(name)
        if wish is None:
            common = next(iter(self.wishes.values()), None) if self.same else None
            wish = common or Wish(name, name.rpartition(".")[0])
        source = names.tensor(name if name in self.stored else self.stored[0])
        return End(wish, names.tensor(name), source, names.stored[source], self.base)


def _group(adapter: Adapter, names: Names, members: tuple[str, ...], wishes: dict[str, Wish]) -> _Group:
    mine, base = _spread(adapter, members, wishes)
    stored = [name for name in members if names.info(name) is not None]
    same = len(members) == 1 or len({signature(adapter, mine.get(name)) for name in members}) == 1
    return _Group(members, stored, mine, base, same)


def _part(folder: Path, adapter: Adapter, config: dict[str, Any], names: Names, groups: list[_Group]) -> list[End]:
    """Every member of every group as a tensor of its own, and the configuration that makes transformers read them so."""
    if config.get("model_type") in SCALED:
        raise Permanent(
            FaultCode.ADAPTER_NOT_MERGEABLE,
            OPERATION,
            f"the adapter changes one end of a tied weight, and a {config['model_type']} model without ties computes otherwise",
            "serve it with PEFT beside its base instead",
            path=adapter.folder,
        )
    loose = build(folder, model_class(folder), tie_word_embeddings=False)
    ends: list[End] = []
    for group in groups:
        missing = [name for name in group.members if name not in group.stored]
        if loose is None or (missing and (names.drop or names.add)):
            raise NeedsPeft(f"{group.members[0].rpartition('.')[0]} shares its weight, and how to part it is not known")
        parted = {loose.group(name) for name in group.members}
        for members in sorted(parted):
            if len({signature(adapter, group.wishes.get(name)) for name in members}) > 1:
                raise NeedsPeft(f"{' and '.join(name.rpartition('.')[0] for name in members)} are one weight, of which one end changes")
            kept = [name for name in members if name in group.stored] or [members[0]]
            ends.extend(group.end(names, name) for name in kept)
    changed = next(group for group in groups if not group.same)
    ends[0].edits["tie_word_embeddings"] = False
    if config.get("model_type") in SCALED_BY_KEY and "scale_decoder_outputs" not in config:
        ends[0].edits["scale_decoder_outputs"] = setting(config, "tie_word_embeddings") is not False
    ends[0].warnings.append(
        f"{' and '.join(name.rpartition('.')[0] for name in changed.members)} are no longer tied: "
        "the adapter changed one of them, or each differently, so each is written"
    )
    return ends


def decide(
    adapter: Adapter, folder: Path, config: dict[str, Any], names: Names, wishes: dict[str, Wish], unmatched: Unmatched
) -> list[End]:
    """The tensors to write for all wishes. Raises what `unmatched` gives for parameters that the base does not store."""
    found = _look(folder, config, names, wishes, unmatched)
    tied = [members for members in (found.groups if found else ()) if any(names.info(name) is not None for name in members)]
    shared = {name for members in tied for name in members}
    groups = [_group(adapter, names, members, wishes) for members in tied]
    groups += [_group(adapter, names, (name,), wishes) for name in wishes if name not in shared]
    absent = [wish.module for group in groups for wish in group.wishes.values() if not group.stored]
    if absent:
        _check_bias(adapter, names, wishes, absent)
        raise unmatched(absent)
    if all(group.same for group in groups):
        return [group.end(names, name) for group in groups if group.wishes for name in group.stored]
    several = [group for group in groups if len(group.members) > 1]
    single = [group.end(names, name) for group in groups if len(group.members) == 1 for name in group.stored]
    return _part(folder, adapter, config, names, several) + single


def _check_bias(adapter: Adapter, names: Names, wishes: dict[str, Wish], absent: list[str]) -> None:
    """Permanent when what is missing is the bias to which lora_bias would have to be added."""
    for module in absent:
        wish = wishes.get(f"{module}.bias")
        if wish is not None and wish.bias and names.info(f"{module}.weight") is not None:
            raise Permanent(
                FaultCode.ADAPTER_NOT_MERGEABLE,
                OPERATION,
                f"the adapter has a bias for {module} (lora_bias), and the base's layer has none to add it to",
                "serve it with PEFT beside its base instead, or train without lora_bias",
                path=adapter.folder,
            )
