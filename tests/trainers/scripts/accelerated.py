"""A loop with accelerate as transformers' examples have it (examples/pytorch/language-modeling/run_clm_no_trainer.py, where it saves).

`save_state` into `step_N` and `epoch_N`, and at the end `save_pretrained` of model and tokenizer into the run's own directory. The scripts
`accelerate_full` and `accelerate_peft` call it.
"""

from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import get_scheduler

from tests.models import TEXTS
from tests.trainers.scripts.live import IDS, Record, arguments, causal, logits

STEPS_OF_AN_EPOCH, SAVED_AFTER = 3, 4


def train(wrap: Any = None) -> None:
    """Train two epochs of three steps, saved after the fourth step and each epoch. `wrap`: makes another model of the base."""
    bases, run, record = arguments()
    record.versions("accelerate", "transformers", *(["peft"] if wrap else []))
    model, tokenizer = causal(bases / "causal")
    model = wrap(model) if wrap else model
    accelerator = Accelerator(cpu=True)
    rows = [torch.tensor((tokenizer(text)["input_ids"] + IDS)[:24]) for text in TEXTS]
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=2e-2)
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=2 * STEPS_OF_AN_EPOCH + 2)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(rows, batch_size=2), scheduler)
    completed = 0
    for epoch in range(2):
        for batch in loader:
            accelerator.backward(model(input_ids=batch, labels=batch).loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            completed += 1
            if completed % SAVED_AFTER == 0:
                _save(accelerator, record, f"step_{completed}", model)
        _save(accelerator, record, f"epoch_{epoch}", model)
    accelerator.wait_for_everyone()
    accelerator.unwrap_model(model).save_pretrained(run, is_main_process=accelerator.is_main_process, save_function=accelerator.save)
    tokenizer.save_pretrained(run)
    record.add(run, logits(model))


def _save(accelerator: Accelerator, record: Record, name: str, model: Any) -> None:
    accelerator.save_state(str(record.run / name))
    record.add(name, logits(model))
