"""The stages of ExecuTorch's formats, run in the test's process on programs that are made here; what a folder of programs says."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.formats.catalog import catalog
from handlers.child.progress import StageOutput
from handlers.executorch.options import ExecuTorchOptions
from handlers.static_programs import description
from handlers.static_programs.feeding import Text, crossed, one_pass
from tests.merge import helpers

VARIANTS = ("executorch", "executorch-int8", "executorch-8da4w")


def make(variant: str, model: Path, programs: Path, work: Path, **options: Any) -> tuple[Path, StageOutput]:
    """The folder that a stage makes of a folder of `static-programs`, and what it says."""
    context = helpers.context(work, model, None, method="full", **{"static-programs": programs})
    chosen = context.work.with_options(ExecuTorchOptions(**options))
    run = pkgutil.resolve_name(catalog().variants[variant].entry)
    return work / "staging", run(context.model_copy(update={"work": chosen, "stage": variant}), helpers.reporter())


def said(folder: Path, session: Callable[[Path, str], Any]) -> list[np.ndarray]:
    """What the programs of a folder say: of texts that come in pieces, by turns with another text, until their room is full."""
    described, random = description.read(folder), np.random.default_rng(3)
    opened = {graph.role: session(folder / graph.file, graph.role) for graph in described.known.graphs}

    def ids(count: int) -> np.ndarray:
        return random.integers(5, 90, (1, count))

    if described.known.family == "encoder":
        found = []
        for count in (9, 2, described.length):
            arrays = {"input_ids": ids(count), "attention_mask": np.ones((1, count)), "token_type_ids": np.zeros((1, count))}
            names = [port.name for port in described.graph("model").inputs]
            found += one_pass(opened["model"], {name: arrays[name] for name in names}, 0, described.axes("model")).values()
        return found
    if described.known.family == "causal":
        texts = [Text(opened["model"], described.length) for _ in range(2)]
    else:
        feeds = [{"input_ids": one, "attention_mask": np.ones_like(one)} for one in (ids(9), ids(20))]
        texts = [Text(opened["decoder"], described.length, crossed(opened["encoder"], one, 0)) for one in feeds]
    pieces = (7, 1, 1, 40, described.length - 49)
    return [text.feed(ids(count)[0].tolist()) for count in pieces for text in texts]
