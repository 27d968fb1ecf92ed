"""VeOmni's own LoRA and its callbacks: the adapter's pieces in `checkpoints/global_step_N`, and at the end PEFT's form of it."""

import torch
from veomni.lora import VeOmniLoraConfig, VeOmniLoraModel
from veomni.trainer.callbacks import checkpoint_callback
from veomni.trainer.callbacks.base import TrainerState

from tests.trainers.scripts.live import arguments, causal, logits, train_step
from tests.trainers.scripts.veomni_full import begin, rounded, trainer_of

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("veomni", "transformers", "torch")
    begin(record)
    base, tokenizer = causal(bases / "causal")
    wanted = {"rank": 4, "alpha": 8, "lora_modules": ["q_proj", "v_proj", "down_proj"]}
    model = VeOmniLoraModel(base, VeOmniLoraConfig.from_yaml(wanted).replace(base_model_name_or_path=str(bases / "causal")))
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=2e-2)
    trainer = trainer_of(run, model, optimizer, [base.config, tokenizer], lora=wanted)
    pieces, adapter = checkpoint_callback.CheckpointerCallback(trainer), checkpoint_callback.HFLoraCkptCallback(trainer)
    for callback in (pieces, adapter):
        callback.on_train_begin(TrainerState())
    for step in range(1, 5):
        train_step(model, optimizer)
        pieces.on_step_end(TrainerState(step))
        if step % 2 == 0:
            record.add(run / "checkpoints" / f"global_step_{step}", logits(model))
    adapter.on_train_end(TrainerState(4))
    pieces.on_train_end(TrainerState(4))
    record.add(run / "global_step_4", logits(rounded(model)))
    torch.distributed.destroy_process_group()
