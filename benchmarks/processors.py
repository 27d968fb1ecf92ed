"""What each way to multiply 8-bit integers costs and gives, in the kernels of other processors.

    python benchmarks/processors.py [--json FILE] [--rounds 40] [--seconds 60] [--texts 24]

`ms_LEVEL_FORM_ROWS` and `wrong_LEVEL_FORM_ROWS`: a product of ROWS × 1,024 with 1,024 × 4,096, one thread, milliseconds (median)
and the share of sums that are wrong; FORM is the types of activations and weights, `whole` range, with `room` for sums in 16 bits (as
onnx-int8 writes them) or in `7bit`; LEVEL is what onnxruntime is told the processor can (`tests.portability.masking`), as far as this
one can play it. `error_FORM`, `kl_FORM`, `agreement_FORM`: the demo's base, trained for `--seconds`, as onnx-int8 in that form against
its fp32 graph, on `--texts` functions of the standard library; u8 x u8 holds the same numbers as `whole`. Peers: onnxruntime's own
quantizer writes `whole`, with `reduce_range` 7 bits.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.remove(str(Path(__file__).resolve().parent))  # its onnx.py would be taken for the library
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks import _common
from benchmarks.onnx import stage
from daemon.contract import cpu
from handlers.folder.playback import GraphRun, Player, run, tokenize
from handlers.graphs import graphset
from handlers.graphs.sessions import open_session
from handlers.onnx.quantize.accuracy_levels import compare
from handlers.onnx.quantize.rewriters import int8_rewriter
from tests.portability import masking

INPUTS, OUTPUTS = 1024, 4096
ROWS = (1, 16)


def scales(weight: np.ndarray, channel: int, form: str) -> np.ndarray:
    """The scales of an int8 matrix in one of the forms of the signed weights."""
    extent = np.abs(weight).max(axis=1 - channel)
    if form == "7bit":
        extent = extent * np.float32(127 / 64)
    elif form == "room":
        extent = np.maximum(extent, 2 * int8_rewriter._largest_pairs(weight, channel))
    return np.where(extent > 0, extent / np.float32(127), np.float32(1)).astype(np.float32)


def quantizer(form: str) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """`quantize_matrix` in another form."""

    def quantize(weight: np.ndarray, channel: int, *, multiplied: bool = True) -> tuple[np.ndarray, np.ndarray]:
        found = scales(weight, channel, form if multiplied else "whole")
        return np.rint(weight / (found[:, None] if channel == 0 else found)).astype(np.int8), found

    return quantize


def products(folder: Path) -> None:
    """A graph for each form, with calls and what is right."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((INPUTS, OUTPUTS)).astype(np.float32)
    signed = {form: quantizer(form)(matrix, 1)[0] for form in ("whole", "room", "7bit")}
    unsigned = (signed["whole"].astype(np.int16) + 128).astype(np.uint8)
    forms = {f"u8s8-{form}": (np.uint8, weights, 0) for form, weights in signed.items()}
    forms |= {"u8u8": (np.uint8, unsigned, 128), "s8s8": (np.int8, signed["whole"], 0)}
    for name, (kind, weights, zero) in forms.items():
        first = np.dtype(kind).name
        text = (
            f'<ir_version: 9, opset_import: ["" : 18]> g ({first}[n,{INPUTS}] a, {first} z) => (int32[n,{OUTPUTS}] y)'
            " { y = MatMulInteger(a, w, z, v) }"
        )
        proto = onnx.parser.parse_model(text)
        for given, array in (("w", weights), ("v", np.full(OUTPUTS, zero, weights.dtype))):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, given))
        onnx.save(proto, folder / f"{name}.onnx")
        for rows in ROWS:
            values, middle = rng.integers(0, 256, (rows, INPUTS)), 100
            shift = 0 if kind == np.uint8 else 128
            call = {"a": (values - shift).astype(kind), "z": np.array(middle - shift, kind)}
            answer = ((values - middle) @ (weights.astype(np.int64) - zero)).astype(np.int32)
            np.savez(folder / f"{name}.{rows}.npz", answer=answer, **call)


def speeds(folder: Path, rounds: int) -> dict[str, Any]:
    """Times and wrong sums of all forms in the kernels of each level that this processor can play."""
    site = masking.patched_copy(folder / "site")
    (folder / "products").mkdir()
    products(folder / "products")
    figures: dict[str, Any] = {}
    for level, feature in masking.LEVELS.items():
        if feature and feature not in cpu.here().features:
            continue
        command = [
            "-m", "tests.portability.masking", level, str(site), str(Path(__file__).with_name("_products.py")), str(folder / "products"),
            str(rounds),
        ]  # fmt: skip
        ended = subprocess.run(_common.python(*command), cwd=_common.ROOT, capture_output=True, text=True, check=True)
        for name, (milliseconds, wrong) in json.loads(ended.stdout).items():
            form, _, rows = name.rpartition(".")
            figures[f"ms_{level}_{form}_{rows}"] = round(milliseconds, 3)
            figures[f"wrong_{level}_{form}_{rows}"] = round(wrong, 4)
    return figures


def texts(count: int) -> list[str]:
    """Functions of the standard library."""
    import argparse
    import email.utils
    import textwrap
    import tokenize as lexer

    modules = (lexer, email.utils, textwrap, json, argparse, subprocess)
    found = [inspect.getsource(one) for module in modules for _, one in inspect.getmembers(module, inspect.isfunction)]
    return [" ".join(text[:600].split("\n\n")) for text in found][:count]


def divergence(calls: list[GraphRun], answers: list[dict[str, np.ndarray]]) -> float:
    """Mean KL(fp32 ‖ form) in nats a token."""

    def log_softmax(logits: np.ndarray) -> np.ndarray:
        shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
        result: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return result

    total, count = 0.0, 0
    for call, answer in zip(calls, answers, strict=True):
        wanted, got = log_softmax(call.outputs["logits"]), log_softmax(answer["logits"])
        total += float((np.exp(wanted) * (wanted - got)).sum())
        count += wanted.shape[0] * wanted.shape[1]
    return total / count


def quality(folder: Path, seconds: float, count: int) -> dict[str, Any]:
    """How far onnx-int8 is from fp32 in each form of its weights."""
    base = folder / "base"
    _common.run_child(_common.python("-m", "handlers.demo.make_base", str(base), "--seconds", str(seconds)))
    source, _, _, _ = stage(folder / "onnx", "onnx", {"merge": base}, base)
    graphs = graphset.read(source)
    player = Player(source, graphs, 1)
    calls = [call for row in tokenize(source, texts(count)).rows for call in player.play(row)]
    own, figures = int8_rewriter.quantize_matrix, {}
    for form in ("whole", "room", "7bit"):
        int8_rewriter.quantize_matrix = quantizer(form) if form != "room" else own
        sessions = {}
        for graph in graphs.graphs:
            model = ir.load(source / graph.file)
            int8_rewriter.IntegerRewriter(model).rewrite()
            ir.save(model, folder / f"{form}-{graph.file}")
            sessions[graph.role] = open_session(folder / f"{form}-{graph.file}", 1)
        answers = [run(sessions[call.role], call.feeds) for call in calls]
        error, agreement = compare(calls, answers)
        figures |= {f"error_{form}": error, f"kl_{form}": divergence(calls, answers), f"agreement_{form}": agreement}
    int8_rewriter.quantize_matrix = own
    return figures


def main() -> None:
    """Measure, print a table, write the JSON file."""
    parser = _common.parser("What each way to multiply 8-bit integers costs and gives, in the kernels of other processors.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of the model whose quality is measured")
    parser.add_argument("--texts", type=int, default=24)
    options = parser.parse_args()
    with _common.scratch("processors") as folder:
        figures = speeds(folder, options.rounds) | quality(folder, options.seconds, options.texts)
    _common.write("processors", figures, options.json, libraries=("onnxruntime", "numpy", "torch"))


if __name__ == "__main__":
    main()
