"""transformers' Trainer with FSDP on two ranks by gloo, on the CPU: `checkpoint-N` with SHARDED_STATE_DICT.

The scripts `fsdp_full` and `fsdp_peft` call it; the first rank starts the second one as a process of its own.
"""

import os
import socket
import subprocess
import sys
from typing import Any

import torch
from transformers import DataCollatorForLanguageModeling, Trainer, TrainerCallback, TrainingArguments

from tests.models import TEXTS
from tests.trainers.scripts.live import arguments, causal, common, logits, lora


def as_on_gpus() -> None:
    """Let accelerate use FSDP on the CPU, where torch can do it and accelerate does not offer it."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    original = AcceleratorState.__init__

    def init(self: Any, *words: Any, fsdp_plugin: Any = None, **more: Any) -> None:
        original(self, *words, fsdp_plugin=fsdp_plugin, **more)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = init  # type: ignore[method-assign]


def train(peft: bool) -> None:
    """Run this rank of the training, whole weights or a LoRA."""
    rank = int(os.environ.get("RANK", "0"))
    other = None
    if "MASTER_PORT" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", RANK="0", LOCAL_RANK="0")
        command = [sys.executable, "-W", "ignore", "-m", str(sys.modules["__main__"].__spec__.name), *sys.argv[1:]]  # type: ignore[union-attr]
        other = subprocess.Popen(command, env={**os.environ, "RANK": "1", "LOCAL_RANK": "1"})
    as_on_gpus()
    bases, run, record = arguments()
    model, tokenizer = causal(bases / "causal")
    if peft:
        from peft import get_peft_model

        model = get_peft_model(model, lora())
        if rank == 0:  # once, when training begins: Trainer writes none beside the pieces
            model.peft_config["default"].save_pretrained(run)
    if rank == 0:
        record.versions(*(["transformers", "accelerate", "peft"] if peft else ["transformers", "accelerate"]))

    class AtSave(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            answer = logits(parts["model"])  # all ranks: each has a part of the weights
            if rank == 0:
                record.add(run / f"checkpoint-{state.global_step}", answer)

    settings = TrainingArguments(
        **common(run, learning_rate=2e-2 if peft else 2e-3, ddp_backend="gloo", fsdp="full_shard auto_wrap"),
        fsdp_config={"version": 2, "state_dict_type": "SHARDED_STATE_DICT", "transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]},
    )
    rows = [{"input_ids": tokenizer(text)["input_ids"]} for text in TEXTS]
    Trainer(
        model=model, args=settings, train_dataset=rows, processing_class=tokenizer,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False), callbacks=[AtSave()],
    ).train()  # fmt: skip
    torch.distributed.destroy_process_group()
    if other is not None and other.wait(300):
        raise RuntimeError("the second rank failed")
