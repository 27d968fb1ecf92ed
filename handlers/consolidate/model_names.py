"""What a model's folder calls the tensors of a full fine-tune, found from what a training's state calls them.

The names that are right are those of the base's weights, else those of the model that config.json describes. A prefix is taken off where
that, and nothing else, makes all names right. A tensor that is tied to another one is left out, once its bytes were found to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from daemon.contract.faults.errors import Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.sharded.forms import is_torchtitan
from daemon.contract.sharded.pieces import ShardedTensor
from handlers.consolidate.adapter_names import OPERATION, unwrapped
from handlers.models.folder import ModelFolder

Shape = tuple[int, ...]
_BUFFERS = (".inv_freq", ".position_ids", ".masked_bias")
"""What older releases saved among the weights, and what no training's state has."""


@dataclass(frozen=True)
class Expected:
    """Names and shapes that the tensors must have. `whose`: for sentences."""

    shapes: Mapping[str, Shape]
    whose: str


def of_base(base: Path) -> Expected | None:
    """Return what the base's headers say; None for a base in `.bin` files, which have none."""
    model = ModelFolder.opened(base, "base")
    return None if model.pickled else Expected({name: info.shape for name, info in model.headers.items()}, f"the base {base}")


def of_config(folder: Path) -> Expected | None:
    """Return what the model of a config.json has, made without weights; None where transformers has no such model of its own."""
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        kind = getattr(transformers, (getattr(config, "architectures", None) or [""])[0], None)
        if kind is None:
            return None
        with torch.device("meta"):
            model = kind(config)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, ImportError):
        return None
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items() if name not in tied}
    return Expected(shapes, f"{type(model).__name__}, which its config.json names")


def matched(
    tensors: Mapping[str, ShardedTensor], expected: Iterable[Expected], same: Callable[[ShardedTensor, ShardedTensor], bool], tied: bool
) -> dict[str, str]:
    """Name in the checkpoint → name in a model's folder, by the first of `expected` that fits in exactly one way.

    `same`: whether two tensors hold the same bytes; `tied`: whether config.json lets tensors be tied. Permanent where none fits.
    """
    plain = {name: unwrapped(name) for name in tensors}
    problems = []
    for wanted in expected:
        ways = []
        for prefix in _prefixes(plain.values()):
            names = {name: said.removeprefix(prefix) for name, said in plain.items()}
            if len(set(names.values())) == len(names) and (way := _fits(names, tensors, wanted.shapes, same, tied)) is not None:
                ways.append(way)
        if len({frozenset(way.items()) for way in ways}) == 1:
            return _checked(ways[0], tensors, wanted)
        problems.append(wanted.whose)
    raise _unmatched(plain.values(), problems)


def _prefixes(names: Collection[str]) -> list[str]:
    """Return what may have been put before names: "", and the leading parts of any of them."""
    leading = {""}
    for name in names:
        parts = name.split(".")[:-1]
        leading |= {".".join(parts[:end]) + "." for end in range(1, min(len(parts), 4) + 1)}
    return sorted(leading, key=lambda prefix: (len(prefix), prefix))


def _fits(
    names: Mapping[str, str], tensors: Mapping[str, ShardedTensor], shapes: Mapping[str, Shape],
    same: Callable[[ShardedTensor, ShardedTensor], bool], tied: bool,
) -> dict[str, str] | None:  # fmt: skip
    """Return the names, those that are tied left out; None where they are not the ones that are expected."""
    right = {name: said for name, said in names.items() if said in shapes}
    present = set(right.values())
    missing = [name for name in shapes if name not in present and not name.endswith(_BUFFERS)]
    if missing and not (tied and all(name.endswith(("lm_head.weight", "embed_tokens.weight")) for name in missing)):
        return None
    for name in names.keys() - right.keys():
        alike = [tensors[key] for key in right if tensors[key].shape == tensors[name].shape and tensors[key].dtype == tensors[name].dtype]
        if not tied or len(tensors[name].shape) < 2 or not any(same(tensors[name], tensor) for tensor in alike):
            return None
    return right


def _checked(names: dict[str, str], tensors: Mapping[str, ShardedTensor], expected: Expected) -> dict[str, str]:
    for name, said in sorted(names.items()):
        if tensors[name].shape != expected.shapes[said]:
            raise Permanent(
                FaultCode.CONFIG_MISMATCH, OPERATION,
                f"{said} has the shape {list(tensors[name].shape)}, but in {expected.whose} it has {list(expected.shapes[said])}",
                "put the config.json and tokenizer that this training used into the checkpoint's directory or its run's directory",
            )  # fmt: skip
    return names


def _unmatched(names: Collection[str], tried: Collection[str]) -> Permanent:
    some = ", ".join(sorted(names)[:4])
    if is_torchtitan(names):
        return Permanent(
            FaultCode.SHARDS_UNMATCHED, OPERATION, f"its tensors have torchtitan's own names ({some} …)",
            "run torchtitan's `scripts/checkpoint_conversion/convert_to_hf.py CHECKPOINT OUTPUT --hf_assets_path BASE --model_name MODEL "
            "--model_flavor FLAVOR` and `ckptd export OUTPUT`, or train with checkpoint.last_save_in_hf; in both cases, copy"
            " config.json and tokenizer of the base into that directory",
        )  # fmt: skip
    if not tried:
        return Permanent(
            FaultCode.BASE_NOT_FOUND,
            OPERATION,
            f"it is not known which model its tensors ({some} …) belong to: there is no config.json and no base",
            "put the config.json and tokenizer of this training into the checkpoint's directory or its run's directory, and it is "
            'exported automatically; or set base.map."" = "/folder/of/the/model", the base of checkpoints that name none, and run '
            "`ckptd queue retry`; `ckptd export` takes --base",
        )
    return Permanent(
        FaultCode.SHARDS_UNMATCHED,
        OPERATION,
        f"its tensors ({some} …) do not match {' or '.join(tried)}, or match in more than one way",
        "name the base that was trained with --base, or load the checkpoint in the trainer, call save_pretrained(OUTPUT) and run "
        "`ckptd export OUTPUT`",
    )
