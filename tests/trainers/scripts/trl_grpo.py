"""TRL's GRPOTrainer with PEFT and a reward that is a function."""

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from tests.trainers.scripts.live import arguments, at_each_save, causal, common, lora

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("trl", "transformers", "peft")
    model, tokenizer = causal(bases / "causal")
    trainer = GRPOTrainer(
        model=model, processing_class=tokenizer, train_dataset=Dataset.from_dict({"prompt": ["def add(a, b):", "import os"] * 4}),
        reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions], peft_config=lora(),
        args=GRPOConfig(**common(run), num_generations=2, max_completion_length=6), callbacks=[at_each_save(record)],
    )  # fmt: skip
    trainer.train()
