"""Make a smaller form of a folder of graphs: each graph through a compressor, everything beside them as it is.

Called by the stages of formats whose smaller forms are made of their own graphs (OpenVINO, LiteRT, Core ML).
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from daemon.contract.jobs.messages import StageContext
from daemon.contract.values import Json
from handlers.child.progress import Reporter
from handlers.child.variants import refusing
from handlers.graphs import graphset
from handlers.graphs.graphset import Graph, GraphSet

Compress = Callable[[Path, Path, Graph], None]
"""compress(source, target, graph): write a smaller form of the file `source` to `target`."""


def compressed(context: StageContext, reporter: Reporter, origin: str, dtype: str, compress: Compress, compressor: str) -> GraphSet:
    """Write the graphs that the stage `origin` made into the staging folder, compressed, and copy what lies beside them.

    Return their description as `dtype` ("int8", "int4"), which is not written yet. Raises Permanent `form-not-possible` where the
    `compressor`, by its name, refuses one.
    """
    source, staging = Path(context.inputs[origin]), Path(context.staging)
    known = graphset.read(source)
    for number, graph in enumerate(known.graphs):
        reporter.progress(0.05 + 0.75 * number / len(known.graphs), f"compressing {graph.file}")
        with refusing(context, f"{compressor} does not compress it"):
            compress(source / graph.file, staging / graph.file, graph)
    graphset.copy_beside(source, staging, known)
    return known.model_copy(update={"dtype": dtype})


def figures(dtype: str, library: str, weights: Mapping[str, int], small: Collection[str]) -> Json:
    """Return what every smaller form says: the distribution that made it with its version, bits, and the share of its weights, counted by
    their types, whose type is one of `small`."""
    share = sum(count for kind, count in weights.items() if kind in small) / max(1, sum(weights.values()))
    return {"library": importlib.metadata.version(library), "bits": int(dtype.removeprefix("int")), "small_share": round(share, 4)}
