"""Probe of the toolchain `litert`: a model with two signatures is made and its weights are rounded, and LiteRT runs it. Runs inside."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from handlers.toolchains import inside

WIDTH = 64


def probe(options: argparse.Namespace) -> inside.Probed:
    """Convert, compress and run a product. Raises whatever is wrong."""
    import torch

    from handlers.graphs.graphset import Graph, Port
    from handlers.litert import compression, conversion
    from handlers.litert.session import Session

    torch.manual_seed(0)
    product, text = torch.nn.Sequential(torch.nn.Embedding(32, WIDTH), torch.nn.Linear(WIDTH, WIDTH)).eval(), torch.arange(8)[None].int()
    ports = [
        Port(name=name, dtype=dtype, shape=(1, "tokens", *more))
        for name, dtype, *more in (("input_ids", "int32"), ("logits", "float32", WIDTH))
    ]
    graph = Graph(role="model", file="model.pt2", inputs=(ports[0],), outputs=(ports[1],))
    free = ({1: torch.export.Dim("tokens", min=2, max=256)},)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        source, plain, small = (Path(folder, f"model.{ending}") for ending in ("pt2", "tflite", "small.tflite"))
        torch.export.save(torch.export.export(product, (text,), dynamic_shapes=free), source)
        conversion.convert(source, graph, conversion.signatures(graph, (2, 256), 256), plain)
        compression.int4(plain, small, 32, None)
        session = Session(small)
        wide = torch.nn.functional.pad(text, (0, session.sizes[0] - text.shape[1]))
        actual = session.run(session.start(), {"input_ids": wide.numpy()})[0]["logits"]
        wanted = product(wide).numpy()
    error = float(abs(actual - wanted).max())
    if not 0 < error < 0.5 * float(wanted.std()):
        raise RuntimeError(f"a model with 4-bit weights differs by {error} from the one in fp32")
    return inside.Probed(inside.versions(("litert-torch", "litert-converter", "ai-edge-litert", "ai-edge-quantizer", "torch")), error)


if __name__ == "__main__":
    inside.main(argparse.ArgumentParser(description=__doc__), probe)
