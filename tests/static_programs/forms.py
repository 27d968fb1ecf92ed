"""The stage `static-programs`, run in the test's process on models that are made here; what a folder of programs says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from handlers.child.progress import StageOutput
from handlers.static_programs import description
from handlers.static_programs.published.feeding import Text, crossed, one_pass
from handlers.static_programs.session import ProgramSession
from tests import stages
from tests.onnx import qwen
from tests.sharing import shared


def programs(model: Path, work: Path, **options: Any) -> tuple[Path, StageOutput]:
    """The programs of a model, taken for a merged one, and what the stage says."""
    return stages.make("static-programs", model, work, **options)


def tiny(factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A language model, and its programs with room for 40 tokens. Read only."""

    def make(folder: Path) -> tuple[Path, Path]:
        model = qwen.make(folder / "model")
        return model, programs(model, folder / "programs", context_length=40)[0]

    return shared(factory, "static-programs", make)


def tied(factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A language model whose head is its table of tokens, and its programs with room for 96 tokens. Read only."""

    def make(folder: Path) -> tuple[Path, Path]:
        model = qwen.make(folder / "model", tie_word_embeddings=True, hidden_size=96, vocab_size=1024)
        return model, programs(model, folder / "programs", context_length=96)[0]

    return shared(factory, "static-programs-tied", make)


def program(folder: Path, role: str) -> ProgramSession:
    """One program of a folder, opened."""
    return ProgramSession(folder / description.read(folder).graph(role).file, role)


def said(folder: Path, opened: Callable[[Path, str], Any]) -> list[np.ndarray]:
    """What the programs of a folder say, or what was made of them: of texts that come in pieces, by turns with another text, until their
    room is full. `opened`: gives one of them, by folder and role.
    """
    described, random = description.read(folder), np.random.default_rng(3)
    length = described.length
    if described.known.family == "encoder":
        model, found = opened(folder, "model"), []
        for count in (9, 2, 40, length):
            arrays = {
                "input_ids": random.integers(5, 90, (1, count)),
                "attention_mask": np.ones((1, count)),
                "token_type_ids": np.zeros((1, count)),
            }
            feeds = {port.name: arrays[port.name] for port in described.graph("model").inputs}
            found += [array for _, array in sorted(one_pass(model, feeds, 0, described.axes("model")).items())]
        return found
    if described.known.family == "causal":
        model = opened(folder, "model")
        texts = [Text(model, length) for _ in range(2)]
    else:
        encoder, model = opened(folder, "encoder"), opened(folder, "decoder")
        sources = [random.integers(5, 90, (1, count)) for count in (9, 20)]
        texts = [Text(model, length, crossed(encoder, {"input_ids": one, "attention_mask": np.ones_like(one)}, 0)) for one in sources]
    pieces = (7, 1, 1, 40, length - 49)  # 40 is more than a piece, and the last one reaches the last place of the cache
    return [text.feed(random.integers(5, 90, count).tolist()) for count in pieces for text in texts]


def unheard(source: Path, folder: Path) -> Path:
    """A folder like `source`, whose only program has an operator that no converter knows."""
    import torch

    class Unheard(torch.nn.Module):
        def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            numbers: torch.Tensor = torch.special.bessel_j0(ids.float())[..., None]
            return numbers

    folder.mkdir()
    text, free = torch.zeros(1, 5).int(), {1: torch.export.Dim("tokens", min=1, max=32)}
    torch.export.save(torch.export.export(Unheard(), (text, text), dynamic_shapes=(free, free)), folder / "model.pt2")
    known = description.read(source).known
    graph = known.graphs[0]
    logits = graph.outputs[0].model_copy(update={"shape": (1, "tokens", 1)})
    known.model_copy(update={"graphs": (graph.model_copy(update={"inputs": graph.inputs[:2], "outputs": (logits,)}),)}).write(folder)
    return folder
