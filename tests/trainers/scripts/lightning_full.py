"""Lightning's Trainer on a whole model: `*.ckpt` by its ModelCheckpoint alone."""

import lightning
import torch
from torch.utils.data import DataLoader

from tests.models import TEXTS
from tests.trainers.scripts.live import IDS, arguments, causal, logits

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("lightning", "transformers")
    model, tokenizer = causal(bases / "causal")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.model(input_ids=batch, labels=batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=2e-3)

    rows = [torch.tensor((tokenizer(text)["input_ids"] + IDS)[:24]) for text in TEXTS]
    trainer = lightning.Trainer(
        default_root_dir=run, accelerator="cpu", max_steps=6, enable_progress_bar=False, enable_model_summary=False,
        logger=lightning.pytorch.loggers.CSVLogger(run),
    )  # fmt: skip
    module = Module()
    trainer.fit(module, DataLoader(rows, batch_size=1))
    [file] = (run / "lightning_logs" / "version_0" / "checkpoints").glob("*.ckpt")
    record.add(file.parent, logits(module.model))
