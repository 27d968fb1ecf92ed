"""`swift sft` with a LoRA: ms-swift's own trainer, without the directory `vN-DATE-TIME` of each start, whose name is another each time."""

import json
from typing import Any

from swift.pipelines.train.sft import SwiftSft

from tests.models import TEXTS
from tests.trainers.scripts.live import arguments, at_each_save, common

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("ms-swift", "transformers", "peft")

    class Noted(SwiftSft):
        def train(self, trainer: Any) -> Any:
            trainer.add_callback(at_each_save(record))
            return super().train(trainer)

    data = record.folder / "data.jsonl"
    turns = ([{"role": "user", "content": "Write code."}, {"role": "assistant", "content": text}] for text in TEXTS * 2)
    data.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns))
    given = {
        **common(run), "model": str(bases / "causal"), "model_type": "qwen3", "template": "dummy", "dataset": str(data),
        "target_modules": "q_proj v_proj down_proj", "lora_rank": 4, "lora_alpha": 8, "torch_dtype": "float32", "max_length": 64,
        "report_to": "none", "add_version": False, "split_dataset_ratio": 0, "eval_strategy": "no",
        "dataset_num_proc": 1, "dataloader_num_workers": 0, "attn_impl": "sdpa", "gradient_checkpointing": False,
    }  # fmt: skip
    words = [word for name, value in given.items() for word in (f"--{name}", *str(value).split())]
    Noted(words).main()
