"""A second reader: compares the outputs of optimum's ORTModel classes for an ONNX folder with those of our own engine.

Called by the stages `check-VARIANT` for artifacts that run in the engine `onnx`, where the toolchain `optimum` is installed. Both sides run
the same files, so a difference can't come from quantization, only from the way in which the folder is read. A failure of the other reader
is only a figure and never affects the verdict. It reads one sample, in a process of its own that holds the artifact a second time. This
module imports numpy and nothing heavier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daemon.contract.disk.files import remove_tree
from daemon.contract.faults.errors import CkptdError
from daemon.contract.jobs.figures import ForeignFigures
from daemon.contract.jobs.messages import StageContext
from handlers.models.files import read_json
from handlers.toolchains import use
from handlers.toolchains.optimum_reader import Reading
from handlers.validate.checks.live.samples import Sample
from handlers.validate.engines.generation_rules import read_rules
from handlers.validate.engines.task_profile import ValidatedTask

NAME = "optimum"
MODULE = "handlers.toolchains.optimum_reader"
TOKENS = 32
"""Most tokens that are decoded: the cache is exercised by a few."""


@dataclass(frozen=True)
class OwnAnswer:
    """The outputs of our engine for one sample."""

    folder: Path
    """The artifact's."""
    subject: ValidatedTask
    sample: Sample
    rows: Path
    """A .npy file of (len(sample.keep), V)."""
    tokens: Sequence[int]
    """What it decoded; empty for an encoder."""


def compare(context: StageContext, own: OwnAnswer, limit: float, *, safe_point: Callable[[], None] = lambda: None) -> ForeignFigures | None:
    """Have the second reader run the same sample of the same artifact; None where its toolchain is not installed.

    `limit` is the largest max |Δ| that still counts as the same. Gives engine, error_max_absolute, greedy_identical, adjusted
    (what of the reader had to be put right) and differs; or engine and failed, the reason why it can't read the folder.
    """
    toolchain = use.find(context, NAME)
    if toolchain is None:
        return None
    scratch = Path(context.temporary) / "foreign"
    remove_tree(scratch)
    scratch.mkdir(parents=True)
    try:
        return _read(toolchain, own, limit, context.limits.threads, scratch, safe_point)
    except (use.ToolchainFailedError, CkptdError, ValueError) as error:
        return ForeignFigures(engine=NAME, failed=str(error).strip().splitlines()[0])
    finally:
        remove_tree(scratch)


def _read(
    toolchain: Path, own: OwnAnswer, limit: float, threads: int, scratch: Path, safe_point: Callable[[], None]
) -> ForeignFigures:  # fmt: skip
    inputs, outputs, count = scratch / "in.npz", scratch / "out.npz", min(len(own.tokens), TOKENS)
    arrays: dict[str, Any] = {name: np.asarray([ids], np.int64) for name, ids in _feeds(own.folder, own.subject, own.sample).items()}
    np.savez(inputs, **arrays)
    options = {
        "folder": own.folder, "task": own.subject.task, "inputs": inputs, "outputs": outputs, "new_tokens": count,
        "prompt": len(own.sample.ids), "threads": threads,
    }  # fmt: skip
    said = use.run_module(toolchain, MODULE, options, scratch, Reading, safe_point=safe_point)
    with np.load(outputs) as made:
        error = _error(_rows(own.subject, made)[own.sample.keep], np.load(own.rows))
        identical = made["tokens"][0].tolist() == list(own.tokens[:count]) if count else None
    return ForeignFigures(
        engine=f"{NAME} {said.reader}", greedy_identical=identical, error_max_absolute=error, adjusted=said.adjusted,
        differs=not error <= limit,
    )  # fmt: skip


def _feeds(folder: Path, subject: ValidatedTask, sample: Sample) -> dict[str, list[int]]:
    """Give token ids by input, of the pass whose rows our engine gave."""
    if subject.kind == "causal":
        return {"input_ids": [*sample.ids, *sample.tokens]}
    if subject.kind == "encoder":
        return {"input_ids": sample.ids, **({} if sample.types is None else {"token_type_ids": sample.types})}
    paths = (folder / "config.json", folder / "generation_config.json")
    config, generation = (read_json(path, "decode with the model") if path.exists() else {} for path in paths)
    return {"input_ids": sample.ids, "decoder_input_ids": [read_rules(generation, config).start, *sample.tokens[:-1]]}


def _rows(subject: ValidatedTask, made: Mapping[str, np.ndarray]) -> np.ndarray:
    """Give rows (P, V) as our own drivers give them. Raises ValueError for outputs of another kind."""
    if subject.task == "question-answering":
        return np.stack([made["start_logits"][0], made["end_logits"][0]])
    name = "last_hidden_state" if subject.task == "feature-extraction" else "logits"
    if name not in made:
        raise ValueError(f"it gives {', '.join(made)}, and no {name}")
    return made[name] if subject.task == "text-classification" else made[name][0]


def _error(rows: np.ndarray, wanted: np.ndarray) -> float:
    if rows.shape != wanted.shape:
        raise ValueError(f"it gives rows of the shape {rows.shape}, and {wanted.shape} were expected")
    error = float(np.abs(rows - wanted).max(initial=0.0))
    return error if np.isfinite(error) else float("inf")


def sentence(variant: str, figures: ForeignFigures | None) -> str | None:
    """Give the warning that follows from `compare`'s figures; None where the second reader gives the same outputs, or was not run."""
    if figures is None:
        return None
    if figures.failed is not None:
        return f"{variant}: {figures.engine} can't read it (other programs may be able to): {figures.failed}"
    if figures.differs:
        return (
            f"{variant}: {figures.engine} computes other outputs from the same files (max |Δ| {figures.error_max_absolute:.3g}):"
            " don't use it with optimum until you know why"
        )
    if figures.greedy_identical is False:
        return (
            f"{variant}: {figures.engine} computes the same outputs in one pass but decodes other tokens: it uses the cache in another way"
        )
    return None
