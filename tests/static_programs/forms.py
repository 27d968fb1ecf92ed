"""The stage `static-programs`, run in the test's process on models that are made here; what a folder of programs says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from handlers.child.progress import StageOutput
from handlers.static_programs import description, stage
from handlers.static_programs.feeding import Text, crossed, one_pass
from handlers.static_programs.format import StaticOptions
from handlers.static_programs.session import ProgramSession
from tests.merge import helpers


def programs(model: Path, work: Path, **options: Any) -> tuple[Path, StageOutput]:
    """The programs of a model, taken for a merged one, and what the stage says."""
    context = helpers.context(work, model, None, method="full", merge=model)
    chosen = context.work.with_options(StaticOptions(**options))
    return work / "staging", stage.run(context.model_copy(update={"work": chosen}), helpers.reporter())


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
