"""GGUF files of models that are made here, written in the test's process, by the stages or in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from handlers.child.progress import StageOutput
from tests import stages
from tests.merge import helpers

if TYPE_CHECKING:
    from handlers.gguf.engine import GgufEngine


def make(variant: str, model: Path, work: Path, texts: int = 0) -> tuple[Path, StageOutput]:
    """See `stages.make`. `texts`: how many say which columns count."""
    return stages.make(variant, model, work, calibration_samples=texts)


def exact(model: Path, work: Path) -> Path:
    """The folder with the model in fp32, which no stage publishes."""
    from handlers.gguf import stage

    stage.made(helpers.context(work, model, None, method="full", pytorch=model), helpers.reporter(), "f32")
    return work / "staging"


def engine(folder: Path) -> GgufEngine:
    """The folder, opened as the check does."""
    from handlers.gguf.engine import GgufEngine
    from handlers.validate.engines.registry import EngineSpec

    return GgufEngine(EngineSpec(engine="gguf", folder=str(folder), threads=2))


@dataclass(frozen=True)
class Said:
    """Logits (S, V) of the same tokens, by a runtime and by transformers in fp32."""

    found: np.ndarray
    wanted: np.ndarray

    @property
    def error(self) -> float:
        """max |Δlogit|, in units of the standard deviation."""
        return float(np.abs(self.found - self.wanted).max() / self.wanted.std())


def logits_of(model: Path, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Random tokens (1, S), and what transformers says of them in fp32: logits (S, V)."""
    import torch
    from transformers import AutoModelForCausalLM

    ids = torch.randint(4, 300, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(ids).logits[0].numpy()
    return ids.numpy(), logits


def said(folder: Path, model: Path, length: int = 90) -> Said:
    """What both say of random tokens."""
    from handlers.gguf.llama import library

    ids, wanted = logits_of(model, length)
    (path,) = folder.glob("*.gguf")
    with library.Model(path) as opened:
        context = library.Context(opened, 256, 1, 2)
        found = context.run([(int(token), place, 0) for place, token in enumerate(ids[0])])
        context.close()
    return Said(found, wanted)


def keys(path: Path) -> dict[str, Any]:
    """The keys of a file."""
    import gguf

    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}
