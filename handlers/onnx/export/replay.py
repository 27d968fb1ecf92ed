"""One export of a model of random weights by one strategy: what a written reproduction of a failure runs."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

from daemon.contract.jobs.messages import CheckpointRef, StageContext
from daemon.contract.jobs.options import ExportOptions, ValidateOptions, Work
from handlers.child.progress import Reporter
from handlers.onnx.tracing.strategies import STRATEGIES, named


def replay(folder: Path, strategy: str, opset: int) -> None:
    """Make a model of random weights of the configuration in `folder`, export it by a strategy and check it; raises what fails."""
    import torch
    import transformers

    from handlers.families.choice import choose
    from handlers.onnx.export.building import build

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch, "model")
        family = choose(folder)
        config = transformers.AutoConfig.from_pretrained(folder)
        getattr(transformers, family.task.auto).from_config(config).save_pretrained(model)
        build(named(STRATEGIES, strategy), family, _job(model, Path(scratch), opset), Reporter(io.StringIO()))


def _job(model: Path, scratch: Path, opset: int) -> StageContext:
    """A job of its own for one export of `model`."""
    folders = {name: scratch / name for name in ("staging", "temporary", "cache")}
    for path in folders.values():
        path.mkdir()
    nothing = CheckpointRef(root="", run="reproduction", step=0, path="", layout="", digest="", method="full")
    options = ExportOptions.model_construct(variants=("onnx",), quantization="", opset=opset)
    return StageContext(
        job="reproduction", stage="onnx", attempt=1, checkpoint=nothing, pin=str(model), inputs={"merge": str(model)},
        result=str(scratch / "result.json"), work=Work(export=options, validation=ValidateOptions()),
        staging=str(folders["staging"]), temporary=str(folders["temporary"]), cache=str(folders["cache"]),
    )  # fmt: skip
