"""Fine-tunes the demo's base as a user would: transformers' Trainer with a PEFT LoRA adapter, on asyncio's docstrings.

`python -m handlers.demo.finetune BASE RUN_DIR --steps 150 --save-steps 50 --threads 1` is called by `ckptd demo`. One checkpoint
is kept (`save_total_limit=1`), so the trainer deletes each one while its export still runs. It never speaks to ckptd.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode
from handlers.demo import corpus
from handlers.demo.events import complain, empty_folder, prepare_libraries, say

BATCH, LENGTH = 8, 128
LEARNING_RATE = 4e-3
REPORT_SECONDS = 0.5


def rows_of(tokenizer: Any) -> list[dict[str, list[int]]]:
    """Asyncio's docstrings, an end token after each, cut into rows of 128 tokens that are their own labels."""
    tokens = [token for text in corpus.finetune_texts() for token in (*tokenizer(text)["input_ids"], tokenizer.eos_token_id)]
    pieces = [tokens[start : start + LENGTH] for start in range(0, len(tokens) - LENGTH, LENGTH)]
    return [{"input_ids": piece, "labels": piece} for piece in pieces]


def _speaker(run: Path, steps: int) -> Any:
    """A TrainerCallback that tells steps, saved checkpoints and those that rotation took away."""
    from transformers import TrainerCallback

    class Speaker(TrainerCallback):
        def __init__(self) -> None:
            self.seen: set[str] = set()
            self.said = 0.0

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
            last = state.global_step >= steps
            if logs and "loss" in logs and (last or time.monotonic() - self.said > REPORT_SECONDS):
                self.said = time.monotonic()
                say("step", step=state.global_step, steps=steps, fraction=round(state.global_step / steps, 3), loss=round(logs["loss"], 3))

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            there = {path.name for path in run.glob("checkpoint-*")}
            say("checkpoint", step=state.global_step, folder=str(run / f"checkpoint-{state.global_step}"))
            for name in sorted(self.seen - there):
                say("rotated", folder=str(run / name))
            self.seen = there

    return Speaker()


def finetune(base: Path, run: Path, steps: int, save_steps: int, threads: int) -> None:
    """Train `steps` steps and leave checkpoints in `run`. Raises UsageError for a missing base or a run that is not empty."""
    if not (base / "config.json").is_file():
        raise UsageError(
            FaultCode.NO_BASE, "read the base model", "it has no config.json", "make it first with handlers.demo.make_base", path=base
        )
    run = empty_folder(run, "the training run")
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, Trainer, TrainingArguments, default_data_collator

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(base)
    adapter = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base.absolute(), dtype=torch.float32), adapter)
    arguments = TrainingArguments(
        output_dir=str(run), max_steps=steps, save_steps=save_steps, save_total_limit=1, per_device_train_batch_size=BATCH,
        learning_rate=LEARNING_RATE, lr_scheduler_type="cosine", warmup_steps=5, report_to=[], disable_tqdm=True,
        logging_steps=min(5, save_steps), use_cpu=True, seed=1, dataloader_num_workers=0, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=arguments, train_dataset=rows_of(tokenizer), processing_class=tokenizer, data_collator=default_data_collator,
        callbacks=[_speaker(run, steps)],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)  # its lines are not JSON
    say("start", steps=steps, trainable=model.get_nb_trainable_parameters()[0])
    trainer.train()
    say("done", steps=steps)


def main(arguments: list[str] | None = None) -> int:
    """The command line; give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m handlers.demo.finetune", description=finetune.__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("run", type=Path, metavar="RUN_DIR")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--save-steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    try:
        prepare_libraries(options.threads)
        if not 1 <= options.save_steps <= options.steps:
            raise UsageError(
                FaultCode.BAD_OPTION, "start the training", (
                    f"a checkpoint every {options.save_steps} steps does not fit into {options.steps} steps"
                ),
                "give 1 ≤ --save-steps ≤ --steps",
            )  # fmt: skip
        finetune(options.base, options.run, options.steps, options.save_steps, options.threads)
    except UsageError as error:
        return complain(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
