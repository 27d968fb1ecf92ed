"""`axolotl train` with a LoRA: checkpoints, and the final adapter in the run's own directory, here after a step more than the last one."""

import json

import yaml
from axolotl.cli.args import TrainerCliArgs
from axolotl.cli.config import load_cfg

from tests.models import TEXTS
from tests.trainers.scripts.live import arguments, at_each_save, logits

if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("axolotl", "trl", "transformers", "peft")
    side = record.folder / "axolotl"
    side.mkdir()
    (side / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS * 4))
    wanted = {
        "base_model": str(bases / "causal"), "datasets": [{"path": str(side / "texts.jsonl"), "ds_type": "json", "type": "completion"}],
        "dataset_prepared_path": str(side / "prepared"), "val_set_size": 0, "output_dir": str(run), "adapter": "lora", "lora_r": 4,
        "lora_alpha": 8, "lora_target_modules": ["q_proj", "v_proj", "down_proj"], "sequence_len": 64, "micro_batch_size": 2,
        "gradient_accumulation_steps": 1, "max_steps": 5, "save_steps": 2, "learning_rate": 2e-2, "optimizer": "adamw_torch",
        "lr_scheduler": "constant", "bf16": False, "fp16": False, "tf32": False, "flash_attention": False, "sdp_attention": True,
        "gradient_checkpointing": False, "logging_steps": 1, "seed": 1, "save_first_step": False, "use_cpu": True,
    }  # fmt: skip
    (side / "config.yaml").write_text(yaml.safe_dump(wanted))
    import axolotl.core.builders.causal as builders

    build = builders.HFCausalTrainerBuilder.build

    def with_record(self: builders.HFCausalTrainerBuilder, *words: object) -> object:
        trainer = build(self, *words)
        trainer.add_callback(at_each_save(record))
        return trainer

    builders.HFCausalTrainerBuilder.build = with_record
    cfg = load_cfg(str(side / "config.yaml"))
    from axolotl.common.datasets import load_datasets
    from axolotl.train import train

    model, tokenizer, trainer = train(cfg=cfg, dataset_meta=load_datasets(cfg=cfg, cli_args=TrainerCliArgs()))
    record.add(run, logits(model))
