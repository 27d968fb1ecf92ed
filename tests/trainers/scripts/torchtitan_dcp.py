"""torchtitan's own checkpoint manager, on a small model: `step-N` in torch.distributed.checkpoint's form."""

import torch
from torchtitan.components.checkpointer.dcp import CheckpointManager

from tests.trainers.scripts.live import arguments, causal, logits, train_step


class Stateful:
    """What torchtitan saves beside the model, in the part of its containers: numbers, and the optimizer's tensors."""

    def __init__(self, value: int | torch.Tensor = 0) -> None:
        self.state: dict[str, int | torch.Tensor] = {"step": value}

    def state_dict(self) -> dict[str, int | torch.Tensor]:
        return self.state

    def load_state_dict(self, state: dict[str, int | torch.Tensor]) -> None:
        self.state = state


if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("torchtitan", "torch")
    record.folder.mkdir(exist_ok=True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{record.folder}/rendezvous", rank=0, world_size=1)
    model, _ = causal(bases / "causal")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    manager = CheckpointManager(
        CheckpointManager.Config(enable=True, interval=2, last_save_model_only=False), dataloader=Stateful(), model_parts=[model],
        optimizers=Stateful(torch.zeros(1)), lr_schedulers=Stateful(), states={"train_state": Stateful()}, sd_adapter=None,
        base_folder=str(run),
    )  # fmt: skip
    for step in range(1, 5):
        train_step(model, optimizer)
        manager.save(step, last_step=step == 4)
        if step % 2 == 0:
            record.add(run / "checkpoint" / f"step-{step}", logits(model))
    manager.close()
    torch.distributed.destroy_process_group()
