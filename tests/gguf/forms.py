"""GGUF files of models that are made here, written in the test's process, by the stages or in fp32."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daemon.contract.formats.catalog import catalog
from handlers.child.progress import StageOutput
from handlers.gguf.format import GgufOptions
from tests.merge import helpers

if TYPE_CHECKING:
    from daemon.contract.jobs.messages import StageContext
    from handlers.gguf.engine import GgufEngine


def context_of(model: Path, work: Path, texts: int = 0) -> StageContext:
    """The job of a stage for a merged model."""
    context = helpers.context(work, model, None, method="full", merge=model)
    options = context.work.with_options(GgufOptions(calibration_samples=texts))
    return context.model_copy(update={"work": options, "inputs": {**context.inputs, "pytorch": str(model)}})


def make(variant: str, model: Path, work: Path, texts: int = 0) -> tuple[Path, StageOutput]:
    """The folder that a stage makes, and what it says."""
    run = pkgutil.resolve_name(catalog().variants[variant].entry)
    context = context_of(model, work, texts).model_copy(update={"stage": variant})
    return work / "staging", run(context, helpers.reporter())


def exact(model: Path, work: Path) -> Path:
    """The folder with the model in fp32, which no stage publishes."""
    from handlers.gguf import stage

    stage.made(context_of(model, work), helpers.reporter(), "f32")
    return work / "staging"


def engine(folder: Path) -> GgufEngine:
    """The folder, opened as the check does."""
    from handlers.gguf.engine import GgufEngine
    from handlers.validate.engines.registry import EngineSpec

    return GgufEngine(EngineSpec(engine="gguf", folder=str(folder), threads=2))


@dataclass(frozen=True)
class Said:
    """Logits (S, V) of the same tokens, by llama.cpp and by transformers in fp32."""

    found: np.ndarray
    wanted: np.ndarray

    @property
    def error(self) -> float:
        """max |Δlogit|, in units of the standard deviation."""
        return float(np.abs(self.found - self.wanted).max() / self.wanted.std())


def said(folder: Path, model: Path, length: int = 90) -> Said:
    """What both say of random tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    from handlers.gguf import library

    ids = torch.randint(4, 300, (1, length), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        wanted = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)(ids).logits[0].numpy()
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
