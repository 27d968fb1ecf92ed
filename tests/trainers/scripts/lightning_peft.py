"""Lightning's Trainer: `*.ckpt` files by its ModelCheckpoint, and the adapter saved by a callback of the user's own."""

import lightning
import torch
from peft import get_peft_model
from torch.utils.data import DataLoader

from tests.models import TEXTS
from tests.trainers.scripts.live import IDS, arguments, causal, logits, lora

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("lightning", "transformers", "peft")
    model, tokenizer = causal(bases / "causal")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = get_peft_model(model, lora())

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            return self.model(input_ids=batch, labels=batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=2e-2)

    class SaveAdapter(lightning.Callback):
        def on_train_batch_end(self, trainer: lightning.Trainer, module: Module, *_: object) -> None:
            if trainer.global_step % 3 == 0:
                place = run / f"epoch={trainer.current_epoch}-step={trainer.global_step}"
                module.model.save_pretrained(place)
                tokenizer.save_pretrained(place)
                record.add(place, logits(module.model))

    rows = [torch.tensor((tokenizer(text)["input_ids"] + IDS)[:24]) for text in TEXTS]
    trainer = lightning.Trainer(
        default_root_dir=run, accelerator="cpu", max_steps=6, enable_progress_bar=False, enable_model_summary=False,
        callbacks=[SaveAdapter()],        logger=lightning.pytorch.loggers.CSVLogger(run),
    )  # fmt: skip
    module = Module()
    trainer.fit(module, DataLoader(rows, batch_size=1))
    [file] = (run / "lightning_logs" / "version_0" / "checkpoints").glob("*.ckpt")
    record.add(file.parent, logits(module.model))
