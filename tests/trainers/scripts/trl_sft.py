"""TRL's SFTTrainer with PEFT: checkpoints, and `save_model()` into the run's own directory at the end."""

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from tests.models import TEXTS
from tests.trainers.scripts.live import arguments, at_each_save, causal, common, logits, lora

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("trl", "transformers", "peft")
    model, tokenizer = causal(bases / "causal")
    trainer = SFTTrainer(
        model=model, processing_class=tokenizer, train_dataset=Dataset.from_dict({"text": TEXTS * 2}), peft_config=lora(),
        args=SFTConfig(**common(run), max_length=64), callbacks=[at_each_save(record)],
    )  # fmt: skip
    trainer.train()
    trainer.save_model()
    record.add(run, logits(trainer.model), same="checkpoint-4")
