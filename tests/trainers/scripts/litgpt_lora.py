"""`litgpt finetune lora` on a small Pythia: `step-N` and `final`, each with `lit_model.pth.lora`."""

import json
import shutil
import sys

import torch
from litgpt import GPT, Config
from litgpt.args import EvalArgs, TrainArgs
from litgpt.data import JSON
from litgpt.finetune.lora import setup
from litgpt.utils import save_config

from tests.models import TEXTS
from tests.trainers.scripts.live import arguments

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("litgpt", "lightning")
    side = record.folder / "base" / "pico" / "pythia-14m"
    side.mkdir(parents=True)
    config = Config.from_name("pythia-14m", n_layer=2, n_embd=32, n_head=4, padded_vocab_size=320, block_size=128, intermediate_size=64)
    save_config(config, side)
    torch.save(GPT(config).state_dict(), side / "lit_model.pth")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(bases / "causal" / name, side)
    (side / "rows.json").write_text(json.dumps([{"instruction": "Write code.", "output": text} for text in TEXTS * 2]))
    sys.argv[1:] = [str(side)]  # litgpt reads its command line once more where it saves
    setup(
        side, out_dir=run, precision="32-true", data=JSON(side / "rows.json", val_split_fraction=0.2, num_workers=0),
        train=TrainArgs(save_interval=2, log_interval=1, global_batch_size=2, micro_batch_size=2, lr_warmup_steps=1,
                        epochs=1, max_steps=4, max_seq_length=64),
        eval=EvalArgs(interval=100, max_new_tokens=2, max_iters=1, initial_validation=False, final_validation=False),
    )  # fmt: skip
    for file in sorted(run.rglob("lit_model.pth.lora")):
        record.add(file.parent, torch.zeros(1).numpy())
