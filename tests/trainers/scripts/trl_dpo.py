"""TRL's DPOTrainer on a model that has an adapter already: it keeps a copy of that as `ref`, and saves both."""

from datasets import Dataset
from peft import get_peft_model
from trl import DPOConfig, DPOTrainer

from tests.models import TEXTS
from tests.trainers.scripts.live import arguments, at_each_save, causal, common, lora

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("trl", "transformers", "peft")
    model, tokenizer = causal(bases / "causal")
    pairs = {"prompt": ["def f(x):"] * 4, "chosen": TEXTS[:4], "rejected": TEXTS[2:6]}
    trainer = DPOTrainer(
        model=get_peft_model(model, lora(init_lora_weights=False)), processing_class=tokenizer, train_dataset=Dataset.from_dict(pairs),
        args=DPOConfig(**common(run)), callbacks=[at_each_save(record)],
    )  # fmt: skip
    trainer.train()
    assert (run / "checkpoint-4" / "ref" / "adapter_config.json").is_file(), "TRL no longer writes the adapter that it compares with"
