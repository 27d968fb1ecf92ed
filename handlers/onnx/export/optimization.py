"""The onnx stage's last step on a finished folder: its graphs are optimized as `[onnx] optimize` says, and each step is verified.

Called when the configuration and the tokenizer are beside the graphs, so that the comparison can use real texts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from daemon.contract.errors import CkptdError
from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter
from handlers.models.files import read_json
from handlers.onnx.folder.playback import tokenize
from handlers.onnx.graphs.graphset import GraphSet
from handlers.onnx.optimize.run import Optimized, OptimizeOptions, optimize
from handlers.onnx.options import OnnxOptions
from handlers.texts.built_in import FURTHER

TEXTS = 4
"""Built-in texts that are compared: each takes a prefill and a step of every graph for every change."""


def optimize_export(context: StageContext, graphs: GraphSet, verify: Callable[[Path], float], reporter: Reporter) -> Optimized:
    """Optimize the staging folder's graphs in place; `verify` compares a folder with the model and raises when they differ."""
    staging = Path(context.staging)
    return optimize(
        staging, graphs, context.work.options(OnnxOptions).optimize, verify,
        read_json(staging / "config.json", "read the model's configuration"),
        OptimizeOptions(threads=context.limits.threads, texts=_texts(staging)),
        lambda share, what: reporter.progress(0.87 + 0.1 * share, what),
    )  # fmt: skip


def _texts(staging: Path) -> tuple[tuple[int, ...], ...]:
    """Token ids of a few texts; none where the folder's tokenizer can't give them."""
    try:
        return tuple(tuple(row) for row in tokenize(staging, FURTHER[:TEXTS]).rows)
    except CkptdError:
        return ()
