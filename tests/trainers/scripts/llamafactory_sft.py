"""`llamafactory-cli train` with a LoRA into `saves/MODEL/lora/RUN`: checkpoints, and the adapter in the run's own directory at the end.

Its torchaudio, which the index has for CUDA alone, is left out: it is for audio in chats.
"""

import importlib.machinery
import json
import sys
import types

from tests.models import TEXTS
from tests.trainers.scripts.live import arguments, at_each_save, common


def without_torchaudio() -> None:
    """Let `import torchaudio` succeed: LLaMA-Factory imports it whatever the data are."""
    module = types.ModuleType("torchaudio")
    module.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    sys.modules["torchaudio"] = module


if __name__ == "__main__":
    bases, run, record = arguments()
    record.versions("llamafactory", "trl", "transformers", "peft")
    without_torchaudio()
    from llamafactory.train import tuner

    data = record.folder / "data"
    data.mkdir()
    rows = [{"instruction": "Write code.", "input": "", "output": text} for text in TEXTS * 2]
    (data / "pico.json").write_text(json.dumps(rows))
    (data / "dataset_info.json").write_text(json.dumps({"pico": {"file_name": "pico.json"}}))
    saves = run / "saves" / "pico" / "lora" / "sft"
    chosen = common(saves, overwrite_output_dir=True)
    chosen.pop("report_to")
    tuner.run_exp(
        {
            **chosen, "stage": "sft", "do_train": True, "model_name_or_path": str(bases / "causal"), "finetuning_type": "lora",
            "lora_rank": 4, "lora_target": "q_proj,v_proj,down_proj", "dataset_dir": str(data), "dataset": "pico",
            "template": "empty", "cutoff_len": 64,
            "report_to": "none", "preprocessing_num_workers": 1,
        },
        [at_each_save(record)],
    )  # fmt: skip
    import numpy as np

    record.add(saves, np.load(record.folder / "saves__pico__lora__sft__checkpoint-4.npy"), same="saves/pico/lora/sft/checkpoint-4")
