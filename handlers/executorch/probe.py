"""Probe of the toolchain `executorch`: a program with 4-bit weights is made and run, and XNNPACK runs its product. Runs inside."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from handlers.toolchains import inside

WIDTH = 64


def probe(options: argparse.Namespace) -> inside.Probed:
    """Lower and run a product. Raises whatever is wrong."""
    import torch

    from handlers.executorch import lowering, quantization
    from handlers.executorch.session import bindings

    torch.manual_seed(0)
    product, example = torch.nn.Linear(WIDTH, WIDTH).eval(), torch.randn(1, 3, WIDTH)
    with torch.no_grad():
        wanted = product(example)
        module: Any = torch.export.export(product, (example,)).module()
        quantization.quantize(module, 32, None)
        made = lowering.lowered(torch.export.export(module, (example,)), {})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "probe.pte")
            path.write_bytes(made.manager.buffer)
            actual = bindings().Runtime.get().load_program(path).load_method("forward").execute([example])[0]
    error = float((actual - wanted).abs().max())
    if not 0 < error < 0.5 * float(wanted.std()) or not made.delegates:
        raise RuntimeError(f"a product with 4-bit weights differs by {error} from the one in fp32; XNNPACK took {made.delegates} parts")
    return inside.Probed(inside.versions(("executorch", "torch", "torchao", "tokenizers")), error)


if __name__ == "__main__":
    inside.main(argparse.ArgumentParser(description=__doc__), probe)
