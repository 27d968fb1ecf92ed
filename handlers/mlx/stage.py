"""The stages `mlx…`: the merged model as the folder that mlx-lm loads, as it is or packed into 8 or 4 bits.

Run by `handlers/__main__.py` with the Python of the toolchain `mlx`. mlx-lm says what belongs into the folder; weights are read, packed
by MLX itself and written a few rows at a time, so that memory does not grow with the model. What the check runs is mlx-lm.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import math
from pathlib import Path

from mlx_lm import utils

from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.child.variants import NotPossible, not_possible
from handlers.mlx import layout, writing
from handlers.models.files import copy_tokenizer
from handlers.models.folder import ModelFolder, copy_generation


def made(context: StageContext, reporter: Reporter, bits: int | None) -> StageOutput:
    """One of the stages; `bits` of a packed weight, None to leave them as they are. Permanent `form-not-possible`."""
    try:
        return _made(context, reporter, bits)
    except NotPossible as error:
        raise not_possible(context, str(error), context.inputs["pytorch"]) from error


plain, int8, int4 = (functools.partial(made, bits=bits) for bits in (None, 8, 4))


def _made(context: StageContext, reporter: Reporter, bits: int | None) -> StageOutput:
    source, staging = ModelFolder(Path(context.inputs["pytorch"])), Path(context.staging)
    reporter.progress(0.02, "asking mlx-lm how it stores the model")
    planned = layout.of(source, bits)
    counts = _counts(planned)
    kinds = sorted({tensor.dtype for tensor in planned.tensors})
    written = writing.write(planned.tensors, staging, lambda done: reporter.progress(0.05 + 0.85 * done, "writing weights"))
    (staging / "config.json").write_text(json.dumps(planned.config, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
    copy_generation(source.path, staging)
    copied = copy_tokenizer(source.path, None, staging)
    reporter.progress(0.95, "opening the folder with mlx-lm")
    _prove(staging)
    warnings = [] if copied.source else ["there is no tokenizer, so mlx-lm can't load the folder by itself"]
    if planned.window is not None:
        warnings.append(
            f"{layout.library()} has no sliding window for a {planned.config['model_type']} model: it lets a token see all that stand"
            f" before it, and the model was trained to see {planned.window:,}"
        )
    figures = {
        "library": layout.library(), "mlx": importlib.metadata.version("mlx"), "weight_bytes": written, "dtypes": kinds, "weights": counts,
        "not_packed": planned.kept, "chat_template": copied.chat_template,
    }  # fmt: skip
    return StageOutput(figures=figures, warnings=warnings)


def _counts(planned: layout.Layout) -> dict[str, int]:
    """Bits, or dtype → weights stored in them."""
    counts: dict[str, int] = {}
    for tensor in planned.tensors:
        kind = f"{tensor.packing.bits} bits" if tensor.packing else tensor.dtype
        counts[kind] = counts.get(kind, 0) + math.prod(tensor.shape)
    return counts


def _prove(folder: Path) -> None:
    """mlx-lm finds all weights of the folder in the shapes that it expects. Raises NotPossible."""
    try:
        utils.load_model(folder, lazy=True)
    except (ValueError, TypeError, KeyError) as error:
        said = " ".join(str(error).split())[:300].rstrip(".")
        raise NotPossible(f"{layout.library()} does not load its own form of the model ({said})") from error
