"""Makes what DeepSpeed's ZeRO saves, without DeepSpeed: the keys, the places and the padding are those of its engine's own code.

deepspeed/runtime/engine.py (`_save_checkpoint`, `_save_zero_checkpoint`) and the `state_dict` of deepspeed/runtime/zero/stage3.py and
stage_1_and_2.py, release 0.19.8. `test_deepspeed_library` compares the reader with the library itself.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import Any


class ZeroStageEnum(IntEnum):
    """As DeepSpeed's, by whose name it is pickled."""

    stage_1 = 1
    stage_2 = 2
    stage_3 = 3


class LossScaler:
    """As DeepSpeed's, by whose name it is pickled."""

    def __init__(self) -> None:
        self.cur_scale, self.dynamic = 1.0, False


@contextmanager
def deepspeeds_names() -> Iterator[None]:
    """Pickle finds the two classes under DeepSpeed's names for as long as this lasts."""
    homes = {"deepspeed.runtime.zero.config": ZeroStageEnum, "deepspeed.runtime.fp16.loss_scaler": LossScaler}
    own = {kind: kind.__module__ for kind in homes.values()}
    made = {"deepspeed": types.ModuleType("deepspeed")}
    for home, kind in homes.items():
        parts = home.split(".")
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            made.setdefault(name, types.ModuleType(name))
        setattr(made[home], kind.__name__, kind)
        kind.__module__ = home
    kept = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield
    finally:
        for kind, home in own.items():
            kind.__module__ = home
        for name, module in kept.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def save(
    folder: Path, stage: int, ranks: int, groups: Sequence[Mapping[str, Any]], *, frozen: Mapping[str, Any] | None = None,
    shared: Mapping[str, str] | None = None, buffers: Mapping[str, Any] | None = None, state: Mapping[str, Any] | None = None,
    tag: str = "global_step4", aligned: int = 1,
) -> Path:  # fmt: skip
    """Save a checkpoint below `folder`: trained tensors in `groups`, each name once, and what is not trained.

    `shared`: second name → name; `state`: what the training itself puts beside the model; `aligned`: of how many elements
    a multiple each parameter of the stages 1 and 2 is filled up to.
    """
    import torch

    place = folder / tag
    place.mkdir(parents=True)

    def part(value: Any, rank: int) -> Any:
        size = -(-value.numel() // ranks)
        padded = torch.cat([value.flatten(), torch.zeros(size * ranks - value.numel(), dtype=value.dtype)])
        return padded[rank * size : (rank + 1) * size].clone()

    rows, paddings = [], []
    for group in groups:
        behind = [-value.numel() % aligned for value in group.values()]
        paddings.append(behind)
        filled = zip(group.values(), behind, strict=True)
        row = torch.cat([part for value, more in filled for part in (value.flatten().float(), torch.full([more], 9e9))])
        padding = -row.numel() % (2 * ranks)
        rows.append((torch.cat([row, torch.full([padding], 9e9)]), padding))
    with deepspeeds_names():
        for rank in range(ranks):
            whole = rank == 0 and stage < 3
            held = {**(frozen or {}), **{name: value for group in groups for name, value in group.items()}}
            module = {name: value.bfloat16() if whole else torch.empty(0) for name, value in held.items()} | dict(buffers or {})
            fragments = {name: value if whole else part(value, rank) for name, value in (frozen or {}).items()}
            model = {
                "module": module, "buffer_names": list(buffers or {}), "optimizer": None,
                "param_shapes": [{name: value.shape for name, value in group.items()} for group in groups],
                "frozen_param_shapes": {name: value.shape for name, value in (frozen or {}).items()},
                "shared_params": dict(shared or {}) if rank == 0 else {}, "frozen_param_fragments": fragments,
                "global_steps": 4, "ds_version": "0.19.8", **(state or {}),
            }  # fmt: skip
            optimizer: dict[str, Any] = {"zero_stage": ZeroStageEnum(stage), "loss_scaler": LossScaler(), "partition_count": ranks}
            if stage == 3:
                values = [torch.cat([part(value.float(), rank) for value in group.values()]) for group in groups]
                optimizer["fp32_flat_groups"] = [torch.nn.Parameter(value) for value in values]
                torch.save(model, place / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
            else:
                optimizer["partition_count"] = [ranks] * len(groups)
                if aligned > 1:
                    optimizer["param_alignment_paddings"] = paddings
                values = []
                for row, padding in rows:
                    size = row.numel() // ranks
                    end = size * (rank + 1) - (padding if rank == ranks - 1 else 0)  # the padding at the end is not saved
                    values.append(row[size * rank : end].clone())
                optimizer["single_partition_of_fp32_groups"] = values
                if rank == 0:
                    torch.save(model, place / "mp_rank_00_model_states.pt")
            optimizer["optimizer_state_dict"] = {"state": {0: {"exp_avg": torch.ones(3)}}}
            saved = {"optimizer_state_dict": optimizer, "ds_config": {"zero_optimization": {"stage": stage}}, "ds_version": "0.19.8"}
            torch.save(saved, place / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    (folder / "zero_to_fp32.py").write_text("# DeepSpeed's own script\n")
    (folder / "latest").write_text(tag)
    return folder
