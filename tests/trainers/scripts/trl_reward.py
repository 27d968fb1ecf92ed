"""TRL's RewardTrainer with PEFT: a classification head with one output, saved with the adapter."""

from datasets import Dataset
from trl import RewardConfig, RewardTrainer

from tests.models import TEXTS
from tests.trainers.scripts.live import arguments, at_each_save, common, lora

if __name__ == "__main__":
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    bases, run, record = arguments()
    record.versions("trl", "transformers", "peft")
    model = AutoModelForSequenceClassification.from_pretrained(bases / "causal", num_labels=1, dtype=torch.float32)
    trainer = RewardTrainer(
        model=model, processing_class=AutoTokenizer.from_pretrained(bases / "causal"),
        train_dataset=Dataset.from_dict({"chosen": TEXTS[:4], "rejected": TEXTS[2:6]}),
        peft_config=lora(task_type="SEQ_CLS", modules_to_save=["score"]), args=RewardConfig(**common(run), max_length=64),
        callbacks=[at_each_save(record)],
    )  # fmt: skip
    trainer.train()
