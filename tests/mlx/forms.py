"""MLX folders of models that are made here, written in the test's process by the stages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tests.gguf.forms import Said, logits_of

if TYPE_CHECKING:
    from handlers.mlx.engine import MlxEngine


def engine(folder: Path) -> MlxEngine:
    """The folder, opened as the check does."""
    from handlers.mlx.engine import MlxEngine
    from handlers.validate.engines.registry import EngineSpec

    return MlxEngine(EngineSpec(engine="mlx", folder=str(folder), threads=2))


def said(folder: Path, model: Path, length: int = 50) -> Said:
    """What both say of random tokens, mlx-lm in two steps."""
    tokens, wanted = logits_of(model, length)
    opened, places = engine(folder), np.arange(length)[None]
    first, cache = opened.step(tokens[:, :30], np.ones((1, 30), np.int64), places[:, :30], None)
    second, _ = opened.step(tokens[:, 30:], np.ones((1, length), np.int64), places[:, 30:], cache)
    return Said(np.concatenate((first, second), 1)[0], wanted)


def difference(folder: Path, merged: Path) -> str | None:
    """What the engine says of the folder's weights."""
    from handlers.mlx.engine import MlxEngine
    from handlers.validate.engines.registry import EngineSpec

    return MlxEngine.weights_difference(EngineSpec(engine="mlx", folder=str(folder)), merged)
