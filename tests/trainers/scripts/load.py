"""Loads exported folders by a library's own loader, in its environment: `python -m tests.trainers.scripts.load LOADER PAIRS ANSWER`.

PAIRS, JSON: folders and the files of what the live model answered. ANSWER gets, of each, the largest difference as a part of the
root mean square of what the live model answered.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.trainers.scripts.live import logits, vectors


def causal(folder: str) -> Any:
    """transformers' own way."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoTokenizer.from_pretrained(folder)
    return logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))


def classifier(folder: str) -> Any:
    """transformers' own way for a head of labels."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    AutoTokenizer.from_pretrained(folder)
    return logits(AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32))


def trl(folder: str) -> Any:
    """As TRL's trainers load a model that they get by its name."""
    from transformers import AutoTokenizer
    from trl.trainer.utils import create_model_from_path

    AutoTokenizer.from_pretrained(folder)
    return logits(create_model_from_path(folder))


def sentence(folder: str) -> Any:
    """sentence-transformers' own way."""
    from sentence_transformers import SentenceTransformer

    return vectors(SentenceTransformer(folder, device="cpu"))


def setfit(folder: str) -> Any:
    """SetFit's own way; it is the body that is compared."""
    from setfit import SetFitModel

    return vectors(SetFitModel.from_pretrained(folder, device="cpu").model_body)


def unsloth(folder: str) -> Any:
    """Unsloth's own way."""
    from unsloth import FastLanguageModel

    model, _ = FastLanguageModel.from_pretrained(model_name=folder, max_seq_length=64, load_in_4bit=False, dtype=_float32())
    return logits(model)


def axolotl(folder: str) -> Any:
    """Axolotl's own way, as its `axolotl inference` does."""
    import tempfile

    import yaml
    from axolotl.cli.config import load_cfg
    from axolotl.cli.utils import load_model_and_tokenizer

    wanted = {
        "base_model": folder, "datasets": [{"path": "none", "type": "completion"}], "micro_batch_size": 1, "gradient_accumulation_steps": 1,
        "learning_rate": 1e-3, "num_epochs": 1, "optimizer": "adamw_torch", "lr_scheduler": "constant", "sequence_len": 64,
        "sdp_attention": True, "use_cpu": True, "bf16": False, "fp16": False, "tf32": False,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as side:
        file = Path(side, "config.yaml")
        file.write_text(yaml.safe_dump({**wanted, "output_dir": side}))
        model, *_ = load_model_and_tokenizer(cfg=load_cfg(str(file)), inference=True)
    return logits(model)


def llamafactory(folder: str) -> Any:
    """LLaMA-Factory's own way."""
    from tests.trainers.scripts.llamafactory_sft import without_torchaudio

    without_torchaudio()
    from llamafactory.hparams import get_infer_args
    from llamafactory.model import load_model, load_tokenizer

    model_args, _, finetuning_args, _ = get_infer_args({"model_name_or_path": folder, "template": "empty", "infer_dtype": "float32"})
    return logits(load_model(load_tokenizer(model_args)["tokenizer"], model_args, finetuning_args))


def _float32() -> Any:
    import torch

    return torch.float32


LOADERS = {one.__name__: one for one in (causal, classifier, trl, sentence, setfit, unsloth, axolotl, llamafactory)}


def main() -> None:
    """Write the answer."""
    import torch

    torch.set_num_threads(1)
    errors = []
    for folder, file in json.loads(sys.argv[2]):
        wanted = np.load(file)
        found = LOADERS[sys.argv[1]](folder)
        assert found.shape == wanted.shape, f"{folder}: {found.shape} for {wanted.shape}"
        errors.append(float(np.abs(found - wanted).max() / np.sqrt(np.mean(wanted**2))))
    Path(sys.argv[3]).write_text(json.dumps(errors))


if __name__ == "__main__":
    main()
