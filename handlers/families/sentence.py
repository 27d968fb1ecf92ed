"""The modules of sentence-transformers as a part of the graph: from vectors of tokens to one vector a text.

Called by the family of encoders. What is computed is what `handlers.validate.engines.sentence` computes with numpy.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from handlers.models import sentence

_FEWEST = 1e-9


class SentenceModules(torch.nn.Module):
    """All modules after the model; they must be known (`sentence.Chain.makes_vectors`)."""

    def __init__(self, folder: Path, chain: sentence.Chain) -> None:
        super().__init__()
        self.modes: tuple[str, ...] = ()
        self.steps = torch.nn.ModuleList()
        for module in chain.modules:
            config = sentence.setting(folder, module)
            weights = folder / module.folder / "model.safetensors"
            if module.kind == "Pooling":
                self.modes = sentence.pooling_modes(config)
            elif module.kind == "Normalize":
                self.steps.append(_Unit())
            elif module.kind == "Dense":
                tensors = {name.removeprefix("linear."): tensor.float() for name, tensor in load_file(weights).items()}
                rows, columns = tensors["weight"].shape
                linear = torch.nn.Linear(columns, rows, bias="bias" in tensors)
                linear.load_state_dict(tensors)
                self.steps.extend([linear, getattr(torch.nn, sentence.activation(config))()])
            elif module.kind == "LayerNorm":
                tensors = {name.removeprefix("norm."): tensor.float() for name, tensor in load_file(weights).items()}
                normal = torch.nn.LayerNorm(tensors["weight"].shape[0])
                normal.load_state_dict(tensors)
                self.steps.append(normal)

    def forward(self, vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Vectors (B, S, H) and mask (B, S) → (B, D)."""
        pooled = torch.cat([_pooled(mode, vectors, mask) for mode in self.modes], dim=-1)
        for step in self.steps:
            pooled = step(pooled)
        return pooled


class _Unit(torch.nn.Module):
    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(vectors, p=2.0, dim=-1)


def _pooled(mode: str, vectors: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    places = torch.ones_like(mask).cumsum(dim=1)  # from 1 on; made of the mask, so that no length is fixed by the tracer
    if mode in ("cls", "lasttoken"):
        first = (mask if mode == "cls" else mask * places).to(torch.int32).argmax(dim=1)
        return vectors.gather(1, first[:, None, None].expand(-1, 1, vectors.shape[-1])).squeeze(1)
    real = mask[:, :, None].to(vectors.dtype)
    if mode == "max":
        return vectors.masked_fill(real == 0, float("-inf")).amax(dim=1)
    if mode == "weightedmean":
        before = mask.to(torch.int32).argmax(dim=1)[:, None]
        real = real * (places - before)[:, :, None].to(vectors.dtype)
    total = real.sum(dim=1).clamp(min=_FEWEST)
    return (vectors * real).sum(dim=1) / (total.sqrt() if mode == "mean_sqrt_len_tokens" else total)
