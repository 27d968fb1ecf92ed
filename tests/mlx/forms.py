"""MLX folders of models that are made here, written in the test's process by the stages."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from daemon.contract.formats.catalog import catalog
from handlers.child.progress import StageOutput
from tests.merge import helpers

if TYPE_CHECKING:
    from handlers.mlx.engine import MlxEngine


def make(variant: str, model: Path, work: Path) -> tuple[Path, StageOutput]:
    """The folder that a stage makes, and what it says."""
    run = pkgutil.resolve_name(catalog().variants[variant].entry)
    context = helpers.context(work, model, None, method="full", merge=model)
    context = context.model_copy(update={"stage": variant, "inputs": {**context.inputs, "pytorch": str(model)}})
    return work / "staging", run(context, helpers.reporter())


def engine(folder: Path) -> MlxEngine:
    """The folder, opened as the check does."""
    from handlers.mlx.engine import MlxEngine
    from handlers.validate.engines.registry import EngineSpec

    return MlxEngine(EngineSpec(engine="mlx", folder=str(folder), threads=2))


@dataclass(frozen=True)
class Said:
    """Logits (S, V) of the same tokens, by mlx-lm and by transformers in fp32."""

    found: np.ndarray
    wanted: np.ndarray

    @property
    def error(self) -> float:
        """max |Δlogit|, in units of the standard deviation."""
        return float(np.abs(self.found - self.wanted).max() / self.wanted.std())


def said(folder: Path, model: Path, length: int = 50) -> Said:
    """What both say of random tokens, mlx-lm in two steps."""
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.randint(4, 300, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(ids).logits[0].numpy()
    opened, tokens, places = engine(folder), ids.numpy(), np.arange(length)[None]
    first, cache = opened.step(tokens[:, :30], np.ones((1, 30), np.int64), places[:, :30], None)
    second, _ = opened.step(tokens[:, 30:], np.ones((1, length), np.int64), places[:, 30:], cache)
    return Said(np.concatenate((first, second), 1)[0], wanted)


def difference(folder: Path, merged: Path) -> str | None:
    """What the engine says of the folder's weights."""
    from handlers.mlx.engine import MlxEngine
    from handlers.validate.engines.registry import EngineSpec

    return MlxEngine.weights_difference(EngineSpec(engine="mlx", folder=str(folder)), merged)
