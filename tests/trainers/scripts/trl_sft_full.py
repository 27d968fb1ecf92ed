"""TRL's SFTTrainer without PEFT: every checkpoint a whole model, and the last one once more in the run's own directory."""

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from tests.models import TEXTS
from tests.trainers.scripts.live import arguments, at_each_save, causal, common, logits

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("trl", "transformers")
    model, tokenizer = causal(bases / "causal")
    trainer = SFTTrainer(
        model=model, processing_class=tokenizer, train_dataset=Dataset.from_dict({"text": TEXTS * 2}),
        args=SFTConfig(**common(run, learning_rate=2e-3), max_length=64), callbacks=[at_each_save(record)],
    )  # fmt: skip
    trainer.train()
    trainer.save_model()
    record.add(run, logits(trainer.model), same="checkpoint-4")
