"""Tiny models of the Qwen kind whose every weight matters, and the comparison of what was exported with torch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from handlers.validate.engines.registry import EngineSpec

ROPE = {"rope_type": "default", "rope_theta": 1e6}
PICO: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": 1,
    "initializer_range": 0.15, "rope_parameters": ROPE,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1, "norm_topk_prob": True}


def make(folder: Path, kind: str = "Qwen3", **options: Any) -> Path:
    """A model of transformers' `{kind}ForCausalLM` in fp32 whose norms and biases are not the ones and zeros of a fresh model."""
    import torch
    import transformers

    torch.manual_seed(3)
    extra = EXPERTS if kind == "Qwen3Moe" else {}
    heads = {} if kind == "Qwen2" else {"head_dim": 16}
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**{**PICO, **heads, **extra, **options}))
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.normal_(parameter, 1.0, 0.2)
        elif name.endswith("bias"):
            torch.nn.init.normal_(parameter, 0.0, 0.2)
    model.save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Batch:
    """Rows of tokens fed in steps; `left` and `right` are tokens of padding in the first row."""

    rows: int
    steps: tuple[int, ...]
    left: int = 0
    right: int = 0

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids, mask and positions, each (rows, tokens)."""
        ids = np.random.default_rng(5).integers(2, 320, (self.rows, sum(self.steps)))
        mask = np.ones_like(ids)
        mask[0, : self.left] = 0
        mask[0, ids.shape[1] - self.right :] = 0
        return ids, mask, np.maximum(mask.cumsum(1) - 1, 0)


BATCHES = (
    Batch(1, (1, 1, 1)),  # one token into an empty past
    Batch(1, (7, 1)),
    Batch(3, (7, 1, 3), left=2),
    Batch(3, (7,), right=3),
    Batch(3, (1, 7), left=1),
    Batch(1, (41, 1, 9)),  # longer than anything that is traced, and so is the past
    Batch(3, (23, 17), left=6),
)


def torch_model(source: Path, **changed: Any) -> Any:
    """The model in fp32; `changed` overrides its configuration."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source, **changed)
    return AutoModelForCausalLM.from_pretrained(source, config=config, dtype=torch.float32).eval()


def torch_logits(model: Any, batch: Batch) -> np.ndarray:
    """What a model says when it is fed as generation feeds it. A copy is asked: some rotary embeddings remember the longest prompt."""
    import torch

    model = copy.deepcopy(model)
    ids, mask, positions = (torch.from_numpy(array) for array in batch.arrays())
    answers, cache, start = [], None, 0
    for step in batch.steps:
        end = start + step
        with torch.inference_mode():
            said = model(
                input_ids=ids[:, start:end], attention_mask=mask[:, :end], position_ids=positions[:, start:end], past_key_values=cache
            )
        cache, start = said.past_key_values, end
        answers.append(said.logits.numpy())
    return np.concatenate(answers, axis=1)


def onnx_engine(folder: Path) -> Any:
    """The exported folder, as validation's own engine runs it."""
    from handlers.validate.engines.graphs.onnx_causal import OnnxEngine

    return OnnxEngine(EngineSpec(engine="onnx", folder=str(folder)))


def onnx_logits(engine: Any, batch: Batch) -> np.ndarray:
    """What an engine says when it is fed in the same steps."""
    ids, mask, positions = batch.arrays()
    answers, cache, start = [], None, 0
    for step in batch.steps:
        end = start + step
        logits, cache = engine.step(ids[:, start:end], mask[:, :end], positions[:, start:end], cache)
        answers.append(logits)
        start = end
    return np.concatenate(answers, axis=1)


def difference(model: Any, engine: Any, batch: Batch) -> float:
    """Largest |Δlogit| between torch and the exported folder over what is not padding; infinite where that is not finite."""
    wanted, found = torch_logits(model, batch), onnx_logits(engine, batch)
    real = batch.arrays()[1].astype(bool)
    return float(np.abs(wanted - found)[real].max()) if np.isfinite(found).all() else float("inf")


def assert_equal_to_torch(source: Path, folder: Path, batches: Sequence[Batch] = BATCHES) -> None:
    """Every batch's logits agree within fp32's own noise."""
    model, engine = torch_model(source), onnx_engine(folder)
    differences = {batch: difference(model, engine, batch) for batch in batches}
    assert max(differences.values()) <= 2e-4, differences


def apart(source: Path, folder: Path, batch: Batch, **changed: Any) -> float:
    """Largest |Δlogit| between the exported folder and torch with another configuration: what a wrong export would differ by."""
    return difference(torch_model(source, **changed), onnx_engine(folder), batch)
