"""Probe of the toolchain `coreml`: a program with a state is converted, rounded, read from disk again and evaluated. Runs inside."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from handlers.toolchains import inside

WIDTH, LENGTH = 32, 16


def probe(options: argparse.Namespace) -> inside.Probed:
    """Convert, compress and evaluate a sum that goes on. Raises whatever is wrong."""
    import numpy as np
    import torch

    from handlers.coreml.compressing import compression
    from handlers.coreml.converting import conversion
    from handlers.coreml.evaluation import package
    from handlers.coreml.evaluation.evaluator import Evaluator
    from handlers.graphs.graphset import Graph, Port

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.product = torch.nn.Embedding(64, WIDTH), torch.nn.Linear(WIDTH, WIDTH)

        def forward(self, ids: torch.Tensor, past: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            kept = past + self.product(self.table(ids)).sum(1)[:, None, None]
            return kept * 2, kept

    torch.manual_seed(0)
    module, text, past = Sum().eval(), torch.arange(8)[None].int(), torch.zeros(1, 1, 1, WIDTH)
    ids = Port(name="input_ids", dtype="int32", shape=(1, "tokens"))
    kept, logits, given = (
        Port(name=name, dtype="float32", shape=(1, 1, 1, WIDTH)) for name in ("past_key_values.0.key", "logits", "present.0.key")
    )
    graph = Graph(role="model", file="model.pt2", inputs=(ids, kept), outputs=(logits, given))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        made, small = Path(folder, "model.mlpackage"), Path(folder, "small.mlpackage")
        free = ({1: torch.export.Dim("tokens", min=1, max=LENGTH)}, None)
        torch.export.save(torch.export.export(module, (text, past), dynamic_shapes=free, strict=False), Path(folder, graph.file))
        conversion.convert(Path(folder, graph.file), graph, LENGTH, conversion.sizes_of("model", LENGTH, (1, LENGTH)), made, half=True)
        compression.int8(made, small)
        evaluator = Evaluator(package.read(small))
        state = evaluator.start()
        for _ in range(2):
            outputs, state = evaluator.run(state, {"input_ids": np.array([[7]], np.int32)})
        wanted = 2 * module(torch.tensor([[7]]), module(torch.tensor([[7]]), past)[1])[1].numpy()
    error = float(np.abs(outputs["logits"] - wanted).max())
    if not 0 < error < 0.05 * float(wanted.std()):
        raise RuntimeError(f"what Core ML Tools made of a product differs by {error} from torch")
    return inside.Probed(inside.versions(("coremltools", "torch", "tokenizers")), error)


if __name__ == "__main__":
    inside.main(argparse.ArgumentParser(description=__doc__), probe)
