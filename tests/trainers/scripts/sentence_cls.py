"""sentence-transformers' trainer on a small BERT whose vectors are those of the CLS token, and `save` at the end."""

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

from tests.trainers.scripts.live import SENTENCES, arguments, at_each_save, common, vectors

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("sentence-transformers", "transformers")
    model = SentenceTransformer(str(bases / "sentence-cls"), device="cpu")
    trainer = SentenceTransformerTrainer(
        model=model, args=SentenceTransformerTrainingArguments(**common(run, learning_rate=2e-3)), loss=MultipleNegativesRankingLoss(model),
        train_dataset=Dataset.from_dict({"anchor": SENTENCES, "positive": SENTENCES[::-1]}), callbacks=[at_each_save(record, vectors)],
    )  # fmt: skip
    trainer.train()
    model.save(str(run / "final"))
    record.add(run / "final", vectors(model), same="checkpoint-4")
