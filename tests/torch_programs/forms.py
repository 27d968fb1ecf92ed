"""PyTorch's programs run alone, as their users run them, and the models that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.onnx import qwen, seq2seq
from tests.onnx.test_encoders import make as make_encoder
from tests.pytorch.forms import gpt2

MODELS: dict[str, Callable[[Path], Path]] = {
    "Qwen3": lambda folder: qwen.make(folder),
    "Llama": lambda folder: qwen.make(folder, "Llama", tie_word_embeddings=False),
    "Qwen3Moe": lambda folder: qwen.make(folder, "Qwen3Moe"),
    "GPT-2": gpt2,
    "Bert": lambda folder: make_encoder(folder, "Bert", "text-classification"),
    "Bert QA": lambda folder: make_encoder(folder, "Bert", "question-answering"),
    "ModernBert": lambda folder: make_encoder(folder, "ModernBert", "feature-extraction"),
    "Marian": lambda folder: seq2seq.make(folder, "marian"),
    "T5": lambda folder: seq2seq.make(folder, "t5"),
}
ALONE = """
import json, runpy, sys
for name in ("transformers", "handlers", "onnxruntime", *sys.argv[3:]):
    sys.modules[name] = None
from pathlib import Path
import numpy as np
folder, rows = Path(sys.argv[1]), int(sys.argv[2])
brought = runpy.run_path(str(folder / "program.py"))
programs = [brought["opened"](folder, "model.onnx")]
if programs[0].path.suffix == ".pt":
    programs.append(brought["Program"](programs[0].path, optimized=True))
ids = np.array([[5, 6, 7]] * rows)[:, ::-1]  # of negative strides
feeds = {"input_ids": ids, "attention_mask": ids * 0 + 1, "position_ids": np.array([[0, 1, 2]] * rows)}
feeds |= {port.name: np.zeros((rows, port.shape[1], 0, port.shape[3]), np.float32) for port in programs[0].get_inputs()[3:]}
print(json.dumps([program.run(["logits"], feeds)[0][0, -1, :4].tolist() for program in programs]))
"""
"""Prints the first logits of a language model's folder, argument 1, for so many equal texts as argument 2 says; those of TorchScript a
second time, as it is optimized when it is loaded. What the arguments behind them name can't be imported."""


def logits_of(model: Path) -> np.ndarray:
    """What ALONE should print of each program."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        return np.asarray(AutoModelForCausalLM.from_pretrained(model)(torch.tensor([[7, 6, 5]])).logits[0, -1, :4].numpy())
