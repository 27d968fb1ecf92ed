"""VeOmni's own callbacks on a small model: `checkpoints/global_step_N` in pieces, saved asynchronously, and at the end with `hf_ckpt`.

Its trainer needs a GPU; what is called here, and in which order, is what veomni/trainer/base.py has its callbacks do.
"""

import copy
from types import SimpleNamespace
from typing import Any

import torch
from veomni.checkpoint import dcp_consolidation
from veomni.trainer.callbacks import checkpoint_callback
from veomni.trainer.callbacks.base import TrainerState

from tests.trainers.scripts.live import Record, arguments, causal, logits, train_step


def trainer_of(run: Any, model: Any, optimizer: Any, assets: list[Any], lora: Any = None) -> Any:
    """What the callbacks ask of VeOmni's trainer."""
    settings = SimpleNamespace(
        save_steps=2, save_epochs=0, hf_save_steps=0, hf_save_epochs=0, save_hf_weights=True, save_async=True, manager="dcp",
        stage_dir=None, load_path=None, dcp_save_to_lowest_rank=False, output_dir=str(run), save_path=str(run / "checkpoints"),
        model_assets_dir=str(run / "model_assets"),
    )  # fmt: skip
    mode = SimpleNamespace(fsdp_config=SimpleNamespace(fsdp_mode="ddp"))
    return SimpleNamespace(
        args=SimpleNamespace(
            train=SimpleNamespace(checkpoint=settings, accelerator=mode, global_rank=0),
            model=SimpleNamespace(lora_config=lora, fqn_to_index_mapping=None),
        ),
        model=model, optimizer=optimizer, lr_scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer), train_dataloader=None,
        environ_meter=SimpleNamespace(state_dict=dict), model_assets=assets,
    )  # fmt: skip


def begin(record: Record) -> None:
    """Start the group of one process, on a CPU, which VeOmni asks to empty a cache."""
    torch.cpu.empty_cache = lambda: None  # type: ignore[attr-defined]
    record.folder.mkdir(exist_ok=True)
    torch.distributed.init_process_group("gloo", init_method=f"file://{record.folder}/rendezvous", rank=0, world_size=1)


def rounded(model: Any) -> Any:
    """The model as VeOmni saves it when training ends: what was trained in bfloat16."""
    other = copy.deepcopy(model)
    for weight in other.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(torch.bfloat16).float()
    return other


if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("veomni", "transformers", "torch")
    begin(record)
    dcp_consolidation.apply_dcp_consolidation_patch = lambda: None  # it opens a file otherwise, and refuses torch's newer releases
    model, tokenizer = causal(bases / "causal")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    trainer = trainer_of(run, model, optimizer, [model.config, tokenizer])
    pieces, whole = checkpoint_callback.CheckpointerCallback(trainer), checkpoint_callback.HuggingfaceCkptCallback(trainer)
    for callback in (pieces, whole):
        callback.on_train_begin(TrainerState())
    for step in range(1, 6):
        train_step(model, optimizer)
        pieces.on_step_end(TrainerState(step))
        if step % 2 == 0:
            record.add(run / "checkpoints" / f"global_step_{step}", logits(model))
    # The pieces come first, and the daemon may take them before hf_ckpt is there: here the step comes into the run when it is whole.
    trainer.args.train.checkpoint.save_path = str(record.folder)
    whole.on_train_end(TrainerState(5))
    pieces.on_train_end(TrainerState(5))
    (record.folder / "global_step_5").rename(run / "checkpoints" / "global_step_5")
    record.add(run / "checkpoints" / "global_step_5" / "hf_ckpt", logits(rounded(model)))
    torch.distributed.destroy_process_group()
