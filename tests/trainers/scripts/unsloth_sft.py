"""Unsloth as its notebooks do it: checkpoints in `outputs`, at the end the adapter in `lora_model` beside it.

Unsloth runs on a CPU since 2026: `unsloth/_cpu_init.py`. On a GPU it takes its own 4-bit copy of the model and writes that one's name,
which ends in `-bnb-4bit`, into the adapter (`unsloth/models/loader.py`); on a CPU it does not, so here that name is set on the model.
"""

import unsloth  # noqa: I001  it wants to be first

import torch
from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from tests.models import TEXTS
from tests.trainers.scripts.live import arguments, at_each_save, common, logits

NAME = "unsloth/pico-bnb-4bit"

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("unsloth", "trl", "transformers", "peft")
    model, tokenizer = unsloth.FastLanguageModel.from_pretrained(
        model_name=str(bases / "causal"), max_seq_length=64, load_in_4bit=False, dtype=torch.float32
    )
    model = unsloth.FastLanguageModel.get_peft_model(
        model, r=4, lora_alpha=8, lora_dropout=0, target_modules=["q_proj", "v_proj", "down_proj"], use_gradient_checkpointing=False
    )
    model.peft_config["default"].base_model_name_or_path = NAME
    trainer = SFTTrainer(
        model=model, processing_class=tokenizer, train_dataset=Dataset.from_dict({"text": TEXTS * 2}),
        args=SFTConfig(**common(run / "outputs"), max_length=64), callbacks=[at_each_save(record)],
    )  # fmt: skip
    trainer.train()
    model.save_pretrained(str(run / "lora_model"))
    tokenizer.save_pretrained(str(run / "lora_model"))
    record.add(run / "lora_model", logits(model), same="outputs/checkpoint-4")
