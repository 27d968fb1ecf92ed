"""Measures which base the adapter was trained on. The likelihood of the samples' own text on each base that `merge.base` can name.

Called by the stage `reference` while the live worker still holds the model, after the reference was measured; the worker's part is
`engines.adapters.packed_base`. Language models alone, since the measure is the next token of a text. Nothing is decided here: figures and,
where they are clear, a warning. Imports numpy and nothing heavier.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from daemon.contract.jobs.figures import BasesFigures
from daemon.contract.jobs.messages import StageContext
from handlers.models.folder import ModelFolder
from handlers.validate.arithmetic.comparison import Comparison, surprise
from handlers.validate.checks.live.foresight import Progress
from handlers.validate.checks.live.reference import Reference, teacher_forced
from handlers.validate.engines.registry import base_values, stored_quantized
from handlers.validate.workers.client import EngineWorker, WorkerFailed
from handlers.validate.workers.protocol import CanRebase, Rebase

VALUES = ("original", "dequantized", "dequantized-double")
STREAMED = ("LORA", "ADALORA")
"""Methods that can be merged into another base than the original (docs/artifacts.md)."""
MARGIN = 3.0
"""Standard errors by which another base must be better before a warning says so: two others are tried, and neighbours are alike."""


def method(context: StageContext) -> str:
    """Give what the live model is, for people."""
    if context.base is None:
        return "full fine-tune"
    on = "" if base_values(context) == "original" else f", on the {base_values(context)} base"
    mine = f"{context.checkpoint.method} adapter" + (f" × {context.checkpoint.weight:g}" if context.checkpoint.weight != 1 else "")
    others = "".join(f" + {adapter.name} × {adapter.weight:g}" for _, adapter in context.additions)
    return f"{mine}{others} applied at run time, not merged{on}"


def compare(live: EngineWorker, reference: Reference, context: StageContext, folder: Path, progress: Progress) -> BasesFigures | None:
    """Run the samples on the other bases too; None where nobody asked. Adds to the reference's warnings; `folder` is for scratch.

    The live worker holds another base afterwards. Where nothing could be compared the figures say why; a worker that fails is a reason.
    """
    asked, chosen = context.work.validation.bases, base_values(context)
    if context.base is None or not (asked or chosen != "original"):
        return None
    reason = _unfit(reference, context, Path(context.base))
    try:
        reason = reason or live.ask(CanRebase()).reason
        figures = None if reason else _measured(live, reference, chosen, folder, progress)
    except (WorkerFailed, ValueError) as error:
        progress(1.0, "comparing bases")  # ends the stage if it was told to stop, in which case the worker was ended too
        figures, reason = None, error.cause if isinstance(error, WorkerFailed) else str(error)
    if figures is None:
        if asked:
            reference.warnings.append(f"The bases on which the adapter may have been trained were not compared: {reason}.")
        return BasesFigures(chosen=chosen, skipped=reason)
    if warning := better(figures, own=bool(context.work.validation.prompts or context.work.validation.data)):
        reference.warnings.append(warning)
    return figures


def _unfit(reference: Reference, context: StageContext, base: Path) -> str | None:
    """Say why there is nothing to compare, or nothing that `merge.base` could be set to, as a clause."""
    if reference.subject.kind != "causal":
        return "only a language model gives a probability of its text"
    if stored_quantized(base):
        return "the base is stored quantized, so there is only one form of it"
    if context.checkpoint.method not in STREAMED or ModelFolder(base).pickled:
        return "an adapter of this method, or over a base in .bin files, can be merged only into the original base"
    if not reference.readable:
        return "neither checkpoint nor base has a tokenizer, so there is no text"
    return None if any(sample.scored for sample in reference.samples) else "no prompt has a second token"


def _measured(live: EngineWorker, reference: Reference, chosen: str, folder: Path, progress: Progress) -> BasesFigures:
    losses = {chosen: np.concatenate([surprise(np.load(sample.logits, mmap_mode="r"), sample.scored) for sample in reference.samples])}
    divergence: dict[str, float | None] = {}
    for values in VALUES:
        if values == chosen:
            continue
        live.ask(Rebase(values=values))
        comparison, surprises = Comparison(reference.subject.head), []
        for number, sample in enumerate(reference.samples):
            progress(1.0, f"{values} base, prompt {number + 1} of {len(reference.samples)}")
            rows = teacher_forced(live, sample, folder / "other-base.npy")
            comparison.add(np.load(sample.logits), rows)
            surprises.append(surprise(rows, sample.scored))
        losses[values] = np.concatenate(surprises)
        divergence[values] = comparison.figures(reference.logit_std).kl
    (folder / "other-base.npy").unlink()
    return summary(chosen, losses, divergence)


def summary(chosen: str, losses: dict[str, np.ndarray], divergence: dict[str, float | None]) -> BasesFigures:
    """Give the figures of `compare` from losses of the same tokens on each base. The standard error is that of paired differences."""
    means = {values: float(losses[values].mean()) for values in VALUES if values in losses}
    count = len(losses[chosen])
    errors = {
        values: float((losses[chosen] - losses[values]).std(ddof=1) / math.sqrt(count)) if count > 1 else None
        for values in means
        if values != chosen
    }
    best = min(means, key=lambda values: (means[values], values != chosen))
    return BasesFigures(chosen=chosen, best=best, tokens=count, nll=means, error=errors, kl=divergence)


def better(figures: BasesFigures, *, own: bool) -> str | None:
    """Give what to say when another base than the chosen one fits the samples clearly better; `own`: the prompts are the user's."""
    chosen, best, nll = figures.chosen, figures.best, figures.nll
    error = figures.error.get(best) if figures.error and best else None
    if nll is None or best is None or error is None or nll[chosen] - nll[best] <= MARGIN * error:
        return None
    caution = "" if own else "; the built-in prompts are not, so set validate.prompts first"
    return (
        f"The adapter fits the {best} base better: the prompts have {nll[best]:.4g} nats per token there and {nll[chosen]:.4g}"
        f" on the {chosen}"
        f" base (the difference is {nll[chosen] - nll[best]:.2g} ± {error:.1g}, {figures.tokens} tokens)."
        f' To merge into that base, set merge.base = "{best}". This is reliable only if the prompts are the run\'s own data{caution}.'
    )
