"""SetFit: its trainer's checkpoints are of the body, and what it saves at the end is the body with a pickled head beside it."""

from datasets import Dataset
from setfit import SetFitModel, Trainer, TrainingArguments

from tests.trainers.scripts.live import SENTENCES, arguments, at_each_save, vectors

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("setfit", "sentence-transformers", "transformers")
    model = SetFitModel.from_pretrained(str(bases / "sentence-cls"), device="cpu")
    rows = Dataset.from_dict({"text": SENTENCES, "label": [0, 0, 1, 1]})
    arguments_ = TrainingArguments(
        output_dir=str(run), batch_size=2, save_total_limit=2,
        max_steps=4, save_strategy="steps", save_steps=2, body_learning_rate=2e-3, report_to=[],
        show_progress_bar=False, logging_steps=1,
    )  # fmt: skip
    trainer = Trainer(
        model=model,
        args=arguments_,
        train_dataset=rows,
        callbacks=[at_each_save(record, lambda found: vectors(getattr(found, "model_body", found)))],
    )
    trainer.train()
    model.save_pretrained(str(run / "final"))
    record.add(run / "final", vectors(model.model_body), same="checkpoint-4")
