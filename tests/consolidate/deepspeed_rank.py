"""One rank that saves with the real DeepSpeed: `python -m tests.consolidate.deepspeed_rank CASES BASE OUT RANK RANKS PORT`.

A case is `KIND-STAGE`; below OUT/KIND-STAGE lie `run`, which `save_checkpoint` wrote, and `right.safetensors`, which DeepSpeed's
own zero_to_fp32 makes of it. On the CPU, by gloo. Runs in an environment with DeepSpeed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def main(cases: str, base: str, out: str, rank: int, ranks: int, port: str) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port, DS_ACCELERATOR="cpu"
    )
    import deepspeed
    import torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    for case in cases.split(","):
        kind, _, stage = case.partition("-")
        torch.manual_seed(0)
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
        if kind.startswith("lora"):
            model = get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj", "down_proj"], init_lora_weights=False))
        if kind == "frozen":
            model.model.layers[0].requires_grad_(False)
        if kind == "buffer":
            model.model.norm.register_buffer("scale", torch.arange(5, dtype=torch.bfloat16) / 3)
        trained = [value for value in model.parameters() if value.requires_grad]
        groups = [
            {"params": [one for one in trained if (one.dim() > 1) is matrix], "weight_decay": 0.1 * matrix} for matrix in (True, False)
        ]
        optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=1e-2)
        settings = {
            "train_micro_batch_size_per_gpu": 1, "train_batch_size": ranks, "bf16": {"enabled": True},
            "zero_optimization": {"stage": int(stage), "sub_group_size": 30000},
            "zero_force_ds_cpu_optimizer": False, "zero_allow_untested_optimizer": True,
        }  # fmt: skip
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        ids = torch.tensor([[1 + rank, 2, 3, 4]])
        for _ in range(2):
            engine.backward(engine(input_ids=ids, labels=ids).loss)
            engine.step()
        folder = Path(out) / case
        engine.save_checkpoint(str(folder / "run"), exclude_frozen_parameters=kind == "lora_alone")
        if rank == 0:
            right = get_fp32_state_dict_from_zero_checkpoint(str(folder / "run"))
            save_file({name: value.clone().contiguous() for name, value in right.items()}, folder / "right.safetensors")
            if kind.startswith("lora"):
                model.peft_config["default"].base_model_name_or_path = base
                model.peft_config["default"].save_pretrained(folder / "run")
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
