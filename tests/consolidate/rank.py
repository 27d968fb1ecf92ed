"""One rank of a training that saves sharded forms with the real libraries: `python -m tests.consolidate.rank BASE ADAPTER OUT RANK RANKS`.

FSDP2 on the CPU, by gloo. Below OUT it leaves `titan/step-4` (plain DCP with an optimizer), `trainer/checkpoint-4` (accelerate's form of
a full fine-tune), `peft/checkpoint-4` (the same of an adapter), `columns/step-4` (pieces that are columns), `whole/step-4` (an adapter with
its base) and `full`, by save_pretrained.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def main(base: str, adapter: str, out: str, rank: int, ranks: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from accelerate import PartialState
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import save_fsdp_model
    from peft import PeftModel
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/meeting", rank=rank, world_size=ranks)
    PartialState(cpu=True)  # accelerate logs by it
    mesh, folder = init_device_mesh("cpu", (ranks,)), Path(out)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator: Any = SimpleNamespace(process_index=rank, num_processes=ranks)

    def loaded() -> Any:
        return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)

    def sharded(model: Any, layers: Any) -> Any:
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    model = loaded()
    sharded(model, model.model.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(input_ids=torch.tensor([[1, 2, 3, 4]]), labels=torch.tensor([[1, 2, 3, 4]])).loss.backward()
    optimizer.step()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state, "step": 4}, checkpoint_id=folder / "titan" / "step-4")
    save_fsdp_model(plugin, accelerator, model, str(folder / "trainer" / "checkpoint-4"))
    full = {name: value.full_tensor() for name, value in weights.items()}
    columns = {name: distribute_tensor(value, mesh, [Shard(value.dim() - 1)]) for name, value in full.items()}
    dcp.save({f"_orig_mod.{name}": value for name, value in columns.items()}, checkpoint_id=folder / "columns" / "step-4")
    if rank == 0:
        whole = loaded()
        whole.load_state_dict(full)
        whole.save_pretrained(folder / "full")
    tuned = PeftModel.from_pretrained(loaded(), adapter, is_trainable=True)
    sharded(tuned, tuned.base_model.model.model.layers)
    save_fsdp_model(plugin, accelerator, tuned, str(folder / "peft" / "checkpoint-4"), adapter_only=True)
    weights, state = get_state_dict(tuned, ())
    dcp.save({"model": weights}, checkpoint_id=folder / "whole" / "step-4")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]))
