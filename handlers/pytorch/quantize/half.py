"""The stages `pytorch-fp16` and `pytorch-bf16`: the merged model's folder with its weights in 16 bits.

Run by `handlers.__main__` after the merge. Tensors pass through in blocks of rows, so memory does not depend on the model. What is no
floating-point number stays as it is. fp16 ends at 65504, so a weight beyond it is an error that names it; bf16 has the range of fp32.
"""

from __future__ import annotations

from pathlib import Path

import torch

from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.models.folder import ModelFolder
from handlers.pytorch.quantize.source import Merged, limit
from handlers.pytorch.quantize.writing import WeightFiles
from handlers.pytorch.stage import surround

FLUSHED = 0.01
"""Share of elements that became zero from which on it is worth a warning."""


def fp16(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `pytorch-fp16`. Permanent `dtype-overflow` for a weight beyond fp16."""
    return convert(context, reporter, torch.float16, "pytorch-fp16")


def bf16(context: StageContext, reporter: Reporter) -> StageOutput:
    """The stage `pytorch-bf16`."""
    return convert(context, reporter, torch.bfloat16, "pytorch-bf16")


def convert(context: StageContext, reporter: Reporter, dtype: torch.dtype, variant: str) -> StageOutput:
    """Write the merged weights in `dtype` into the staging folder, with the other files of a model's folder."""
    model, staging = ModelFolder(Path(context.inputs["merge"])), Path(context.staging)
    merged, name = Merged(model, dtype, variant), str(dtype).removeprefix("torch.")
    with WeightFiles(staging, [merged.declare(tensor) for tensor in model.headers], limit(context)) as files:
        done = 0
        for tensor, info in model.headers.items():
            reporter.progress(0.9 * done / max(1, model.stored_bytes), f"writing {tensor}")
            merged.copy(tensor, files)
            done += info.size
    reporter.progress(0.9, "copying tokenizer and chat template")
    output = surround(context, model, said(model, name))
    rounded = merged.rounded
    figures = {"weight_bytes": files.size, "converted_weights": rounded.elements, "flushed_to_zero": rounded.flushed}
    output.figures = {**figures, **output.figures}
    if not rounded.elements:
        output.warnings.append(f"the merged model is stored in {name} already, so {variant} holds the same weights as pytorch")
    if rounded.flushed > FLUSHED * max(1, rounded.elements):
        output.warnings.append(f"{rounded.flushed / rounded.elements:.1%} of the weights are too small for {name} and became zero")
    return output


def said(model: ModelFolder, dtype: str) -> dict[str, str]:
    """The edits of config.json that name a dtype, under the names that are there."""
    names = [key for key in ("dtype", "torch_dtype") if model.setting(key) is not None]
    return dict.fromkeys(names or ["dtype"], dtype)
