"""verl's own checkpoint manager on two ranks of FSDP 2 by gloo, on the CPU: `global_step_N/actor` in pieces.

verl's trainer needs Ray and GPUs; the order of what is written is that of its `_save_checkpoint` (verl/trainer/ppo/ray_trainer.py).
"""

import os
import socket
import subprocess
import sys
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from verl.utils.checkpoint import fsdp_checkpoint_manager

from tests.trainers.scripts.live import arguments, causal, logits, lora, train_step


def join() -> tuple[int, subprocess.Popen[bytes] | None]:
    """Return this process's rank of two, and the second one's process, which the first starts."""
    rank, other = int(os.environ.get("RANK", "0")), None
    if "MASTER_PORT" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", RANK="0")
        command = [sys.executable, "-W", "ignore", "-m", str(sys.modules["__main__"].__spec__.name), *sys.argv[1:]]  # type: ignore[union-attr]
        other = subprocess.Popen(command, env={**os.environ, "RANK": "1"})
    torch.distributed.init_process_group("gloo")
    return rank, other


def managers(model: Any, tokenizer: Any) -> tuple[Any, Any]:
    """The actor's checkpoint manager, and a critic's, whose model is a plain small one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer)
    actor = fsdp_checkpoint_manager.FSDPCheckpointManager(model, optimizer, schedule, processing_class=tokenizer)
    return actor, optimizer


def train(peft: bool) -> None:
    """Run this rank of the training, whole weights or a LoRA."""
    rank, other = join()
    bases, run, record = arguments()
    fsdp_checkpoint_manager.FSDPCheckpointManager.get_rng_state = staticmethod(lambda: {})  # asks for a GPU
    model, tokenizer = causal(bases / "causal")
    if peft:
        from peft import get_peft_model

        model = get_peft_model(model, lora())
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("fsdp",))
    inner = model.base_model.model if peft else model
    for layer in inner.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    actor, optimizer = managers(model, tokenizer)
    if rank == 0:
        record.versions("verl", "torch", *(["peft"] if peft else []))
    for step in range(1, 5):
        train_step(model, optimizer)
        if step % 2:
            continue
        folder = run / f"global_step_{step}"
        actor.save_checkpoint(str(folder / "actor"), None, step)
        answer = logits(model)
        if rank == 0:
            torch.save({"step": step}, folder / "data.pt")
            (run / "latest_checkpointed_iteration.txt").write_text(str(step))
            record.add(folder / "actor", answer)
    torch.distributed.destroy_process_group()
    if other is not None and other.wait(300):
        raise RuntimeError("the second rank failed")


if __name__ == "__main__":
    train(peft=False)
